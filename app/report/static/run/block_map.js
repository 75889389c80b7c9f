// Heat map of a value per pair of peers, or the mean per pair of blocks of many peers.

import { css } from "../drawing.js";
import { heatMap } from "../heat_map.js";
import { DATA, pick, view } from "../page.js";
import { axisName, blockClusters, blockOf, blocks, clusterColour } from "./peers.js";

// True if each block is a single peer.
export const isExact = () => blocks().length === DATA.peers;
export const isSelf = (a, b) => a === b && blocks()[a].length === 1;

// Draws `share(a, b)` of two blocks as `heatMap` does, with the row of the selected peer framed; a
// click selects a peer.
export function blockMap(canvas, { share, readOut }) {
  const all = blocks();
  const row = view.picked === null ? null : blockOf()[view.picked];
  const { ink, cell, edge, under } = heatMap(canvas, {
    size: Math.min(canvas.parentElement.clientWidth, 520),
    margin: 10,
    labels: isExact() ? DATA.order.map(axisName) : null,
    picked: row,
    order: [...all.keys()],
    clusters: blockClusters(),
    colours: clusterColour(),
    share,
    readOut,
  });
  if (row !== null) {
    ink.strokeStyle = css("--ink");
    ink.lineWidth = 2;
    ink.strokeRect(edge - 1, edge + row * cell - 1, all.length * cell + 1, cell + 1);
  }
  canvas.onclick = (event) => {
    const pair = under(event);
    if (pair && all[pair[0]].length === 1) pick(all[pair[0]][0]);
  };
}
