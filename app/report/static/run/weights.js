// The collaboration weights of a run, by frame: the means over blocks, and each peer's links.

import { decode } from "../numbers.js";
import { DATA, fromData } from "../page.js";
import { blockOf, peers } from "./peers.js";

const means = fromData(({ graph }) => decode(graph.weights, 2));
// The strongest links of many peers; of few, who are blocks of one, the means are all there is.
const strongest = fromData(
  ({ graph: { links } }) =>
    links && { each: links.each, to: decode(links.to, 3), weights: decode(links.weights, 2) },
);

const scales = fromData(({ graph }) => decode(graph.scales, 2));

// The weight that counts as full in the row of block a: an edge has more than half of it.
export const rowScale = (a, at) => scales()[at * DATA.blocks.length + a];
export function blockWeight(a, b, at) {
  const size = DATA.blocks.length;
  return means()[(at * size + a) * size + b];
}
// Peers to which peer i gives weight, and how much: all of few, the strongest links of many.
export function links(i, at) {
  if (!strongest()) {
    const place = blockOf();
    return peers()
      .filter((j) => j !== i)
      .map((j) => [j, blockWeight(place[i], place[j], at)]);
  }
  const { each, to, weights } = strongest();
  const first = (at * DATA.peers + i) * each;
  return Array.from({ length: each }, (_, k) => [to[first + k], weights[first + k]]);
}
// The peers to which peer i gives most weight: peer and weight.
export function collaborators(i, most, at) {
  const least = Math.max(1e-9, 0.005 * DATA.graph.top);
  return links(i, at)
    .filter(([, w]) => w > least)
    .sort((a, b) => b[1] - a[1])
    .slice(0, most);
}
