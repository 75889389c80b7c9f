// Positions of the peers in the graph: each cluster is a ring, or a disc if there are many peers.

import { mean } from "../numbers.js";
import { DATA, fromData } from "../page.js";

const DISC = 100; // maximum number of peers on a ring
const MAX_GROUPS = 30;

// Groups of adjacent peers in one true or recovered cluster; one group of all peers if there are no
// clusters, or too many.
const groups = fromData(({ order, clusters, recovered }) => {
  const labels = clusters ?? (order.length > DISC ? recovered : null);
  if (!labels) return [order];
  const runs = [];
  order.forEach((p, k) => {
    if (k && labels[order[k - 1]] === labels[p]) runs.at(-1).push(p);
    else runs.push([p]);
  });
  return runs.length > MAX_GROUPS && !clusters ? [order] : runs;
});

// Returns positions on a ring, the first at `angle`.
function ring(count, [x, y], radius, angle) {
  return Array.from({ length: count }, (_, k) => {
    const turn = angle + (2 * Math.PI * k) / count;
    return [x + radius * Math.cos(turn), y + radius * Math.sin(turn)];
  });
}
// Returns positions on a disc (Vogel spiral).
function disc(count, [x, y], radius) {
  return Array.from({ length: count }, (_, k) => {
    const [turn, far] = [k * Math.PI * (3 - Math.sqrt(5)), radius * Math.sqrt((k + 0.5) / count)];
    return [x + far * Math.cos(turn), y + far * Math.sin(turn)];
  });
}
function rings(middle) {
  const top = -Math.PI / 2;
  const all = groups();
  if (all.length === 1)
    return ring(DATA.peers, [middle, middle], DATA.peers > 1 ? middle - 36 : 0, top);
  const room = middle - 30;
  const share = Math.sin(Math.PI / all.length);
  const inner = Math.min(0.3 * room, ((room * share) / (1 + share)) * 0.8);
  const centres = ring(all.length, [middle, middle], room - inner, top);
  return all.flatMap(({ length }, k) => {
    const radius = length === 1 ? 0 : length === 2 ? Math.min(inner, 48) : inner;
    return ring(length, centres[k], radius, (2 * Math.PI * k) / all.length);
  });
}
// Places discs around the middle; their area is proportional to the number of peers.
function discs(middle) {
  const all = groups();
  const room = middle - 12;
  if (all.length === 1) return disc(DATA.peers, [middle, middle], room);
  const widths = all.map(({ length }) => Math.sqrt(length));
  const around = widths.reduce((a, b) => a + b);
  // Distance from the middle at which neighbours do not touch, in the unit of `widths`.
  const reach = Math.max(
    ...widths.map((width, k) => {
      const both = width + widths[(k + 1) % widths.length];
      return both / 2 / Math.sin((Math.PI * both) / 2 / around);
    }),
  );
  const scale = room / (reach + Math.max(...widths));
  const far = reach * scale;
  let turn = -Math.PI / 2 - (Math.PI * widths[0]) / around;
  return all.flatMap(({ length }, k) => {
    const half = (Math.PI * widths[k]) / around;
    turn += half;
    const centre = [middle + far * Math.cos(turn), middle + far * Math.sin(turn)];
    turn += half;
    return disc(length, centre, widths[k] * scale * 0.94);
  });
}

// Returns by peer its position and the centre of its group, and the radius of the dots.
export function layout(size) {
  const isDisc = DATA.peers > DISC;
  const positions = isDisc ? discs(size / 2) : rings(size / 2);
  const places = [];
  DATA.order.forEach((p, k) => {
    places[p] = positions[k];
  });
  const centres = [];
  for (const group of groups()) {
    const centre = [0, 1].map((axis) => mean(group.map((p) => places[p][axis])));
    for (const p of group) centres[p] = centre;
  }
  const n = DATA.peers;
  const radius = n > 48 ? 6 : n > 20 ? 9 : n > 10 ? 14 : 18;
  return {
    places,
    centres,
    radius: isDisc ? Math.min(6, Math.max(2, (0.16 * size) / Math.sqrt(n))) : radius,
  };
}
