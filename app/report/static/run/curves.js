// Learning curves of a run: a thin line per peer, or bands for many peers; a thick line for the mean.

import { axes, canLog, isShare, measures, offerChoices, ROUNDS, wantsLog } from "../axes.js";
import { css, line, make } from "../drawing.js";
import { closest, isNumber, mean, quantile, spread } from "../numbers.js";
import { byId, DATA, hideTip, pick, segment, showTip, view, watch } from "../page.js";
import { metrics } from "./metrics.js";
import { clusterColour, clusterLegend, inText, legendEntry, peerColour, peers } from "./peers.js";

// Choices of the reader; `log` null: decided by the values.
const curves = { measure: null, axis: ROUNDS, log: null };
// Percentiles of the bands and their opacity.
const BANDS = [
  { name: "5th to 95th percentile", from: 0.05, to: 0.95, opacity: 0.16 },
  { name: "25th to 75th percentile", from: 0.25, to: 0.75, opacity: 0.26 },
];

function choose(choice) {
  Object.assign(curves, choice);
  drawCurves();
}
function offer(values, log) {
  offerChoices(
    curves,
    (key) => metrics()[key],
    (measure) => choose({ measure, log: null }),
    (axis) => choose({ axis }),
  );
  segment(
    "scale",
    { linear: "Linear", log: "Log" },
    log ? "log" : "linear",
    (key) => choose({ log: key === "log" }),
    (key) => key === "linear" || canLog(values),
  );
  byId("scale").hidden = isShare(curves.measure);
}
// Draws a line through [x, y] of each round (null: gap); a single round is drawn as dots.
function drawPath(svg, path, stroke, width, opacity) {
  const drawn = path.filter(Boolean);
  if (drawn.length > 1) svg.append(line(path, { stroke, "stroke-width": width, opacity }));
  else if (DATA.rounds.length === 1)
    for (const [cx, cy] of drawn)
      svg.append(make("circle", { cx, cy, r: width * 1.2 + 2, fill: stroke, opacity }));
}
// `at(r, v)` returns the position of a value of a round.
function drawBands(svg, values, at) {
  const sorted = values.map((each) => each.filter(isNumber).sort((a, b) => a - b));
  const edge = (share) => sorted.map((each, r) => at(r, quantile(each, share)));
  for (const { from, to, opacity } of BANDS) {
    const outline = [...edge(from), ...edge(to).reverse()].filter(Boolean);
    svg.append(line(outline, { fill: css("--accent"), opacity }));
  }
  for (const share of [0, 1]) drawPath(svg, edge(share), css("--faint"), 1, 0.7);
  if (!DATA.clusters || clusterColour().size > 12) return;
  for (const [cluster, colour] of clusterColour()) {
    const own = (each) => each.filter((_, p) => DATA.clusters[p] === cluster);
    const path = values.map((each, r) => at(r, mean(own(each))));
    drawPath(svg, path, colour, 1.6, view.picked === null ? 0.9 : 0.4);
  }
}
function drawLegend() {
  const tint = (share) => `color-mix(in srgb, var(--accent) ${100 * share}%, transparent)`;
  const each = DATA.crowd
    ? [
        ...BANDS.map(({ name, opacity }, k) =>
          legendEntry(tint(opacity + (k && BANDS[0].opacity)), name, "band"),
        ),
        legendEntry(css("--faint"), "min and max"),
        ...clusterLegend(),
      ]
    : DATA.clusters
      ? clusterLegend()
      : [legendEntry(css("--faint"), "each peer")];
  const hint =
    view.picked === null
      ? DATA.crowd
        ? "Click to select the nearest peer, or select one in the table."
        : "Click a line to select that peer."
      : `Selected: ${inText(view.picked)}. Press Escape to deselect.`;
  byId("curve-legend").replaceChildren(
    legendEntry(css("--ink"), "mean"),
    ...each,
    make("span", { class: "hint" }, hint),
  );
}

