// The peers of a run: their colours, and how they are named.

import { clusterColours, css, make } from "../drawing.js";
import { axisLabel } from "../heat_map.js";
import { DATA, fromData } from "../page.js";

// Peers are listed by index, drawn in display order, and where they are many, drawn in blocks.
export const peers = fromData((data) => [...Array(data.peers).keys()]);
export const clusterColour = fromData(({ clusters }) => clusters && clusterColours(clusters));
export const peerColour = (p) =>
  DATA.clusters ? clusterColour().get(DATA.clusters[p]) : css("--accent");
export const inText = (p) => DATA.names[p];
// Where there is little room: "peer 3" is 3.
export const shortName = (p) => (DATA.names[p] === `peer ${p}` ? String(p) : DATA.names[p]);
// Along an axis.
export const axisName = (p) => axisLabel(DATA.names[p], p);
export const peerName = (p) =>
  `${DATA.names[p]}${DATA.clusters ? `, cluster ${DATA.clusters[p]}` : ""}`;
export const className = (label) => DATA.classes[label] ?? `class ${label}`;

export const blocks = fromData(({ order, blocks }) =>
  blocks.map((first, k) => order.slice(first, blocks[k + 1])),
);
export const blockOf = fromData(() => {
  const found = [];
  blocks().forEach((block, k) => {
    for (const p of block) found[p] = k;
  });
  return found;
});
const isOneCluster = (block) => block.every((p) => DATA.clusters[p] === DATA.clusters[block[0]]);
export function blockName(block) {
  if (block.length === 1) return peerName(block[0]);
  const cluster =
    DATA.clusters && isOneCluster(block) ? ` of cluster ${DATA.clusters[block[0]]}` : "";
  const few = block.slice(0, 3).map(shortName).join(", ");
  return `${block.length} peers${cluster}: ${few}${block.length > 3 ? " …" : ""}`;
}
// The true cluster of each block; null where blocks have peers of several.
export const blockClusters = fromData(({ clusters }) =>
  clusters && blocks().every(isOneCluster) ? blocks().map(([p]) => clusters[p]) : null,
);

// Marks of class `kind` for the true clusters.
export function clusterLegend(kind) {
  if (!DATA.clusters) return [];
  if (clusterColour().size > 12) return [make("span", {}, "coloured by true cluster")];
  return [...clusterColour()].map(([cluster, colour]) =>
    legendEntry(colour, `cluster ${cluster}`, kind),
  );
}
export function legendEntry(colour, text, kind = "") {
  const mark = make("i", kind ? { class: kind } : {});
  mark.style.background = colour;
  return make("span", {}, mark, text);
}
