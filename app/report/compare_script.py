"""The comparison page's script, first part: the methods' looks, the table and the curves."""

from __future__ import annotations

TABLE = r"""
const methods = [...D.methods.keys()], DASHES = ["", "7 4", "2 3"];
const colour = (m) => PALETTE[m % PALETTE.length];
const dash = (m) => DASHES[Math.floor(m / PALETTE.length) % DASHES.length];
// A picked method stands out in all figures; a hidden one has no curve.
const view = {picked: null, hidden: new Set()};
const faded = (m) => view.picked !== null && view.picked !== m;
function pick(m) { view.picked = view.picked === m ? null : m; refresh(); }
function swatch(m) {
  const svg = make("svg", {viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true"});
  svg.append(make("line", {x1: 1, x2: 25, y1: 5, y2: 5, stroke: colour(m), "stroke-width": 3,
    "stroke-dasharray": dash(m)}));
  return svg;
}
function startTable() {
  const body = byId("results").tBodies[0], rows = [...body.rows];
  const heads = [...byId("results").tHead.rows[1].cells];
  rows.forEach((row, m) => {
    row.querySelector(".key").append(swatch(m));
    row.onclick = () => pick(m);
  });
  heads.forEach((head, k) => head.firstChild.onclick = () => {
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : k > 0 && head.dataset.better !== "low";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => k ? parseFloat(row.cells[k].dataset.value) : +row.dataset.method;
    const sorted = [...rows].sort((a, b) => {
      const [u, v] = [value(a), value(b)];
      if (Number.isNaN(u) || Number.isNaN(v)) return Number.isNaN(u) - Number.isNaN(v);
      return down ? v - u : u - v;
    });
    body.append(...sorted);
  });
  watch(() => rows.forEach((row, m) => row.classList.toggle("picked", view.picked === m)));
}
"""

