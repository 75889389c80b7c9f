// The peers of a run: their colours, and how they are named.

import { clusterColours, css, make } from "../drawing.js";
import { DATA, fromData } from "../page.js";

export const peers = fromData((data) => [...Array(data.peers).keys()]);
export const clusterColour = fromData(({ clusters }) => clusters && clusterColours(clusters));
export const peerColour = (p) =>
  DATA.clusters ? clusterColour().get(DATA.clusters[p]) : css("--accent");
export const peerName = (p) => `Peer ${p}${DATA.clusters ? `, cluster ${DATA.clusters[p]}` : ""}`;

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
