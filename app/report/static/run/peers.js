// The peers of a run: their colours, and how they are named.

import { clusterColours, css, make } from "../drawing.js";
import { DATA } from "../page.js";

export const peers = [...Array(DATA.peers).keys()];
export const clusterColour = DATA.clusters && clusterColours(DATA.clusters);
export const peerColour = (p) =>
  DATA.clusters ? clusterColour.get(DATA.clusters[p]) : css("--accent");
export const peerName = (p) =>
  `${DATA.names[p]}${DATA.clusters ? `, cluster ${DATA.clusters[p]}` : ""}`;
// A name where there is little room: "peer 3" is 3.
export const shortName = (p) => (DATA.names[p] === `peer ${p}` ? String(p) : DATA.names[p]);
// The same along an axis.
export const axisName = (p) => shortName(p).replace(/^(.{13}).{2,}$/u, "$1…");
export const className = (label) => DATA.classes[label] ?? `class ${label}`;

// Marks of class `kind` for the true clusters.
export function clusterLegend(kind) {
  if (!DATA.clusters) return [];
  if (clusterColour.size > 12) return [make("span", {}, "coloured by true cluster")];
  return [...clusterColour].map(([cluster, colour]) =>
    legendEntry(colour, `cluster ${cluster}`, kind),
  );
}
export function legendEntry(colour, text, kind = "") {
  const mark = make("i", kind ? { class: kind } : {});
  mark.style.background = colour;
  return make("span", {}, mark, text);
}