function drawCurves() {
  const isEmpty = !measures().length;
  byId("learning").hidden = isEmpty;
  if (isEmpty) return;
  curves.measure = curves.measure ?? measures()[0];
  const { measure, axis } = curves;
  const rows = [...DATA.rounds.keys()];
  const values = metrics()[measure.key];
  const xs =
    axis === ROUNDS ? DATA.rounds.map((round) => peers().map(() => round)) : metrics()[axis.key];
  const log = canLog(values) && (curves.log ?? (!isShare(measure) && wantsLog(values)));
  offer(values, log);
  const { svg, x, y, guide } = axes(byId("curves"), {
    measure,
    axis,
    log,
    rangeX: spread(xs),
    rangeY: spread(values),
    label: `${measure.title} of ${DATA.crowd ? "the peers" : "each peer"} and their mean against ${axis.title}`,
  });

  const place = (a, b) => (isNumber(a) && isNumber(b) && y(b) !== null ? [x(a), y(b)] : null);
  const paths = peers().map((p) => rows.map((r) => place(xs[r][p], values[r][p])));
  const middle = xs.map(mean);
  const meanPath = rows.map((r) => place(middle[r], mean(values[r])));
  if (DATA.crowd) drawBands(svg, values, (r, v) => place(middle[r], v));
  else {
    const opacity =
      (DATA.peers > 30 ? 0.3 : DATA.peers > 12 ? 0.45 : 0.7) * (view.picked === null ? 1 : 0.45);
    for (const p of peers())
      if (p !== view.picked)
        drawPath(svg, paths[p], DATA.clusters ? peerColour(p) : css("--faint"), 1.3, opacity);
  }
  drawPath(svg, meanPath, css("--paper"), 6, 0.85);
  drawPath(svg, meanPath, css("--ink"), 3, 1);
  if (view.picked !== null) drawPath(svg, paths[view.picked], peerColour(view.picked), 2.6, 1);

  const marks = make("g");
  svg.append(marks);
  const dot = ([cx, cy], fill) =>
    make("circle", { cx, cy, r: 5, fill, stroke: css("--paper"), "stroke-width": 2 });
  const measured = rows.filter((r) => meanPath[r]);
  let nearest = null;
  const leave = () => {
    marks.replaceChildren();
    nearest = null;
    hideTip();
  };
  svg.onpointermove = (event) => {
    const frame = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    if (!measured.length) return;
    const r = closest(measured, (r) => Math.abs(meanPath[r][0] - px));
    const here = peers().filter((p) => paths[p][r]);
    nearest = closest(here, (p) => Math.hypot(paths[p][r][0] - px, paths[p][r][1] - py));
    marks.replaceChildren(
      guide(meanPath[r][0]),
      dot(meanPath[r], css("--ink")),
      dot(paths[nearest][r], peerColour(nearest)),
    );
    const sorted = here.map((p) => values[r][p]).sort((a, b) => a - b);
    const range = (from, to) =>
      [from, to].map((share) => measure.format(quantile(sorted, share))).join(" to ");
    const cluster = DATA.clusters ? ` (cluster ${DATA.clusters[nearest]})` : "";
    showTip(event, [
      `Round ${DATA.rounds[r]}`,
      `mean ${measure.format(mean(values[r]))}`,
      `min to max ${range(0, 1)}`,
      ...(DATA.crowd ? BANDS.map(({ name, from, to }) => `${name} ${range(from, to)}`) : []),
      `${inText(nearest)}${cluster}: ${measure.format(values[r][nearest])}`,
      axis !== ROUNDS && `${axis.format(xs[r][nearest])} ${axis.title.replace(" per peer", "")}`,
    ]);
  };
  svg.onpointerleave = leave;
  svg.onclick = () => {
    const peer = nearest;
    leave();
    if (peer !== null) pick(peer);
  };
  byId("curves").replaceChildren(svg);
  drawLegend();
}

export function startCurves() {
  watch(drawCurves);
}
