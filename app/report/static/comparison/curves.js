// Learning curves of a comparison: a line per method, a band for the deviation over seeds.

import { axes, canLog, isShare, measures, offerChoices, ROUNDS, wantsLog } from "../axes.js";
import { css, line, make } from "../drawing.js";
import { closest, isNumber, plain, spread } from "../numbers.js";
import {
  byId,
  DATA,
  hideTip,
  pick,
  redraw,
  refresh,
  segment,
  showTip,
  view,
  watch,
} from "../page.js";
import { colour, dash, isFaded, methods, swatch } from "./methods.js";

const curves = { measure: measures()[0], axis: ROUNDS, scale: "linear", logX: false };
let hidden = new Set();

const meansOf = (key) => DATA.metrics[key].mean;
const lastOf = (values) => values.filter(isNumber).at(-1);
// Returns whether a method has no cost on this axis; its last value is drawn as a dotted line.
const isFreeOf = (m) => curves.axis !== ROUNDS && !(lastOf(meansOf(curves.axis.key)[m]) > 0);

// Returns the measurements of a method; `at` is the position on the axis, in rounds or cost.
function pointsOf(m) {
  const { mean, std } = DATA.metrics[curves.measure.key];
  return DATA.rounds
    .map((round, r) => ({
      round,
      at: curves.axis === ROUNDS ? round : meansOf(curves.axis.key)[m][r],
      value: mean[m][r],
      deviation: std[m][r] ?? 0,
    }))
    .filter(({ value }) => isNumber(value));
}
// Returns the points in pixels; `isOnAxis` selects the points that the axis can show.
function placed({ m, points, isFree }, { x, y, left, right }, isOnAxis) {
  const at = isFree
    ? [left, right].map((px) => ({ ...points.at(-1), x: px }))
    : points.filter(isOnAxis).map((point) => ({ ...point, x: x(point.at) }));
  const all = at.map((point) => ({ ...point, y: y(point.value) }));
  return { m, isFree, points: all.filter((point) => point.y !== null) };
}
function drawBand({ m, points }, { y, height }) {
  const edge = (sign) => points.map((p) => [p.x, y(p.value + sign * p.deviation) ?? height]);
  const opacity = isFaded(m) ? 0.04 : 0.16;
  return line([...edge(1), ...edge(-1).reverse()], { fill: colour(m), opacity });
}
function drawLine({ m, points, isFree }) {
  const opacity = isFaded(m) ? 0.22 : 1;
  if (points.length === 1)
    return make("circle", { cx: points[0].x, cy: points[0].y, r: 4.5, fill: colour(m), opacity });
  const style = {
    stroke: colour(m),
    "stroke-width": view.picked === m ? 3.6 : 2.2,
    "stroke-dasharray": isFree ? "1 5" : dash(m),
    "stroke-linecap": isFree ? "round" : "butt",
    opacity,
  };
  return line(
    points.map(({ x, y }) => [x, y]),
    style,
  );
}

