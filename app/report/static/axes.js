// An empty plot of a measure against rounds or cost, and the buttons that select both.

import { css, make, picture } from "./drawing.js";
import { FORMAT, plain, spread } from "./numbers.js";
import { DATA, fromData, segment } from "./page.js";

const MEASURES = [
  { key: "test_accuracy", title: "Test accuracy", format: FORMAT.share },
  { key: "test_loss", title: "Test loss", format: FORMAT.loss },
  { key: "validation_accuracy", title: "Validation accuracy", format: FORMAT.share },
  { key: "validation_loss", title: "Validation loss", format: FORMAT.loss },
  { key: "train_accuracy", title: "Train accuracy", format: FORMAT.share },
  { key: "train_loss", title: "Train loss", format: FORMAT.loss },
];
// Measures that the data contain.
export const measures = fromData((data) => MEASURES.filter(({ key }) => key in data.metrics));
export const ROUNDS = { key: "round", label: "Rounds", format: FORMAT.round, title: "round" };
const AXES = [
  ROUNDS,
  { key: "bytes_sent", label: "Bytes sent", format: FORMAT.bytes, title: "bytes sent per peer" },
  {
    key: "gradient_evaluations",
    label: "Gradients",
    format: FORMAT.count,
    title: "gradient evaluations per peer",
  },
  {
    key: "virtual_seconds",
    label: "Virtual time",
    format: FORMAT.seconds,
    title: "virtual time",
  },
];
// Only runs with a virtual clock offer its axis.
const offered = fromData((data) =>
  AXES.filter(({ key }) => key !== "virtual_seconds" || key in data.metrics),
);

// Draws the buttons for measures and axes; `valuesOf(key)` returns a metric's values.
export function offerChoices({ measure, axis }, valuesOf, onMeasure, onAxis) {
  const offer = (id, choices, label, chosen, onPick, isEnabled) =>
    segment(
      id,
      Object.fromEntries(choices.map((choice) => [choice.key, choice[label]])),
      chosen.key,
      (key) => onPick(choices.find((choice) => choice.key === key)),
      isEnabled,
    );
  const isPositive = (values) => values.flat().some((v) => v > 0);
  const hasCost = (key) => key in DATA.metrics && isPositive(valuesOf(key));
  offer("measure", measures(), "title", measure, onMeasure);
  offer("axis", offered(), "label", axis, onAxis, (key) => key === ROUNDS.key || hasCost(key));
}

export const isShare = (measure) => measure.format === FORMAT.share;
export const canLog = (values) => spread(values)[0] > 0;
export const wantsLog = (values) => canLog(values) && spread(values)[1] > 50 * spread(values)[0];

// Maps a number to a pixel (null if a logarithmic axis has none) and back.
function scale([low, high], [from, to], log) {
  const [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  const place = (v) => from + ((v - a) / (b - a)) * (to - from);
  const under = (px) => a + ((px - from) / (to - from)) * (b - a);
  return log
    ? { place: (v) => (v > 0 ? place(Math.log10(v)) : null), under: (px) => 10 ** under(px) }
    : { place, under };
}
export function niceTicks(low, high, wanted) {
  const raw = (high - low) / wanted || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, k) => (first + k) * step || 0);
}
function powersOfTen(low, high) {
  const [a, b] = [Math.log10(low), Math.log10(high)];
  const every = Math.max(1, Math.ceil((b - a) / 7));
  const first = Math.ceil(a - 1e-9);
  const count = Math.floor((b + 1e-9 - first) / every) + 1;
  return Array.from({ length: Math.max(0, count) }, (_, k) => 10 ** (first + k * every));
}

// Range of the vertical axis, with a margin around the values.
function widened([low, high], log, limit) {
  if (log) {
    const decades = Math.log10(high / low);
    const room = 10 ** (decades < 0.1 ? 0.5 : 0.04 * decades);
    return [low / room, high * room];
  }
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.1;
  return [Math.max(low >= 0 ? 0 : -Infinity, low - room), Math.min(limit, high + room)];
}

// Draws an empty plot; ranges are in the units of measure and axis.
export function axes(box, { measure, axis, log, logX, rangeX, rangeY, label }) {
  const width = Math.max(280, box.clientWidth);
  const isNarrow = width < 560;
  const height = isNarrow ? 300 : 400;
  const [left, right, top, bottom] = [isNarrow ? 50 : 62, width - 14, 30, height - 46];

  const shownY = widened(rangeY, log, isShare(measure) ? 1 : Infinity);
  const y = scale(shownY, [bottom, top], log).place;
  let ticksY = log ? powersOfTen(...shownY) : niceTicks(...shownY, height / 62);
  if (log && ticksY.length < 2) ticksY = [shownY[0], Math.sqrt(shownY[0] * shownY[1]), shownY[1]];
  const writeY = (t) => (isShare(measure) ? `${+(100 * t).toFixed(1)} %` : plain(t, log ? 2 : 4));

  const isPoint = rangeX[0] === rangeX[1];
  const shownX = isPoint ? [rangeX[0] - 1, rangeX[0] + 1] : rangeX;
  const { place: x, under } = scale(shownX, [left, right], logX);
  let ticksX = logX ? powersOfTen(...shownX) : niceTicks(...shownX, Math.min(8, width / 110));
  if (logX && ticksX.length < 2) ticksX = niceTicks(...shownX, 4).filter((t) => t > 0);
  if (axis === ROUNDS) ticksX = ticksX.filter(Number.isInteger);
  if (isPoint) ticksX = [rangeX[0]];
  const writeX = (t) => axis.format(t).replace(/\.0+(?= )|(\.\d*[1-9])0+(?= )/, "$1");

  const svg = picture(width, height, label);
  const write = (x, y, anchor, text) =>
    svg.append(make("text", { x, y, "text-anchor": anchor }, text));
  const rule = (y, stroke) =>
    svg.append(make("line", { x1: left, x2: right, y1: y, y2: y, stroke: css(stroke) }));
  const named = (title, isLog) => (isLog ? `${title} (logarithmic)` : title);
  write(0, 15, "start", named(measure.title, log));
  for (const t of ticksY) {
    rule(y(t), "--grid");
    write(left - 8, y(t) + 4.5, "end", writeY(t));
  }
  for (const t of ticksX) write(x(t), height - 24, x(t) > width - 30 ? "end" : "middle", writeX(t));
  rule(bottom, "--faint");
  write((left + right) / 2, height - 5, "middle", named(axis.title, logX));
  const guide = (px) =>
    make("line", {
      x1: px,
      x2: px,
      y1: top,
      y2: bottom,
      stroke: css("--faint"),
      "stroke-dasharray": "3 3",
    });
  return { svg, x, y, under, left, right, top, bottom, height, guide };
}
