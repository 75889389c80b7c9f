"""The report page's script, last part: split statistics, the table of peers, and the start."""

TABLE = r"""
function drawSplit() {
  if (!D.labels) return;
  const canvas = byId("split"), n = D.peers, classes = D.labels[0].length;
  const width = canvas.parentElement.clientWidth, left = 34, bars = 62, gapAfter = 14;
  const cell = Math.min(84, (width - left) / n);
  const tall = Math.max(4, Math.min(20, 420 / classes));
  const numbers = cell >= 17 ? 20 : 0, top = bars + gapAfter + numbers;
  const ink = prepare(canvas, left + n * cell + 1, top + classes * tall + 1), shade = ramp();
  const most = Math.max(1, ...D.labels.flat());
  const sizes = D.labels.map((row) => row.reduce((a, b) => a + b, 0));
  const largest = Math.max(1, ...sizes), gap = cell > 12 ? 2 : 0.5;
  ink.textBaseline = "middle";
  D.order.forEach((p, k) => {
    const x = left + k * cell, high = bars * sizes[p] / largest;
    ink.globalAlpha = view.peer === null || view.peer === p ? 1 : 0.35;
    ink.fillStyle = peerColour(p); ink.fillRect(x, bars - high + 2, cell - gap, high);
    if (numbers) {
      ink.fillStyle = css(p === view.peer ? "--ink" : "--soft"); ink.textAlign = "center";
      ink.fillText(p, x + (cell - gap) / 2, bars + 14);
    }
    D.labels[p].forEach((count, label) => {
      ink.fillStyle = shade(count / most);
      ink.fillRect(x, top + label * tall, cell - gap, tall - (tall > 8 ? 2 : 0));
    });
  });
  ink.globalAlpha = 1; ink.fillStyle = css("--soft"); ink.textAlign = "right";
  const every = Math.ceil(14 / tall);
  for (let label = 0; label < classes; label += every)
    ink.fillText(label, left - 8, top + (label + 0.5) * tall - 1);
  ink.fillText(largest, left - 8, 8);
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const k = Math.floor((event.clientX - box.left - left) / cell);
    return k >= 0 && k < n ? [D.order[k], Math.floor((event.clientY - box.top - top) / tall)]
                           : null;
  };
  canvas.onpointermove = (event) => {
    const found = at(event);
    if (!found) { tip(null, null); return; }
    const [p, label] = found;
    tip(event, [`Peer ${p}${D.clusters ? `, cluster ${D.clusters[p]}` : ""}`,
      `${sizes[p]} training examples`,
      label >= 0 && label < classes && `${D.labels[p][label]} of class ${label}`]);
  };
  canvas.onpointerleave = () => tip(null, null);
  canvas.onclick = (event) => { const found = at(event); if (found) pick(found[0]); };
  byId("split-top").textContent = most;
}

function sparkline(p, key) {
  const values = D.metrics[key].map((row) => row[p]);
  const [low, high] = spread(D.metrics[key]);
  const svg = make("svg", {viewBox: "0 0 92 22", width: 92, height: 22, "aria-hidden": "true"});
  const points = values.map((v, r) => [2 + 88 * r / Math.max(1, values.length - 1),
    isNumber(v) ? 20 - 18 * (v - low) / (high - low || 1) : null]).filter(([, y]) => y !== null);
  if (points.length > 1) svg.append(make("path", {fill: "none", stroke: peerColour(p),
    "stroke-width": 1.6, d: `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`)
      .join("L")}`}));
  return svg;
}
const sorting = {column: 0, down: false};
// One entry per column: group, heading, sort key or null, cell, class.
function columns() {
  const has = (key) => key in D.metrics;
  const first = (key) => (p) => D.metrics[key].map((row) => row[p]).find(isNumber) ?? null;
  const last = (key) => (p) => D.last[key][p];
  const list = [["", "Peer", (p) => p, (p) => String(p)]];
  if (D.clusters) list.push(["", "Cluster", (p) => D.clusters[p], (p) => {
    const dot = make("span", {class: "dot"});
    dot.style.background = peerColour(p);
    return make("span", {}, dot, String(D.clusters[p]));
  }]);
  if (D.samples) list.push(["", "Samples", (p) => D.samples[p], (p) => plain(D.samples[p], 7)]);
  const main = has("test_accuracy") ? "test_accuracy" : has("test_loss") ? "test_loss" : null;
  if (main) {
    const [name, format] = main === "test_accuracy" ? ["Test accuracy", FORMAT.share]
                                                    : ["Test loss", FORMAT.fixed];
    const course = D.rounds.length > 1;
    if (course) list.push([name, "course", null, (p) => sparkline(p, main)],
      [name, "first", first(main), (p) => format(first(main)(p))]);
    list.push([name, "last", last(main), (p) => format(last(main)(p))]);
    if (D.best && course) list.push(
      [name, "best", (p) => D.best[main][p], (p) => format(D.best[main][p])],
      [name, "in round", (p) => D.best.round[p], (p) => FORMAT.round(D.best.round[p])]);
    if (main === "test_accuracy" && has("test_loss")) list.push(["Test loss", "last",
      last("test_loss"), (p) => FORMAT.fixed(last("test_loss")(p))]);
  }
  if (G) list.push(["Listens most to", "peer, weight", null, (p) => {
    const mates = collaborators(p, G.rounds.length - 1, 3);
    return make("span", {}, ...(mates.length ? mates.map(([j, w]) =>
      make("span", {class: "mate"}, `${j} `, make("span", {}, plain(w, 2)))) : ["nobody"]));
  }, "text"]);
  [["Cost", "bytes_sent", "sent", FORMAT.bytes],
   ["Cost", "bytes_received", "received", FORMAT.bytes],
   ["Cost", "gradient_evaluations", "gradients", FORMAT.count]].filter(([, key]) => has(key))
    .forEach(([group, key, label, format]) =>
      list.push([group, label, last(key), (p) => format(last(key)(p))]));
  return list.map((column, k) =>
    [...column.slice(0, 4), `${column[4] || ""} ${k && column[0] !== list[k - 1][0]
      ? "start" : ""}`]);
}
function drawTable() {
  const list = columns(), rank = list[sorting.column][2];
  const rows = [...peers].sort((a, b) => {
    const [u, v] = [rank(a), rank(b)];
    if (!isNumber(u) || !isNumber(v)) return isNumber(u) ? -1 : isNumber(v) ? 1 : a - b;
    return (sorting.down ? v - u : u - v) || a - b;
  });
  const over = make("tr", {class: "over-head"});
  list.forEach(([group, , , , kind], k) => {
    if (k && group === list[k - 1][0]) over.lastChild.colSpan += 1;
    else over.append(make("th", {scope: "colgroup", class: kind}, group));
  });
  const head = make("tr", {}, ...list.map(([, label, key, , kind], k) => {
    const cell = make("th", {scope: "col", class: kind});
    if (!key) { cell.append(label); cell.style.color = css("--soft"); return cell; }
    const button = make("button", {type: "button"}, label);
    button.onclick = () => {
      sorting.down = sorting.column === k ? !sorting.down : k > 1;
      sorting.column = k; drawTable();
    };
    if (k === sorting.column)
      cell.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    cell.append(button);
    return cell;
  }));
  const body = rows.map((p) => {
    const row = make("tr", {class: p === view.peer ? "picked" : ""},
      ...list.map(([, , , show, kind]) => make("td", {class: kind}, show(p))));
    row.onclick = () => pick(p);
    return row;
  });
  byId("peers").replaceChildren(make("thead", {}, over, head), make("tbody", {}, ...body));
}

startCurves();
startNetwork();
if (D.labels) watch(drawSplit);
watch(drawTable);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && view.peer !== null) pick(view.peer);
});
start();
"""
