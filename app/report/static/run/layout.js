// Where the peers of a graph stand: clusters are rings on a ring, or discs where peers are many.

import { DATA, fromData } from "../page.js";

const DISC = 100; // peers beyond which a ring has no room for them
const MOST_GROUPS = 30;

// Neighbours in display order that share a cluster, true or recovered; all peers where that
// divides nothing, or too much.
const groups = fromData(({ order, clusters, recovered }) => {
  const labels = clusters ?? (order.length > DISC ? recovered : null);
  if (!labels) return [order];
  const found = [];
  order.forEach((p, k) => {
    if (k && labels[order[k - 1]] === labels[p]) found.at(-1).push(p);
    else found.push([p]);
  });
  return found.length > MOST_GROUPS && !clusters ? [order] : found;
});

// Places on a ring, the first at `angle`.
function ring(count, [x, y], radius, angle) {
  return Array.from({ length: count }, (_, k) => {
    const turn = angle + (2 * Math.PI * k) / count;
    return [x + radius * Math.cos(turn), y + radius * Math.sin(turn)];
  });
}
// Places all over a disc, as seeds lie in a sunflower.
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
// Discs around the middle, each as large as its share of the peers.
function discs(middle) {
  const all = groups();
  const room = middle - 12;
  if (all.length === 1) return disc(DATA.peers, [middle, middle], room);
  const widths = all.map(({ length }) => Math.sqrt(length));
  const around = widths.reduce((a, b) => a + b);
  // How far out neighbours do not touch, in the unit of `widths`.
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

// The place of each peer, by index, and the radius of its dot.
export function layout(size) {
  const isDisc = DATA.peers > DISC;
  const found = isDisc ? discs(size / 2) : rings(size / 2);
  const places = [];
  DATA.order.forEach((p, k) => {
    places[p] = found[k];
  });
  const n = DATA.peers;
  const radius = n > 48 ? 6 : n > 20 ? 9 : n > 10 ? 14 : 18;
  return {
    places,
    radius: isDisc ? Math.min(6, Math.max(2, (0.16 * size) / Math.sqrt(n))) : radius,
  };
}