CURVES = r"""
const curves = {measure: MEASURES.length ? MEASURES[0][0] : null, axis: "round", scale: "linear",
                logX: false};
const xOf = (m, r) => curves.axis === "round" ? D.rounds[r] : D.metrics[curves.axis].mean[m][r];
const lastOf = (values) => values.filter(isNumber).pop() ?? null;
// A method that pays nothing of what the axis counts: its last value is drawn across.
const isFree = (m) => curves.axis !== "round" && !(lastOf(D.metrics[curves.axis].mean[m]) > 0);

function drawCurves() {
  if (!curves.measure) return;
  const {mean: values, std} = D.metrics[curves.measure];
  const [, title, format] = MEASURES.find(([key]) => key === curves.measure);
  const [, , formatX, titleX] = AXES.find(([key]) => key === curves.axis);
  const shown = methods.filter((m) => !view.hidden.has(m) && lastOf(values[m]) !== null);
  const log = curves.scale === "log" && canLog(values);
  const logX = curves.logX && curves.axis !== "round";
  const steps = [...D.rounds.keys()];
  const usable = (m, r) => isNumber(values[m][r]) && isNumber(xOf(m, r))
    && !(logX && xOf(m, r) <= 0);
  const banded = (m) => D.seeds.length > 1 && (shown.length <= 6 || view.picked === m);
  const edges = (m, r) => banded(m) && isNumber(std[m][r])
    ? [values[m][r] - std[m][r], values[m][r] + std[m][r]].filter((v) => !log || v > 0) : [];
  const xs = shown.filter((m) => !isFree(m))
    .flatMap((m) => steps.filter((r) => usable(m, r)).map((r) => xOf(m, r)));
  const from = curves.scale === "close" ? D.rounds[D.rounds.length - 1] / 2 : 0;
  const ys = shown.flatMap((m) => steps.filter((r) => isNumber(values[m][r]) && D.rounds[r] >= from)
    .flatMap((r) => [values[m][r], ...edges(m, r)]));
  const {svg, x, y, under, pad, width, height} = axes(byId("curves"), {
    measure: curves.measure, axis: curves.axis, log, logX,
    rangeX: xs.length ? spread(xs) : [logX ? 1 : 0, logX ? 10 : 1],
    rangeY: ys.length ? spread(ys) : [0, 1], rounds: D.rounds,
    label: `${title} of each method against ${titleX}`});
  const [wide, tall] = [width - pad.left - pad.right, height - pad.top - pad.bottom];
  const inside = make("svg", {x: pad.left - 5, y: pad.top - 5, width: wide + 10, height: tall + 5,
    viewBox: `${pad.left - 5} ${pad.top - 5} ${wide + 10} ${tall + 5}`});  // clips what it holds
  svg.append(inside);
  const points = (m) => isFree(m)
    ? [[pad.left, steps.length - 1], [width - pad.right, steps.length - 1]]
      .map(([px]) => [px, y(lastOf(values[m])), lastOf(std[m]) ?? 0, lastOf(values[m])])
    : steps.filter((r) => usable(m, r))
      .map((r) => [x(xOf(m, r)), y(values[m][r]), std[m][r] ?? 0, values[m][r]]);
  const drawn = shown.map((m) => [m, points(m).filter(([, py]) => py !== null)]);
  drawn.filter(([m]) => banded(m)).forEach(([m, at]) => {
    const side = (sign) => at.map(([px, , s, v]) =>
      `${px.toFixed(1)} ${(y(v + sign * s) ?? height).toFixed(1)}`);
    if (at.length > 1) inside.append(make("path", {d: `M${[...side(1), ...side(-1).reverse()]
      .join("L")}Z`, fill: colour(m), opacity: faded(m) ? 0.04 : 0.16}));
  });
  [...drawn].sort(([a], [b]) => (view.picked === a) - (view.picked === b)).forEach(([m, at]) => {
    const style = {stroke: colour(m), "stroke-width": view.picked === m ? 3.6 : 2.2,
      opacity: faded(m) ? 0.22 : 1};
    if (at.length === 1) inside.append(make("circle", {cx: at[0][0], cy: at[0][1], r: 4.5,
      fill: colour(m), opacity: style.opacity}));
    else inside.append(make("path", {d: `M${at.map(([px, py]) =>
      `${px.toFixed(1)} ${py.toFixed(1)}`).join("L")}`, fill: "none", "stroke-linejoin": "round",
      "stroke-dasharray": isFree(m) ? "1 5" : dash(m), "stroke-linecap": isFree(m) ? "round"
        : "butt", ...style}));
  });
  const guide = make("line", {y1: pad.top, y2: height - pad.bottom, stroke: css("--faint"),
    "stroke-dasharray": "3 3", visibility: "hidden"});
  const dots = make("g");
  inside.append(guide, dots);
  let nearest = null;
  svg.onpointermove = (event) => {
    const frame = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const close = (at) => at.reduce((a, b) => Math.abs(b[0] - px) < Math.abs(a[0] - px) ? b : a);
    const here = drawn.filter(([, at]) => at.length).map(([m, at]) =>
      isFree(m) ? [m, [px, ...at[0].slice(1)]] : [m, close(at)]);
    if (!here.length) return;
    here.sort(([, a], [, b]) => curves.measure.endsWith("accuracy") ? b[3] - a[3] : a[3] - b[3]);
    nearest = here.reduce((a, b) => Math.abs(b[1][1] - py) < Math.abs(a[1][1] - py) ? b : a)[0];
    const round = curves.axis === "round"
      ? D.rounds.reduce((a, b) => Math.abs(x(b) - px) < Math.abs(x(a) - px) ? b : a) : null;
    const at = Math.min(width - pad.right, Math.max(pad.left, round === null ? px : x(round)));
    guide.setAttribute("x1", at); guide.setAttribute("x2", at);
    guide.setAttribute("visibility", "visible");
    dots.replaceChildren(...here.map(([m, [cx, cy]]) => make("circle", {cx, cy,
      r: m === nearest ? 5.5 : 3.5, fill: colour(m), stroke: css("--paper"),
      "stroke-width": 1.5})));
    const some = here.length > 12;
    const lines = here.map(([m, [, , s, v]]) => {
      const line = make("span", {class: "line"}, swatch(m), make("span", {}, D.methods[m]),
        make("span", {}, format(v) + (D.seeds.length > 1 && !some
          ? ` ± ${format === FORMAT.share ? (100 * s).toFixed(1) : plain(s, 2)}` : "")));
      if (m === nearest) line.style.fontWeight = "700";
      return line;
    });
    tip(event, [round === null ? `${formatX(under(at))} ${titleX.split(" ").slice(-3).join(" ")}`
                               : `Round ${FORMAT.round(round)}`, ...lines], some);
  };
  svg.onpointerleave = () => {
    guide.setAttribute("visibility", "hidden"); dots.replaceChildren(); tip(null, null);
  };
  svg.onclick = () => { tip(null, null); if (nearest !== null) pick(nearest); };
  byId("curves").replaceChildren(svg);
  drawKeys();
  const free = shown.filter(isFree).map((m) => D.methods[m]);
  byId("curve-note").textContent = [
    free.length && `Dotted across: the last value of ${free.join(", ")}, which has no such cost.`,
    D.seeds.length > 1 && shown.length > 6
      && "With this many curves, only the picked method shows its band: click a curve or a row."
  ].filter(Boolean).join(" ");
}
function drawKeys() {
  const every = make("button", {type: "button"}, view.hidden.size ? "show all" : "hide all");
  every.onclick = () => {
    view.hidden = new Set(view.hidden.size ? [] : methods);
    refresh();
  };
  byId("keys").replaceChildren(...methods.map((m) => {
    const button = make("button", {type: "button", "aria-pressed": String(!view.hidden.has(m))},
      swatch(m), D.methods[m]);
    button.onclick = () => {
      if (!view.hidden.delete(m)) view.hidden.add(m);
      refresh();
    };
    return button;
  }), ...(methods.length > 2 ? [every] : []));
}
function startCurves() {
  if (!curves.measure) return;
  const scale = () => {
    const values = D.metrics[curves.measure].mean, accuracy = curves.measure.endsWith("accuracy");
    curves.scale = !accuracy && wantsLog(values) ? "log" : "linear";
    segment(byId("scale"), [["linear", accuracy ? "Whole" : "Linear", true],
      ...(accuracy ? [] : [["log", "Log", canLog(values)]]), ["close", "Close-up", true]],
      curves.scale, (key) => { curves.scale = key; drawCurves(); });
  };
  const scaleX = () => {
    const ends = methods.filter((m) => !isFree(m)).map((m) =>
      curves.axis === "round" ? 1 : lastOf(D.metrics[curves.axis].mean[m]));
    curves.logX = ends.length > 0 && Math.max(...ends) > 20 * Math.min(...ends);
    segment(byId("scale-x"), [["linear", "Cost linear", true], ["log", "Cost log", true]],
      curves.logX ? "log" : "linear", (key) => { curves.logX = key === "log"; drawCurves(); });
    byId("scale-x").hidden = curves.axis === "round";
  };
  segment(byId("measure"), MEASURES.map(([key, label]) => [key, label, true]), curves.measure,
    (key) => { curves.measure = key; scale(); drawCurves(); });
  const usable = (key) => key === "round"
    || (key in D.metrics && D.metrics[key].mean.flat().some((v) => v > 0));
  segment(byId("axis"), AXES.map(([key, label]) => [key, label, usable(key)]), "round",
    (key) => { curves.axis = key; scaleX(); drawCurves(); });
  scale(); scaleX();
  watch(drawCurves);
}
"""
