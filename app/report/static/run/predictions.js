// How the personal model of one peer predicts its test data: who is taken for what, ROC curves,
// reliability; of a regression, how far off it is.

import { css, line, make, PALETTE, picture, prepare, ramp } from "../drawing.js";
import { plain } from "../numbers.js";
import { byId, DATA, hideTip, showTip, view, watch } from "../page.js";
import { className, legendEntry, peerName } from "./peers.js";

const SIDE = 260;
const EDGE = 34;

// The peer that is shown: the one that is followed, else the one that is predicted worst.
function shownPeer() {
  const there = Object.keys(DATA.predictions).map(Number);
  if (there.includes(view.picked)) return view.picked;
  const worst = DATA.last.test_accuracy ?? DATA.last.test_loss.map((loss) => -loss);
  return there.reduce((a, b) => (worst[b] < worst[a] ? b : a));
}

// An empty square from 0 to 1 with its diagonal, and where a point lies in it.
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

function drawConfusion(counts) {
  const canvas = byId("confusion");
  canvas.parentElement.hidden = !counts;
  if (!counts) return;
  const label = (c) => (DATA.classes[c] ?? String(c)).slice(0, 14);
  const left = 16 + 7 * Math.max(...counts.map((_, c) => label(c).length));
  const cell = Math.max(12, Math.min(64, (SIDE - 24) / counts.length));
  const ink = prepare(canvas, left + cell * counts.length, 24 + cell * counts.length);
  const shade = ramp();
  ink.textBaseline = "middle";
  counts.forEach((row, truth) => {
    const whole = Math.max(
      1,
      row.reduce((a, b) => a + b, 0),
    );
    ink.textAlign = "right";
    ink.fillStyle = css("--soft");
    ink.fillText(label(truth), left - 8, 24 + (truth + 0.5) * cell);
    ink.textAlign = "center";
    row.forEach((count, said) => {
      ink.fillStyle = shade(count / whole);
      ink.fillRect(left + said * cell, 24 + truth * cell, cell - 1, cell - 1);
      if (!truth) {
        ink.fillStyle = css("--soft");
        ink.fillText(label(said), left + (said + 0.5) * cell, 12, cell - 2);
      }
    });
  });
  canvas.onpointermove = (event) => {
    const box = canvas.getBoundingClientRect();
    const said = Math.floor((event.clientX - box.left - left) / cell);
    const truth = Math.floor((event.clientY - box.top - 24) / cell);
    const count = counts[truth]?.[said];
    if (count === undefined) hideTip();
    else
      showTip(event, [
        `${plain(count, 6)} of ${className(truth)}`,
        `are taken for ${className(said)}`,
      ]);
  };
  canvas.onpointerleave = hideTip;
}

function drawRoc(curves) {
  byId("roc").parentElement.hidden = !curves;
  if (!curves) return;
  const { svg, at } = square("ROC curves", "true positive rate", "false positive rate");
  const first = curves.length === 1 ? 1 : 0; // of two classes, the second
  curves.forEach((points, k) => {
    svg.append(line(points.map(at), { stroke: PALETTE[k % PALETTE.length], "stroke-width": 1.8 }));
  });
  byId("roc").replaceChildren(svg);
  const marks = curves.map((_, k) =>
    legendEntry(PALETTE[k % PALETTE.length], className(k + first), "line"),
  );
  byId("roc-legend").replaceChildren(...(curves.length <= PALETTE.length ? marks : []));
}

function drawReliability(bins) {
  byId("reliability").parentElement.hidden = !bins;
  if (!bins) return;
  const { svg, at } = square("Reliability", "share that is right", "confidence");
  const most = Math.max(...bins.map(([, , count]) => count));
  for (const [sure, right, count] of bins) {
    const [cx, cy] = at([sure, right]);
    const r = 2 + 6 * Math.sqrt(count / most);
    svg.append(make("circle", { cx, cy, r, fill: css("--accent"), "fill-opacity": 0.75 }));
  }
  byId("reliability").replaceChildren(svg);
}

function drawResiduals(residuals) {
  byId("residuals").parentElement.hidden = !residuals;
  if (!residuals) return;
  const { counts, edges } = residuals;
  const svg = picture(2 * SIDE, SIDE, "Residuals");
  const most = Math.max(1, ...counts);
  const wide = (2 * SIDE) / counts.length;
  counts.forEach((count, k) => {
    const height = ((SIDE - 30) * count) / most;
    const place = { x: k * wide, y: SIDE - 24 - height, width: wide - 2, height };
    svg.append(make("rect", { ...place, fill: css("--accent") }));
  });
  const write = (x, anchor, text) =>
    svg.append(make("text", { x, y: SIDE - 6, "text-anchor": anchor }, text));
  write(0, "start", plain(edges[0], 3));
  write(2 * SIDE, "end", plain(edges.at(-1), 3));
  byId("residuals").replaceChildren(svg);
}

function drawPredictions() {
  byId("predictions").hidden = !DATA.predictions;
  if (!DATA.predictions) return;
  const p = shownPeer();
  byId("predictions-peer").textContent = peerName(p);
  const { confusion, roc, reliability, residuals } = DATA.predictions[p];
  drawConfusion(confusion);
  drawRoc(roc);
  drawReliability(reliability);
  drawResiduals(residuals);
}

export function startPredictions() {
  watch(drawPredictions);
}
