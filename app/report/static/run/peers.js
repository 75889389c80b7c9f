// Colours and names of a run's peers.

import { clusterColours, css, make } from "../drawing.js";
import { DATA, fromData } from "../page.js";

// Peers by index. Figures use the display order; many peers are drawn in blocks.
export const peers = fromData((data) => [...Array(data.peers).keys()]);
export const clusterColour = fromData(({ clusters }) => clusters && clusterColours(clusters));
export const peerColour = (p) =>
  DATA.clusters ? clusterColour().get(DATA.clusters[p]) : css("--accent");
export const inText = (p) => DATA.names[p];
// Short name: "peer 3" becomes 3.
export const shortName = (p) => (DATA.names[p] === `peer ${p}` ? String(p) : DATA.names[p]);
// Name along an axis.
export const axisName = (p) => shortName(p).replace(/^(.{13}).{2,}$/u, "$1…");
export const peerName = (p) =>
  `${DATA.names[p]}${DATA.clusters ? `, cluster ${DATA.clusters[p]}` : ""}`;
export const className = (label) => DATA.classes[label] ?? `class ${label}`;

export const blocks = fromData(({ order, blocks }) =>
  blocks.map((first, k) => order.slice(first, blocks[k + 1])),
);
export const blockOf = fromData(() => {
  const indices = [];
  blocks().forEach((block, k) => {
    for (const p of block) indices[p] = k;
  });
  return indices;
});
const isOneCluster = (block) => block.every((p) => DATA.clusters[p] === DATA.clusters[block[0]]);
export function blockName(block) {
  if (block.length === 1) return peerName(block[0]);
  const cluster =
    DATA.clusters && isOneCluster(block) ? ` of cluster ${DATA.clusters[block[0]]}` : "";
  const few = block.slice(0, 3).map(shortName).join(", ");
  return `${block.length} peers${cluster}: ${few}${block.length > 3 ? " …" : ""}`;
}
// True cluster of each block; null if a block has peers of several clusters.
export const blockClusters = fromData(({ clusters }) =>
  clusters && blocks().every(isOneCluster) ? blocks().map(([p]) => clusters[p]) : null,
);

// Legend of the true clusters; marks have the class `kind`.
export function clusterLegend(kind) {
  if (!DATA.clusters) return [];
  if (clusterColour().size > 12) return [make("span", {}, "colours: true clusters")];
  return [...clusterColour()].map(([cluster, colour]) =>
    legendEntry(colour, `cluster ${cluster}`, kind),
  );
}
export function legendEntry(colour, text, kind = "") {
  const mark = make("i", kind ? { class: kind } : {});
  mark.style.background = colour;
  return make("span", {}, mark, text);
}
