// Predictions of one peer's personal model on its test data: confusion matrix, ROC curves and
// reliability; for a regression, residuals.

import { css, line, make, PALETTE, picture, prepare, ramp, textOn } from "../drawing.js";
import { isNumber, plain } from "../numbers.js";
import { byId, DATA, hideTip, showTip, view, watch } from "../page.js";
import { className, legendEntry, peerName } from "./peers.js";

const SIDE = 260;
const EDGE = 34;
const TITLE = 20; // height of the title of an axis
const NAMES = 18; // height of the class names above the matrix

// Returns the peer to show: the selected one, else the one with the lowest score.
function shownPeer() {
  const available = Object.keys(DATA.predictions).map(Number);
  if (available.includes(view.picked)) return view.picked;
  const score = DATA.last.test_accuracy ?? DATA.last.test_loss.map((loss) => -loss);
  return available.reduce((a, b) => (score[b] < score[a] ? b : a));
}

// Draws an empty unit square with its diagonal; returns it and a function from a point to pixels.
function square(label, down, across) {
  const svg = picture(SIDE, SIDE, label);
  svg.setAttribute("width", SIDE);
  const at = ([x, y]) => [EDGE + x * (SIDE - EDGE - 6), SIDE - EDGE - y * (SIDE - EDGE - 30)];
  const ends = [at([0, 0]), at([1, 1])];
  svg.append(line(ends, { stroke: css("--faint"), "stroke-dasharray": "3 3" }));
  svg.append(line([at([0, 1]), at([0, 0]), at([1, 0])], { stroke: css("--faint") }));
  const write = (x, y, anchor, text) =>
    svg.append(make("text", { x, y, "text-anchor": anchor }, text));
  write(0, 14, "start", down);
  write(SIDE - 6, SIDE - 2, "end", across);
  for (const share of [0, 1]) {
    const [x, y] = at([share, share]);
    write(EDGE - 6, y + 4, "end", String(share));
    write(x, SIDE - EDGE + 16, share ? "end" : "start", String(share));
  }
  return { svg, at };
}

// Draws the confusion matrix: rows are true classes, columns predicted ones; a cell is shaded by its
// share of the row.
function drawConfusion(counts) {
  const canvas = byId("confusion");
  canvas.parentElement.hidden = !counts;
  if (!counts) return;
  const label = (c) => (DATA.classes[c] ?? String(c)).slice(0, 14);
  const left = TITLE + 16 + 7 * Math.max(...counts.map((_, c) => label(c).length));
  const top = TITLE + NAMES;
  const cell = Math.max(12, Math.min(64, SIDE / counts.length));
  const side = cell * counts.length;
  // The title above may be wider than a small matrix.
  const ink = prepare(canvas, Math.max(left + side, left + 112), Math.max(top + side, top + 76));
  const shade = ramp();
  ink.textBaseline = "middle";
  ink.fillStyle = css("--ink");
  ink.textAlign = "left";
  ink.fillText("predicted class", left, TITLE / 2);
  ink.save();
  ink.translate(TITLE / 2, top);
  ink.rotate(-Math.PI / 2);
  ink.textAlign = "right";
  ink.fillText("true class", 0, 0);
  ink.restore();
  counts.forEach((row, truth) => {
    const total = Math.max(
      1,
      row.reduce((a, b) => a + b, 0),
    );
    const y = top + truth * cell;
    ink.textAlign = "right";
    ink.fillStyle = css("--soft");
    ink.fillText(label(truth), left - 8, y + 0.5 * cell);
    ink.textAlign = "center";
    row.forEach((count, predicted) => {
      const x = left + predicted * cell;
      const colour = shade(count / total);
      ink.fillStyle = colour;
      ink.fillRect(x, y, cell - 1, cell - 1);
      if (cell >= 22) {
        ink.fillStyle = textOn(colour);
        ink.fillText(plain(count, 6), x + cell / 2, y + cell / 2, cell - 4);
      }
      if (truth) return;
      ink.fillStyle = css("--soft");
      ink.fillText(label(predicted), x + cell / 2, top - NAMES / 2, cell - 2);
    });
  });
  canvas.onpointermove = (event) => {
    const box = canvas.getBoundingClientRect();
    const predicted = Math.floor((event.clientX - box.left - left) / cell);
    const truth = Math.floor((event.clientY - box.top - top) / cell);
    const count = counts[truth]?.[predicted];
    if (count === undefined) hideTip();
    else
      showTip(event, [
        plain(count, 6),
        `true: ${className(truth)}`,
        `predicted: ${className(predicted)}`,
      ]);
  };
  canvas.onpointerleave = hideTip;
}

