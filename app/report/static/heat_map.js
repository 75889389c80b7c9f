// Heat map of collaboration weights: row: the peer that gives the weight; column: the peer that gets it.

import { css, prepare, ramp } from "./drawing.js";
import { hideTip, showTip } from "./page.js";

// Returns runs of adjacent peers of one true cluster: first index, index after the last, cluster.
export function clusterRuns(order, clusters) {
  const runs = [];
  order.forEach((p, k) => {
    const cluster = clusters[p];
    if (k && runs.at(-1).cluster === cluster) runs.at(-1).end = k + 1;
    else runs.push({ first: k, end: k + 1, cluster });
  });
  return runs;
}

// Returns the lines about the weight that peer i gives to peer j; `describe(i, j)` formats the weight.
export function pairReadOut(i, j, { names, own, clusters, describe }) {
  return [
    i === j ? `${names[i]} to itself` : `${names[i]} to ${names[j]}`,
    i === j && !own ? "no own weight in this method" : describe(i, j),
    i !== j &&
      clusters &&
      (clusters[i] === clusters[j]
        ? `both in cluster ${clusters[i]}`
        : `clusters ${clusters[i]} and ${clusters[j]}`),
  ];
}

// Draws weights as shares of `top` (NaN: blank) and frames the true clusters in their `colours`;
// `readOut(i, j)` returns the lines about a weight. Returns the context, the side of a cell and a
// function that returns the pair under the pointer.
export function heatMap(canvas, { size, edge, order, clusters, colours, weight, top, readOut }) {
  const ink = prepare(canvas, size, size);
  const cell = (size - edge - 2) / order.length;
  const gap = cell > 12 ? 1 : 0;
  // Start of a row or column; whole pixels avoid seams between cells without gaps.
  const at = (k) => (gap ? edge + k * cell : Math.round(edge + k * cell));
  const [shade, blank] = [ramp(), css("--line")];
  order.forEach((i, row) => {
    order.forEach((j, column) => {
      const share = weight(i, j) / top;
      ink.fillStyle = Number.isNaN(share) ? blank : shade(share);
      const [x, y] = [at(column), at(row)];
      ink.fillRect(x, y, at(column + 1) - x - gap, at(row + 1) - y - gap);
    });
  });
  for (const { first, end, cluster } of clusters ? clusterRuns(order, clusters) : []) {
    const [start, length] = [edge + first * cell, (end - first) * cell - gap];
    ink.fillStyle = colours.get(cluster);
    ink.fillRect(start, 0, length, 5);
    ink.fillRect(0, start, 5, length);
    ink.strokeStyle = ink.fillStyle;
    ink.lineWidth = 2;
    ink.strokeRect(start - gap, start - gap, length + gap * 2, length + gap * 2);
  }

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const pair = [event.clientY - box.top, event.clientX - box.left].map(
      (px) => order[Math.floor((px - edge) / cell)],
    );
    return pair.includes(undefined) ? null : pair;
  };
  canvas.onpointermove = (event) => {
    const pair = under(event);
    if (pair) showTip(event, readOut(...pair));
    else hideTip();
  };
  canvas.onpointerleave = hideTip;
  return { ink, cell, under };
}
