// Heat map of collaboration weights: row: the peer that gives the weight; column: the peer that gets it.

import { css, prepare, ramp } from "./drawing.js";
import { hideTip, showTip } from "./page.js";

// Returns runs of adjacent peers of one true cluster: first index, index after the last, cluster.
function clusterRuns(order, clusters) {
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

// Returns the name of a peer along an axis: "peer 3" is 3, long names are cut.
export const axisLabel = (name, p) =>
  (name === `peer ${p}` ? String(p) : name).replace(/^(.{13}).{2,}$/u, "$1…");

// Draws `share(i, j)` from -1 to 1, blank where it is NaN, true clusters framed in their `colours`,
// `labels` of the rows and columns where there is room; `readOut(i, j)` are the lines about a
// weight, `picked` is the position of the label that is in ink. Returns the context, a cell's side,
// where cells begin and what lies under the pointer.
export function heatMap(
  canvas,
  { size, margin, labels, picked, font = 13, order, clusters, colours, share, readOut },
) {
  const ink = prepare(canvas, size, size);
  ink.font = ink.font.replace(/^.*?px/, `${font}px`);
  const longest = labels ? Math.max(...labels.map((label) => label.length)) : 0;
  const room = longest > 3 ? 20 + 0.54 * font * longest : font + 17; // long names stand upright
  const hasNames = labels && (size - room) / order.length >= font + 4;
  const edge = hasNames ? room : margin;
  const cell = (size - edge - 2) / order.length;
  const gap = cell > 12 ? 1 : 0;
  // Start of a row or column; whole pixels avoid seams between cells without gaps.
  const at = (k) => (gap ? edge + k * cell : Math.round(edge + k * cell));
  const [shade, blank] = [ramp(), css("--line")];
  order.forEach((i, row) => {
    order.forEach((j, column) => {
      const value = share(i, j);
      ink.fillStyle = Number.isNaN(value) ? blank : shade(value);
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

  if (hasNames) writeNames(ink, { labels, longest, edge, cell, picked });

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
  return { ink, cell, edge, under };
}

function writeNames(ink, { labels, longest, edge, cell, picked }) {
  const end = longest > 3 ? edge - 6 : edge - 12;
  ink.textBaseline = "middle";
  ink.textAlign = longest > 3 ? "right" : "center";
  labels.forEach((label, k) => {
    const middle = edge + (k + 0.5) * cell;
    ink.fillStyle = css(k === picked ? "--ink" : "--soft");
    ink.fillText(label, end, middle);
    ink.save();
    ink.translate(middle, end);
    if (longest > 3) ink.rotate(Math.PI / 2);
    ink.fillText(label, 0, 0);
    ink.restore();
  });
}
