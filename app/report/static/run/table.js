// Table of a run's peers: sort, search, pages, and selection of a peer.

import { css, line, make } from "../drawing.js";
import { compare, FORMAT, isNumber, plain, spread } from "../numbers.js";
import { byId, DATA, pick, redraw, view, watch } from "../page.js";
import { metrics } from "./metrics.js";
import { peerColour, peerName, peers, shortName } from "./peers.js";
import { collaborators } from "./weights.js";
import { signed } from "./worth.js";

const PAGE = 50;
// Sort column, current page, and the peer to which the table last turned.
const shown = { column: "Peer", down: false, page: 0, picked: null };

// Draws the curve of peer p; `values` and their range are those of all peers.
function sparkline(p, values, [low, high]) {
  const last = DATA.rounds.length - 1;
  const points = values
    .map((each, r) => [each[p], r])
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
  const largest = collaborators(p, 3, DATA.graph.rounds.length - 1).map(([j, weight]) =>
    make("span", { class: "mate" }, `${shortName(j)} `, make("span", {}, plain(weight, 2))),
  );
  return make("span", {}, ...(largest.length ? largest : ["none"]));
}

// Shows why a peer's results are no numbers to judge by, instead of the numbers.
const judged = ({ cell, values, format, ...column }) => ({
  ...column,
  values: values?.map((value, p) => (p in DATA.unjudged ? null : value)),
  cell: (p) => DATA.unjudged[p] ?? (cell ? cell(p) : format(values[p])),
});

// Returns columns: a group, a heading, and `values` by peer (sortable) with their `format`, a `cell`
// function, or both.
function mainColumns() {
  const { last, best } = DATA;
  const key = ["test_accuracy", "test_loss"].find((name) => name in DATA.metrics);
  if (!key) return [];
  const isShare = key === "test_accuracy";
  const group = isShare ? "Test accuracy" : "Test loss";
  const format = isShare ? FORMAT.share : FORMAT.fixed;
  const values = metrics()[key];
  const range = spread(values);
  const first = peers().map((p) => values.map((each) => each[p]).find(isNumber));
  const lossCell = (p) =>
    DATA.diverged.includes(p) ? "diverged" : FORMAT.fixed(last.test_loss[p]);
  const hasCourse = DATA.rounds.length > 1;
  return [
    hasCourse && { group, heading: "curve", cell: (p) => sparkline(p, values, range) },
    hasCourse && { group, heading: "first", values: first, format },
    { group, heading: "last", values: last[key], ...(isShare ? { format } : { cell: lossCell }) },
    hasCourse && best && { group, heading: "best", values: best[key], format },
    hasCourse && best && { group, heading: "best round", values: best.round, format: FORMAT.round },
    ...[
      ["balanced_accuracy", "balanced", FORMAT.share],
      ["auroc", "AUROC", FORMAT.fixed],
      ["c_index", "C-index", FORMAT.fixed],
      ["rmse", "RMSE", FORMAT.fixed],
    ].map(
      ([name, heading, format]) =>
        last[name] && { group: "Final test set", heading, values: last[name], format },
    ),
    isShare &&
      last.test_loss && {
        group: "Test loss",
        heading: "last",
        values: last.test_loss,
        cell: lossCell,
      },
  ];
}
function columns() {
  const { clusters, samples, held_out, last, took_part } = DATA;
  const cost = (key, heading, format) =>
    last[key] && { group: "Cost", heading, values: last[key], format };
  return [
    { group: "", heading: "Peer", values: peers(), format: shortName },
    clusters && { group: "", heading: "Cluster", values: clusters, cell: clusterCell },
    samples && { group: "", heading: "Samples", values: samples, format: (x) => plain(x, 7) },
    ...Object.entries(held_out ?? {}).map(([heading, values]) => ({
      group: "",
      heading,
      values,
      format: (x) => plain(x, 7),
    })),
    ...mainColumns().map((column) => column && judged(column)),
    took_part && {
      group: "Participation",
      heading: `rounds of ${FORMAT.round(took_part.of)}`,
      values: took_part.rounds,
      format: FORMAT.round,
    },
    DATA.graph && {
      group: "Largest weights",
      heading: "peer, weight",
      cell: collaboratorsCell,
      isText: true,
    },
    DATA.worth && {
      group: "Letters",
      heading: "worth for others",
      values: DATA.worth.to_others,
      format: signed,
    },
    cost("bytes_sent", "sent", FORMAT.bytes),
    cost("bytes_received", "received", FORMAT.bytes),
    cost("gradient_evaluations", "gradients", FORMAT.count),
  ]
    .filter(Boolean)
    .map((column, k, all) => ({
      ...column,
      name: `${column.group} ${column.heading}`.trim(),
      kind: `${column.isText ? "text" : ""} ${k && column.group !== all[k - 1].group ? "start" : ""}`.trim(),
    }));
}

