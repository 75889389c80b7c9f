// Worth of letters: a map of recipients and senders, beside the collaboration weights.

import { decode, isNumber, plain } from "../numbers.js";
import { byId, DATA, fromData, segment, watch } from "../page.js";
import { blockMap, isExact } from "./block_map.js";
import { drawWeights } from "./network.js";
import { blockName, blocks, inText } from "./peers.js";

const worthView = { kind: "shapley" };
const WORTH_KINDS = { shapley: "Shapley values", leave_one_out: "Leave-one-out" };

const worthTables = fromData(({ worth }) => ({
  shapley: worth.shapley && decode(worth.shapley, 3),
  leave_one_out: decode(worth.leave_one_out, 3),
  errors: decode(worth.errors, 3),
}));
const inPoints = () => DATA.worth.measure.endsWith("accuracy");

// Formats a worth with its sign.
export function signed(value) {
  if (!isNumber(value)) return plain(value);
  const text = inPoints() ? (100 * value).toFixed(1) : plain(value, 3);
  return Number(text) > 0 ? `+${text}` : Number(text) === 0 ? text.replace("-", "") : text;
}
const withUnit = (value) => `${signed(value)}${inPoints() ? " points" : ""}`;

function worthReadOut(kind, a, b) {
  const at = a * blocks().length + b;
  const [recipient, sender] = [blocks()[a], blocks()[b]];
  const value = withUnit(worthTables()[kind][at]);
  const error = worthTables().errors[at];
  const hasError = kind === "shapley" && isNumber(error) && error > 0 && isExact();
  const text = hasError ? `${value} ± ${signed(error).replace("+", "")}` : value;
  if (!isExact())
    return [`letters of ${blockName(sender)}`, `for ${blockName(recipient)}`, `mean ${text}`];
  const [i, j] = [recipient[0], sender[0]];
  return [
    i === j ? `own letters of ${inText(i)}` : `letters of ${inText(j)} for ${inText(i)}`,
    text,
    i === j && "they come back to it in the models of others",
  ];
}

function drawWorth() {
  if (!DATA.worth) return;
  const kinds = Object.entries(WORTH_KINDS).filter(([key]) => worthTables()[key]);
  const kind = worthTables()[worthView.kind] ? worthView.kind : "leave_one_out";
  segment("worth-kind", Object.fromEntries(kinds), kind, (key) => {
    worthView.kind = key;
    drawWorth();
  });
  byId("worth-kind").hidden = kinds.length === 1;
  const values = worthTables()[kind];
  const top = Math.max(...[...values].filter(isNumber).map(Math.abs), 0);
  byId("worth-low").textContent = withUnit(-top);
  byId("worth-high").textContent = withUnit(top);
  blockMap(byId("worth-map"), {
    share: (a, b) => values[a * blocks().length + b] / (top || 1),
    readOut: (a, b) => worthReadOut(kind, a, b),
  });
  byId("worth-beside").hidden = !DATA.graph;
  if (DATA.graph) drawWeights(byId("worth-weights"), DATA.graph.rounds.length - 1);
}

export function startWorth() {
  watch(drawWorth);
}
