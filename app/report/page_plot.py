"""The script that all pages share, second part: axes, heat maps and the player of rounds.

A page that uses it has `D.metrics` (the fields that were measured) and elements `player`, `play`
and `slider` where it calls `player`.
"""

from __future__ import annotations

PLOT = r"""
const MEASURES = [
  ["test_accuracy", "Test accuracy", FORMAT.share], ["test_loss", "Test loss", FORMAT.loss],
  ["validation_accuracy", "Validation accuracy", FORMAT.share],
  ["validation_loss", "Validation loss", FORMAT.loss],
  ["train_loss", "Train loss", FORMAT.loss]].filter(([key]) => key in D.metrics);
const AXES = [
  ["round", "Rounds", FORMAT.round, "round"],
  ["bytes_sent", "Bytes sent", FORMAT.bytes, "bytes sent per peer"],
  ["gradient_evaluations", "Gradients", FORMAT.count, "gradient evaluations per peer"]];
function spread(values) {
  const seen = values.flat().filter(isNumber);
  return [Math.min(...seen), Math.max(...seen)];
}
const canLog = (values) => spread(values)[0] > 0;
const wantsLog = (values) => canLog(values) && spread(values)[1] > 50 * spread(values)[0];
function niceTicks(low, high, wanted) {
  const raw = (high - low) / wanted || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1)
    ticks.push(k * step || 0);
  return ticks;
}
// An empty plot: rangeX and rangeY in the units of axis and measure, rounds as they were measured.
function axes(box, {measure, axis, log, logX, rangeX, rangeY, rounds, label}) {
  const [, title, format] = MEASURES.find(([key]) => key === measure);
  const [, , formatX, titleX] = AXES.find(([key]) => key === axis);
  const width = Math.max(280, box.clientWidth), height = width < 560 ? 300 : 400;
  const pad = {left: width < 560 ? 50 : 62, right: 14, top: 30, bottom: 46};
  const tall = height - pad.top - pad.bottom, wide = width - pad.left - pad.right;
  let [low, high] = rangeY, y, ticks;
  if (log) {
    let [a, b] = [Math.log10(low), Math.log10(high)];
    const room = b - a < 0.1 ? 0.5 : 0.04 * (b - a);
    [a, b] = [a - room, b + room];
    y = (v) => v > 0 ? pad.top + (b - Math.log10(v)) / (b - a) * tall : null;
    ticks = powers(a, b);
    if (ticks.length < 2) ticks = [10 ** a, 10 ** ((a + b) / 2), 10 ** b];
  } else {
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.1;
    [low, high] = [Math.max(low >= 0 ? 0 : -Infinity, low - room), high + room];
    if (measure.endsWith("accuracy")) high = Math.min(1, high);
    y = (v) => pad.top + (high - v) / (high - low) * tall;
    ticks = niceTicks(low, high, height / 62);
  }
  let [left, right] = rangeX, x, under, ticksX;
  if (logX) {
    const [a, b] = [Math.log10(left), Math.log10(right)];
    x = (v) => v > 0 ? pad.left + (Math.log10(v) - a) / (b - a) * wide : null;
    under = (px) => 10 ** (a + (px - pad.left) / wide * (b - a));
    ticksX = powers(a, b);
    if (ticksX.length < 2) ticksX = niceTicks(left, right, 4).filter((t) => t > 0);
  } else {
    if (left === right) { left -= 1; right += 1; }
    x = (v) => pad.left + (v - left) / (right - left) * wide;
    under = (px) => left + (px - pad.left) / wide * (right - left);
    ticksX = rounds.length === 1 && axis === "round" ? rounds
      : niceTicks(left, right, Math.min(8, width / 110))
        .filter((t) => axis !== "round" || Number.isInteger(t));
  }
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": label});
  svg.append(make("text", {x: 0, y: 15}, log ? `${title} (logarithmic)` : title));
  const told = format === FORMAT.share
    ? (t) => `${+(100 * t).toFixed(1)} %` : (t) => plain(t, log ? 2 : 4);
  ticks.forEach((t) => svg.append(
    make("line", {x1: pad.left, x2: width - pad.right, y1: y(t), y2: y(t),
                  stroke: css("--grid")}),
    make("text", {x: pad.left - 8, y: y(t) + 4.5, "text-anchor": "end"}, told(t))));
  ticksX.forEach((t) => svg.append(make("text", {x: x(t), y: height - 24,
    "text-anchor": x(t) > width - 30 ? "end" : "middle"},
    formatX(t).replace(/\.0+(?= )|(\.\d*[1-9])0+(?= )/, "$1"))));
  svg.append(make("line", {x1: pad.left, x2: width - pad.right, y1: height - pad.bottom,
    y2: height - pad.bottom, stroke: css("--faint")}));
  svg.append(make("text", {x: (pad.left + width - pad.right) / 2, y: height - 5,
    "text-anchor": "middle"}, logX ? `${titleX} (logarithmic)` : titleX));
  return {svg, x, y, under, pad, width, height};
}
function powers(a, b) {
  const ticks = [], every = Math.max(1, Math.ceil((b - a) / 7));
  for (let k = Math.ceil(a - 1e-9); k <= b + 1e-9; k += every) ticks.push(10 ** k);
  return ticks;
}

function ramp() {
  const stops = [0, 1, 2, 3, 4].map((k) => css(`--ramp${k}`).match(/[0-9a-f]{2}/gi)
    .map((hex) => parseInt(hex, 16)));
  return (share) => {
    const at = 4 * Math.min(1, Math.max(0, share)), k = Math.min(3, Math.floor(at));
    const mix = stops[k].map((c, m) => Math.round(c + (stops[k + 1][m] - c) * (at - k)));
    return `rgb(${mix.join(" ")})`;
  };
}
function prepare(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  const ink = canvas.getContext("2d");
  ink.scale(scale, scale);
  ink.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  return ink;
}
// Runs of neighbours in display order that share a true cluster: [first, after the last, colour].
function clusterRuns(order, clusters, colour) {
  const runs = [];
  let before = null;
  if (clusters) order.forEach((p, k) => {
    if (k && clusters[p] === before) runs[runs.length - 1][1] = k + 1;
    else runs.push([k, k + 1, colour(clusters[p])]);
    before = clusters[p];
  });
  return runs;
}
// Weights as shares of the largest, row by row; true clusters are framed.
function paintHeat(ink, {order, runs, edge, cell, gap, own, share}) {
  const shade = ramp(), side = cell - gap + (gap ? 0 : 0.4);
  order.forEach((i, row) => order.forEach((j, column) => {
    ink.fillStyle = i === j && !own ? css("--line") : shade(share(i, j));
    ink.fillRect(edge + column * cell, edge + row * cell, side, side);
  }));
  runs.forEach(([first, end, colour]) => {
    const [a, span] = [edge + first * cell, (end - first) * cell - gap];
    ink.fillStyle = colour;
    ink.fillRect(a, 0, span, 5); ink.fillRect(0, a, 5, span);
    ink.strokeStyle = colour; ink.lineWidth = 2;
    ink.strokeRect(a - gap, a - gap, span + gap * 2, span + gap * 2);
  });
}
// Slider and button over `rounds`, at the last one to begin with; show(index) draws.
function player(rounds, show) {
  const slider = byId("slider"), button = byId("play"), last = rounds.length - 1;
  slider.max = last; slider.value = last;
  byId("player").hidden = last === 0;
  let timer = null;
  const go = (frame) => {
    slider.value = frame;
    slider.setAttribute("aria-valuetext", `round ${rounds[frame]}`);
    show(frame);
  };
  const icon = (d) => {
    const svg = make("svg", {viewBox: "0 0 24 24", width: 22, height: 22});
    svg.append(make("path", {d, fill: "currentColor"}));
    svg.style.margin = "auto"; button.replaceChildren(svg);
    button.setAttribute("aria-label", timer ? "Pause" : "Play the rounds");
  };
  const stop = () => { clearInterval(timer); timer = null; icon("M8 5v14l11-7z"); };
  const step = () => +slider.value < last ? go(+slider.value + 1) : stop();
  button.onclick = () => {
    if (timer) { stop(); return; }
    if (+slider.value === last) go(0);
    timer = setInterval(step, Math.min(500, Math.max(60, 7000 / last)));
    icon("M7 5h4v14H7zM13 5h4v14h-4z");
  };
  slider.oninput = () => { if (timer) stop(); go(+slider.value); };
  stop();
}
"""
