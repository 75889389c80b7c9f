// The learning curves of a run: a thin line for each peer, a thick one for their mean.

import { axes, canLog, isShare, measures, offerChoices, ROUNDS, wantsLog } from "../axes.js";
import { css, line, make } from "../drawing.js";
import { closest, isNumber, mean, spread } from "../numbers.js";
import { byId, DATA, hideTip, pick, segment, showTip, view, watch } from "../page.js";
import { clusterLegend, legendEntry, peerColour, peers } from "./peers.js";

// What the reader chose; `log` is null until then, and the numbers decide.
const curves = { measure: null, axis: ROUNDS, log: null };

function choose(choice) {
  Object.assign(curves, choice);
  drawCurves();
}
function drawCurves() {
  const isEmpty = !measures().length;
  byId("learning").hidden = isEmpty;
  if (isEmpty) return;
  curves.measure = curves.measure ?? measures()[0];
  const { measure, axis } = curves;
  const rows = [...DATA.rounds.keys()];
  const values = DATA.metrics[measure.key];
  const xs =
    axis === ROUNDS ? DATA.rounds.map((round) => peers().map(() => round)) : DATA.metrics[axis.key];
  const log = canLog(values) && (curves.log ?? (!isShare(measure) && wantsLog(values)));
  offerChoices(
    curves,
    (key) => DATA.metrics[key],
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
  byId("scale").hidden = isShare(measure);
  const { svg, x, y, guide } = axes(byId("curves"), {
    measure,
    axis,
    log,
    rangeX: spread(xs),
    rangeY: spread(values),
    label: `${measure.title} of each peer and their mean against ${axis.title}`,
  });

  const place = (a, b) => (isNumber(a) && isNumber(b) && y(b) !== null ? [x(a), y(b)] : null);
  const paths = peers().map((p) => rows.map((r) => place(xs[r][p], values[r][p])));
  const meanPath = rows.map((r) => place(mean(xs[r]), mean(values[r])));
  const draw = (points, stroke, width, opacity) => {
    const drawn = points.filter(Boolean);
    if (drawn.length > 1) svg.append(line(points, { stroke, "stroke-width": width, opacity }));
    else if (rows.length === 1)
      for (const [cx, cy] of drawn)
        svg.append(make("circle", { cx, cy, r: width * 1.2 + 2, fill: stroke, opacity }));
  };
  const opacity =
    (DATA.peers > 30 ? 0.3 : DATA.peers > 12 ? 0.45 : 0.7) * (view.picked === null ? 1 : 0.45);
  for (const p of peers())
    if (p !== view.picked)
      draw(paths[p], DATA.clusters ? peerColour(p) : css("--faint"), 1.3, opacity);
  draw(meanPath, css("--paper"), 6, 0.85);
  draw(meanPath, css("--ink"), 3, 1);
  if (view.picked !== null) draw(paths[view.picked], peerColour(view.picked), 2.6, 1);

  const marks = make("g");
  svg.append(marks);
  const dot = ([cx, cy], fill) =>
    make("circle", { cx, cy, r: 5, fill, stroke: css("--paper"), "stroke-width": 2 });
  const measured = rows.filter((r) => paths.some((path) => path[r]));
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
    const [low, high] = spread(here.map((p) => values[r][p]));
    const cluster = DATA.clusters ? ` (cluster ${DATA.clusters[nearest]})` : "";
    showTip(event, [
      `Round ${DATA.rounds[r]}`,
      `mean ${measure.format(mean(values[r]))}`,
      `range ${measure.format(low)} to ${measure.format(high)}`,
      `peer ${nearest}${cluster}: ${measure.format(values[r][nearest])}`,
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
  byId("curve-legend").replaceChildren(
    legendEntry(css("--ink"), "mean"),
    ...(DATA.clusters ? clusterLegend() : [legendEntry(css("--faint"), "each peer")]),
    make(
      "span",
      {},
      view.picked === null
        ? "Click a line to follow that peer."
        : `Following peer ${view.picked}; click it to let go.`,
    ),
  );
}

export function startCurves() {
  watch(drawCurves);
}