function drawCurves() {
  const { measure, axis, scale } = curves;
  const series = methods
    .filter((m) => !hidden.has(m))
    .map((m) => ({ m, points: pointsOf(m), isFree: isFreeOf(m) }))
    .filter(({ points }) => points.length);
  const log = scale === "log" && canLog(meansOf(measure.key));
  const logX = curves.logX && axis !== ROUNDS;
  const isOnAxis = ({ at }) => isNumber(at) && !(logX && at <= 0);
  const hasBand = ({ m }) => DATA.seeds.length > 1 && (series.length <= 6 || view.picked === m);

  const from = scale === "close" ? DATA.rounds.at(-1) / 2 : 0;
  const xs = series
    .filter(({ isFree }) => !isFree)
    .flatMap(({ points }) => points.filter(isOnAxis).map(({ at }) => at));
  const ys = series
    .flatMap((each) =>
      each.points.map((point) => ({ ...point, reach: hasBand(each) ? point.deviation : 0 })),
    )
    .filter(({ round }) => round >= from)
    .flatMap(({ value, reach }) => [value, value - reach, value + reach])
    .filter((v) => !log || v > 0);
  const plot = axes(byId("curves"), {
    measure,
    axis,
    log,
    logX,
    rangeX: xs.length ? spread(xs) : logX ? [1, 10] : [0, 1],
    rangeY: ys.length ? spread(ys) : [0, 1],
    label: `${measure.title} of each method against ${axis.title}`,
  });

  const { svg, left, right, top, bottom } = plot;
  const [x, y, width, height] = [left - 5, top - 5, right - left + 10, bottom - top + 5];
  const clip = make("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` });
  svg.append(clip);
  const drawn = series.map((each) => placed(each, plot, isOnAxis));
  const isPicked = ({ m }) => m === view.picked;
  for (const each of drawn)
    if (hasBand(each) && each.points.length > 1) clip.append(drawBand(each, plot));
  for (const each of [...drawn].sort((a, b) => isPicked(a) - isPicked(b)))
    if (each.points.length) clip.append(drawLine(each));
  followPointer(
    plot,
    clip,
    drawn.filter(({ points }) => points.length),
  );
  byId("curves").replaceChildren(svg);
  drawKeys();
  const free = series.filter(({ isFree }) => isFree).map(({ m }) => DATA.methods[m]);
  const notes = [
    free.length && `Dotted: last value of ${free.join(", ")}; no cost on this axis.`,
    DATA.seeds.length > 1 &&
      series.length > 6 &&
      "With more than 6 curves, only the selected method shows its band.",
  ];
  byId("curve-note").textContent = notes.filter(Boolean).join(" ");
}
// Shows the values of all methods at the round or cost under the pointer; a click selects the nearest.
function followPointer({ svg, x, under, left, right, guide }, clip, drawn) {
  const { measure, axis } = curves;
  const marks = make("g");
  clip.append(marks);
  let nearest = null;
  const write = ({ value, deviation }) => {
    if (DATA.seeds.length === 1 || drawn.length > 12) return measure.format(value);
    const written = isShare(measure) ? (100 * deviation).toFixed(1) : plain(deviation, 2);
    return `${measure.format(value)} ± ${written}`;
  };
  const entry = ({ m, point }) => {
    const [name, numbers] = [DATA.methods[m], write(point)].map((text) => make("span", {}, text));
    const entry = make("span", { class: "line" }, swatch(m), name, numbers);
    if (m === nearest) entry.style.fontWeight = "700";
    return entry;
  };
  svg.onpointermove = (event) => {
    if (!drawn.length) return;
    const frame = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const here = drawn.map(({ m, points, isFree }) => ({
      m,
      point: isFree ? { ...points[0], x: px } : closest(points, (point) => Math.abs(point.x - px)),
    }));
    const sign = isShare(measure) ? -1 : 1;
    here.sort((a, b) => sign * (a.point.value - b.point.value));
    nearest = closest(here, ({ point }) => Math.abs(point.y - py)).m;
    const round = axis === ROUNDS ? closest(DATA.rounds, (each) => Math.abs(x(each) - px)) : null;
    const at = Math.min(right, Math.max(left, round === null ? px : x(round)));
    const dots = here.map(({ m, point }) =>
      make("circle", {
        cx: point.x,
        cy: point.y,
        r: m === nearest ? 5.5 : 3.5,
        fill: colour(m),
        stroke: css("--paper"),
        "stroke-width": 1.5,
      }),
    );
    marks.replaceChildren(guide(at), ...dots);
    const heading =
      round === null
        ? `${axis.format(under(at))} ${axis.title.split(" ").slice(-3).join(" ")}`
        : `Round ${axis.format(round)}`;
    showTip(event, [heading, ...here.map(entry)], here.length > 12);
  };
  svg.onpointerleave = () => {
    marks.replaceChildren();
    hideTip();
  };
  svg.onclick = () => {
    hideTip();
    if (nearest !== null) pick(nearest);
  };
}
function drawKeys() {
  const keys = methods.map((m) => {
    const isHidden = hidden.has(m);
    const key = make(
      "button",
      { type: "button", "data-key": m, "aria-pressed": String(!isHidden) },
      swatch(m),
      DATA.methods[m],
    );
    key.onclick = () => {
      if (!hidden.delete(m)) hidden.add(m);
      refresh();
    };
    return key;
  });
  if (methods.length > 2) {
    const label = hidden.size ? "show all" : "hide all";
    const all = make("button", { type: "button", "data-key": "all" }, label);
    all.onclick = () => {
      hidden = new Set(hidden.size ? [] : methods);
      refresh();
    };
    keys.push(all);
  }
  redraw(byId("keys"), ...keys);
}

export function startCurves() {
  if (!measures().length) return;
  const startScale = () => {
    const values = meansOf(curves.measure.key);
    curves.scale = !isShare(curves.measure) && wantsLog(values) ? "log" : "linear";
    const labels = isShare(curves.measure)
      ? { linear: "Full range", close: "Zoom" }
      : { linear: "Linear", log: "Log", close: "Zoom" };
    const choose = (key) => {
      curves.scale = key;
      drawCurves();
    };
    segment("scale", labels, curves.scale, choose, (key) => key !== "log" || canLog(values));
  };
  const startScaleX = () => {
    byId("scale-x").hidden = curves.axis === ROUNDS;
    if (curves.axis === ROUNDS) return;
    const costs = methods
      .filter((m) => !isFreeOf(m))
      .map((m) => lastOf(meansOf(curves.axis.key)[m]));
    curves.logX = costs.length > 0 && Math.max(...costs) > 20 * Math.min(...costs);
    const choose = (key) => {
      curves.logX = key === "log";
      drawCurves();
    };
    const labels = { linear: "Linear cost", log: "Log cost" };
    segment("scale-x", labels, curves.logX ? "log" : "linear", choose);
  };
  offerChoices(
    curves,
    meansOf,
    (measure) => {
      curves.measure = measure;
      startScale();
      drawCurves();
    },
    (axis) => {
      curves.axis = axis;
      startScaleX();
      drawCurves();
    },
  );
  startScale();
  startScaleX();
  watch(drawCurves);
}