// Returns the peers for which every search word is a prefix of a word of the name.
function matches() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  return peers().filter((p) => {
    const name = peerName(p)
      .toLowerCase()
      .split(/[\s,]+/);
    return words.every((word) => name.some((part) => part.startsWith(word)));
  });
}
// Returns the rows of the current page; turns to the page of a peer selected in a figure.
function turn(rows, isElsewhere) {
  if (isElsewhere) shown.page = Math.floor(rows.indexOf(view.picked) / PAGE);
  const last = Math.max(0, Math.ceil(rows.length / PAGE) - 1);
  shown.page = Math.min(shown.page, last);
  const first = shown.page * PAGE;
  byId("pager").hidden = DATA.peers <= PAGE;
  byId("previous").disabled = shown.page === 0;
  byId("next").disabled = shown.page === last;
  byId("page").textContent = rows.length
    ? `${first + 1} to ${Math.min(first + PAGE, rows.length)} of ${rows.length.toLocaleString("en")}`
    : "none";
  return rows.slice(first, first + PAGE);
}
function heads(all) {
  const groups = make("tr", { class: "over-head" });
  all.forEach(({ group, kind }, k) => {
    if (k && group === all[k - 1].group) groups.lastChild.colSpan += 1;
    else groups.append(make("th", { scope: "colgroup", class: kind }, group));
  });
  const headings = all.map(({ heading, values, kind, name }, k) => {
    const cell = make("th", { scope: "col", class: kind });
    if (!values) {
      cell.append(heading);
      cell.style.color = css("--soft");
      return cell;
    }
    const button = make("button", { type: "button", "data-key": `sort ${name}` }, heading);
    button.onclick = () => {
      shown.down = shown.column === name ? !shown.down : k > 1;
      shown.column = name;
      shown.page = 0;
      drawTable();
    };
    if (name === shown.column)
      cell.setAttribute("aria-sort", shown.down ? "descending" : "ascending");
    cell.append(button);
    return cell;
  });
  return [groups, make("tr", {}, ...headings)];
}

function drawTable() {
  const all = columns();
  const { values } = all.find(({ name }) => name === shown.column) ?? all[0];
  const sorted = matches().sort((a, b) => compare(values[a], values[b], shown.down));
  const isElsewhere = view.picked !== shown.picked && sorted.includes(view.picked);
  shown.picked = view.picked;
  const rows = turn(sorted, isElsewhere).map((p) => {
    const show = ({ values, format, cell }) => (cell ? cell(p) : format(values[p]));
    const cells = all.map((column) => make("td", { class: column.kind }, show(column)));
    // A click on the button bubbles to the row: keyboard and mouse select alike.
    const name = make(
      "button",
      { type: "button", "data-key": `peer ${p}`, "aria-pressed": String(p === view.picked) },
      shortName(p),
    );
    cells[0].replaceChildren(name);
    const row = make("tr", { class: p === view.picked ? "picked" : "" }, ...cells);
    row.onclick = () => {
      shown.picked = view.picked === p ? null : p; // already on this page
      pick(p);
    };
    return row;
  });
  redraw(byId("peers"), make("thead", {}, ...heads(all)), make("tbody", {}, ...rows));
  if (isElsewhere) {
    const [box, row] = [byId("peers").parentElement, byId("peers").querySelector(".picked")];
    box.scrollTop = row.offsetTop - box.clientHeight / 2;
  }
}

export function startTable() {
  const go = (by) => {
    shown.page += by;
    drawTable();
  };
  byId("previous").onclick = () => go(-1);
  byId("next").onclick = () => go(1);
  byId("search").oninput = () => {
    shown.page = 0;
    drawTable();
  };
  watch(drawTable);
}
