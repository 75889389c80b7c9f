// The table of a run's peers: sorts by a heading, follows the peer of a row.

import { css, line, make } from "../drawing.js";
import { compare, FORMAT, isNumber, plain, spread } from "../numbers.js";
import { byId, DATA, pick, view, watch } from "../page.js";
import { collaborators } from "./network.js";
import { peerColour, peers } from "./peers.js";

const sorting = { column: 0, down: false };

function sparkline(p, key) {
  const [low, high] = spread(DATA.metrics[key]);
  const last = DATA.rounds.length - 1;
  const points = DATA.metrics[key]
    .map((values, r) => [values[p], r])
    .filter(([v]) => isNumber(v))
    .map(([v, r]) => [2 + (88 * r) / Math.max(1, last), 20 - (18 * (v - low)) / (high - low || 1)]);
  const svg = make("svg", { viewBox: "0 0 92 22", width: 92, height: 22, "aria-hidden": "true" });
  if (points.length > 1) svg.append(line(points, { stroke: peerColour(p), "stroke-width": 1.6 }));
  return svg;
}
function clusterCell(p) {
  const dot = make("span", { class: "dot" });
  dot.style.background = peerColour(p);
  return make("span", {}, dot, String(DATA.clusters[p]));
}
function collaboratorsCell(p) {
  const most = collaborators(p, 3, DATA.graph.rounds.length - 1).map(([j, weight]) =>
    make("span", { class: "mate" }, `${j} `, make("span", {}, plain(weight, 2))),
  );
  return make("span", {}, ...(most.length ? most : ["nobody"]));
}

// Columns have a group, a heading, and either `values` by peer, to sort by, with their `format`,
// or a `cell`; or both.
function mainColumns() {
  const { metrics, last, best } = DATA;
  const key = ["test_accuracy", "test_loss"].find((name) => name in metrics);
  if (!key) return [];
  const isShare = key === "test_accuracy";
  const group = isShare ? "Test accuracy" : "Test loss";
  const format = isShare ? FORMAT.share : FORMAT.fixed;
  const first = peers().map((p) => metrics[key].map((values) => values[p]).find(isNumber));
  const hasCourse = DATA.rounds.length > 1;
  return [
    hasCourse && { group, heading: "course", cell: (p) => sparkline(p, key) },
    hasCourse && { group, heading: "first", values: first, format },
    { group, heading: "last", values: last[key], format },
    hasCourse && best && { group, heading: "best", values: best[key], format },
    hasCourse && best && { group, heading: "in round", values: best.round, format: FORMAT.round },
    isShare &&
      last.test_loss && {
        group: "Test loss",
        heading: "last",
        values: last.test_loss,
        format: FORMAT.fixed,
      },
  ];
}
function columns() {
  const { clusters, samples, last } = DATA;
  const cost = (key, heading, format) =>
    last[key] && { group: "Cost", heading, values: last[key], format };
  return [
    { group: "", heading: "Peer", values: peers(), format: String },
    clusters && { group: "", heading: "Cluster", values: clusters, cell: clusterCell },
    samples && { group: "", heading: "Samples", values: samples, format: (x) => plain(x, 7) },
    ...mainColumns(),
    DATA.graph && {
      group: "Listens most to",
      heading: "peer, weight",
      cell: collaboratorsCell,
      isText: true,
    },
    cost("bytes_sent", "sent", FORMAT.bytes),
    cost("bytes_received", "received", FORMAT.bytes),
    cost("gradient_evaluations", "gradients", FORMAT.count),
  ]
    .filter(Boolean)
    .map((column, k, all) => ({
      ...column,
      kind: `${column.isText ? "text" : ""} ${k && column.group !== all[k - 1].group ? "start" : ""}`.trim(),
    }));
}

function drawTable() {
  const all = columns();
  const groups = make("tr", { class: "over-head" });
  all.forEach(({ group, kind }, k) => {
    if (k && group === all[k - 1].group) groups.lastChild.colSpan += 1;
    else groups.append(make("th", { scope: "colgroup", class: kind }, group));
  });
  const headings = all.map(({ heading, values, kind }, k) => {
    const cell = make("th", { scope: "col", class: kind });
    if (!values) {
      cell.append(heading);
      cell.style.color = css("--soft");
      return cell;
    }
    const button = make("button", { type: "button" }, heading);
    button.onclick = () => {
      sorting.down = sorting.column === k ? !sorting.down : k > 1;
      sorting.column = k;
      drawTable();
    };
    if (k === sorting.column)
      cell.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    cell.append(button);
    return cell;
  });
  const { values } = all[sorting.column];
  const sorted = [...peers()].sort((a, b) => compare(values[a], values[b], sorting.down));
  const rows = sorted.map((p) => {
    const show = ({ values, format, cell }) => (cell ? cell(p) : format(values[p]));
    const cells = all.map((column) => make("td", { class: column.kind }, show(column)));
    const row = make("tr", { class: p === view.picked ? "picked" : "" }, ...cells);
    row.onclick = () => pick(p);
    return row;
  });
  byId("peers").replaceChildren(
    make("thead", {}, groups, make("tr", {}, ...headings)),
    make("tbody", {}, ...rows),
  );
}

export function startTable() {
  watch(drawTable);
}
