// Collaboration weights of a run by frame: block means and the links of each peer.

import { decode } from "../numbers.js";
import { DATA, fromData } from "../page.js";
import { blockOf, peers } from "./peers.js";

const means = fromData(({ graph }) => decode(graph.weights, 2));
// Strongest links of many peers; null for few peers, whose block means are the exact weights.
const strongest = fromData(
  ({ graph: { links } }) =>
    links && { each: links.each, to: decode(links.to, 3), weights: decode(links.weights, 2) },
);

const scales = fromData(({ graph }) => decode(graph.scales, 2));

// Returns the scale of the row of block a: a weight above half of it is a learnt edge.
export const rowScale = (a, at) => scales()[at * DATA.blocks.length + a];
export function blockWeight(a, b, at) {
  const size = DATA.blocks.length;
  return means()[(at * size + a) * size + b];
}
// Returns [peer, weight] pairs of peer i: all pairs, or the strongest links of many peers.
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
// Returns the [peer, weight] pairs with the largest weights of peer i.
export function collaborators(i, limit, at) {
  const threshold = Math.max(1e-9, 0.005 * DATA.graph.top);
  return links(i, at)
    .filter(([, w]) => w > threshold)
    .sort((a, b) => b[1] - a[1])
    .slice(0, limit);
}
