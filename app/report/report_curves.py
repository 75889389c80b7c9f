"""The report page's script, first part: the peers and the curves."""

from __future__ import annotations

CURVES = r"""
const peers = [...Array(D.peers).keys()];
const clusterIds = idsOf(D.clusters);
const clusterColour = (cluster) => paint(clusterIds.indexOf(cluster));
const peerColour = (p) => D.clusters ? clusterColour(D.clusters[p]) : css("--accent");

// Everything that depends on the picked peer or the frame registers here.
const view = {peer: null, frame: D.graph ? D.graph.rounds.length - 1 : 0};
function pick(peer) { view.peer = view.peer === peer ? null : peer; refresh(); }

function clusterLegend(kind) {
  if (clusterIds.length > 12) return [make("span", {}, "coloured by true cluster")];
  return clusterIds.map((cluster) => {
    const mark = make("i", {class: kind});
    mark.style.background = clusterColour(cluster);
    return make("span", {}, mark, `cluster ${cluster}`);
  });
}
const curves = {measure: MEASURES.length ? MEASURES[0][0] : null, axis: "round", log: false};

function drawCurves() {
  if (!curves.measure) return;
  const values = D.metrics[curves.measure];
  const [, title, format] = MEASURES.find(([key]) => key === curves.measure);
  const [, , formatX, titleX] = AXES.find(([key]) => key === curves.axis);
  const xOf = (r, p) => curves.axis === "round" ? D.rounds[r] : D.metrics[curves.axis][r][p];
  const meanX = D.rounds.map((_, r) => mean(peers.map((p) => xOf(r, p))));
  const meanY = values.map((row) => mean(row));
  const xs = D.rounds.flatMap((_, r) => peers.map((p) => xOf(r, p))).filter(isNumber);
  const log = curves.log && canLog(values);
  const {svg, x, y, pad, height} = axes(byId("curves"), {
    measure: curves.measure, axis: curves.axis, log, rangeY: spread(values), rangeX: spread(xs),
    rounds: D.rounds, label: `${title} of each peer and their mean against ${titleX}`});
  const trace = (xAt, yAt, style) => {
    let path = "", pen = "M", drawn = 0;
    D.rounds.forEach((_, r) => {
      const [a, b] = [xAt(r), isNumber(yAt(r)) ? y(yAt(r)) : null];
      if (!isNumber(a) || b === null) { pen = "M"; return; }
      path += `${pen}${x(a).toFixed(1)} ${b.toFixed(1)}`; pen = "L"; drawn += 1;
      if (D.rounds.length === 1) svg.append(make("circle", {cx: x(a), cy: b,
        r: style["stroke-width"] * 1.2 + 2, fill: style.stroke, opacity: style.opacity}));
    });
    if (drawn > 1) svg.append(make("path", {d: path, fill: "none",
      "stroke-linejoin": "round", ...style}));
  };
  const thin = D.peers > 30 ? 0.3 : D.peers > 12 ? 0.45 : 0.7;
  peers.filter((p) => p !== view.peer).forEach((p) => trace((r) => xOf(r, p), (r) => values[r][p],
    {stroke: D.clusters ? peerColour(p) : css("--faint"), "stroke-width": 1.3,
     opacity: view.peer === null ? thin : thin * 0.45}));
  trace((r) => meanX[r], (r) => meanY[r], {stroke: css("--paper"), "stroke-width": 6,
    opacity: 0.85});
  trace((r) => meanX[r], (r) => meanY[r], {stroke: css("--ink"), "stroke-width": 3, opacity: 1});
  if (view.peer !== null) trace((r) => xOf(r, view.peer), (r) => values[r][view.peer],
    {stroke: peerColour(view.peer), "stroke-width": 2.6, opacity: 1});
  const guide = make("line", {y1: pad.top, y2: height - pad.bottom, stroke: css("--faint"),
    "stroke-dasharray": "3 3", visibility: "hidden"});
  const dot = make("circle", {r: 5, stroke: css("--paper"), "stroke-width": 2,
    visibility: "hidden"});
  const meanDot = make("circle", {r: 5, fill: css("--ink"), stroke: css("--paper"),
    "stroke-width": 2, visibility: "hidden"});
  svg.append(guide, meanDot, dot);
  let nearest = null;
  const hide = () => {
    [guide, dot, meanDot].forEach((node) => node.setAttribute("visibility", "hidden"));
    nearest = null; tip(null, null);
  };
  svg.onpointermove = (event) => {
    const frame = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const rows = D.rounds.map((_, r) => r).filter((r) => isNumber(meanY[r]) && isNumber(meanX[r]));
    if (!rows.length) return;
    const r = rows.reduce((a, b) =>
      Math.abs(x(meanX[b]) - px) < Math.abs(x(meanX[a]) - px) ? b : a);
    const here = peers.filter((p) => isNumber(values[r][p]) && isNumber(xOf(r, p))
                                     && y(values[r][p]) !== null);
    const away = (p) => Math.hypot(x(xOf(r, p)) - px, y(values[r][p]) - py);
    nearest = here.reduce((a, b) => away(b) < away(a) ? b : a, here[0]);
    guide.setAttribute("x1", x(meanX[r])); guide.setAttribute("x2", x(meanX[r]));
    meanDot.setAttribute("cx", x(meanX[r])); meanDot.setAttribute("cy", y(meanY[r]));
    dot.setAttribute("cx", x(xOf(r, nearest))); dot.setAttribute("cy", y(values[r][nearest]));
    dot.setAttribute("fill", peerColour(nearest));
    [guide, dot, meanDot].forEach((node) => node.setAttribute("visibility", "visible"));
    const some = here.map((p) => values[r][p]);
    tip(event, [`Round ${D.rounds[r]}`, `mean ${format(meanY[r])}`,
      `range ${format(Math.min(...some))} to ${format(Math.max(...some))}`,
      `peer ${nearest}${D.clusters ? ` (cluster ${D.clusters[nearest]})` : ""}: `
        + format(values[r][nearest]),
      curves.axis !== "round" && `${formatX(xOf(r, nearest))} ${titleX.replace(" per peer", "")}`]);
  };
  svg.onpointerleave = hide;
  svg.onclick = () => { const p = nearest; hide(); if (p !== null) pick(p); };
  byId("curves").replaceChildren(svg);
  const stroke = make("i"); stroke.style.background = css("--ink");
  const grey = make("i"); grey.style.background = css("--faint");
  byId("curve-legend").replaceChildren(make("span", {}, stroke, "mean"),
    ...(D.clusters ? clusterLegend("") : [make("span", {}, grey, "each peer")]),
    view.peer === null ? make("span", {}, "Click a line to follow that peer.")
                       : make("span", {}, `Following peer ${view.peer}; click it to let go.`));
}
function startCurves() {
  if (!curves.measure) return;
  const setLog = () => {
    const values = D.metrics[curves.measure], accuracy = curves.measure.endsWith("accuracy");
    curves.log = !accuracy && wantsLog(values);
    segment(byId("scale"), [["linear", "Linear", true], ["log", "Log", canLog(values)]],
      curves.log ? "log" : "linear", (key) => { curves.log = key === "log"; drawCurves(); });
    byId("scale").hidden = accuracy;
  };
  segment(byId("measure"), MEASURES.map(([key, label]) => [key, label, true]), curves.measure,
    (key) => { curves.measure = key; setLog(); drawCurves(); });
  const usable = (key) => key === "round"
    || (key in D.metrics && D.metrics[key].flat().some((v) => v > 0));
  segment(byId("axis"), AXES.map(([key, label]) => [key, label, usable(key)]), "round",
    (key) => { curves.axis = key; drawCurves(); });
  setLog();
  watch(drawCurves);
}
"""