// Returns the area under [x, y] points, ascending in x (trapezoids); null for no points.
function areaUnder(points) {
  if (points.length < 2) return null;
  return points
    .slice(1)
    .reduce((sum, [x, y], k) => sum + ((x - points[k][0]) * (y + points[k][1])) / 2, 0);
}

function drawRoc(curves) {
  byId("roc").parentElement.hidden = !curves;
  if (!curves) return;
  const { svg, at } = square("ROC curves", "true positive rate", "false positive rate");
  const first = curves.length === 1 ? 1 : 0; // with two classes, the second
  curves.forEach((points, k) => {
    svg.append(line(points.map(at), { stroke: PALETTE[k % PALETTE.length], "stroke-width": 1.8 }));
  });
  byId("roc").replaceChildren(svg);
  const marks = curves.map((points, k) => {
    const area = areaUnder(points);
    const auc = isNumber(area) ? area.toFixed(2) : "–";
    return legendEntry(PALETTE[k % PALETTE.length], `${className(k + first)}, AUC ${auc}`, "line");
  });
  byId("roc-legend").replaceChildren(...(curves.length <= PALETTE.length ? marks : []));
}

function drawReliability(bins) {
  byId("reliability").parentElement.hidden = !bins;
  if (!bins) return;
  const { svg, at } = square("Reliability", "accuracy", "confidence");
  const largest = Math.max(...bins.map(([, , count]) => count));
  for (const [confidence, accuracy, count] of bins) {
    const [cx, cy] = at([confidence, accuracy]);
    const r = 2 + 6 * Math.sqrt(count / largest);
    svg.append(make("circle", { cx, cy, r, fill: css("--accent"), "fill-opacity": 0.75 }));
  }
  byId("reliability").replaceChildren(svg);
}

function drawResiduals(residuals) {
  byId("residuals").parentElement.hidden = !residuals;
  if (!residuals) return;
  const { counts, edges } = residuals;
  const svg = picture(2 * SIDE, SIDE, "Histogram of residuals");
  const highest = Math.max(1, ...counts);
  const wide = (2 * SIDE) / counts.length;
  counts.forEach((count, k) => {
    const height = ((SIDE - 50) * count) / highest;
    const place = { x: k * wide, y: SIDE - 24 - height, width: wide - 2, height };
    svg.append(make("rect", { ...place, fill: css("--accent") }));
  });
  const write = (x, y, anchor, text) =>
    svg.append(make("text", { x, y, "text-anchor": anchor }, text));
  write(0, 14, "start", `test examples (highest bar: ${plain(highest, 6)})`);
  write(0, SIDE - 6, "start", plain(edges[0], 3));
  write(SIDE, SIDE - 6, "middle", "predicted − true value");
  write(2 * SIDE, SIDE - 6, "end", plain(edges.at(-1), 3));
  byId("residuals").replaceChildren(svg);
}

function drawPredictions() {
  byId("predictions").hidden = !DATA.predictions;
  if (!DATA.predictions) return;
  const p = shownPeer();
  byId("predictions-peer").textContent = `Shown: ${peerName(p)}`;
  const { confusion, roc, reliability, residuals } = DATA.predictions[p];
  drawConfusion(confusion);
  drawRoc(roc);
  drawReliability(reliability);
  drawResiduals(residuals);
}

export function startPredictions() {
  watch(drawPredictions);
}
