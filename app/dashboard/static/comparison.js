// Live page of a comparison.

import { startFigures } from "../../report/static/comparison/figures.js";
import { DATA, show, start } from "../../report/static/page.js";
import { follow } from "./live.js";

// Returns the structure that the figures depend on.
const shape = ({ methods, seeds, metrics, gains, maps }) =>
  JSON.stringify([methods, seeds, Object.keys(metrics), !gains, maps?.of.map(({ seed }) => seed)]);

const rowsOf = (page) => [...page.querySelectorAll(".measures tbody tr")];
const keyOf = (row) => `${row.closest("section").id} ${row.dataset.row}`;
const cellsOf = (page) => rowsOf(page).map((row) => row.cells.length);
function showResults(page) {
  const old = new Map(rowsOf(document).map((row) => [keyOf(row), row]));
  for (const row of rowsOf(page))
    for (const [k, cell] of [...row.cells].entries())
      if (k) old.get(keyOf(row)).cells[k].replaceWith(cell.cloneNode(true));
}

startFigures();
start();
follow((page) => {
  const data = JSON.parse(page.getElementById("run").textContent);
  const [before, now] = [document, page].map((where) => String(cellsOf(where)));
  if (shape(data) !== shape(DATA) || before !== now) {
    location.reload();
    return;
  }
  showResults(page);
  const peers = [document, page].map((where) => where.querySelector("#by-peer tbody"));
  if (peers[0] && peers[1]) peers[0].replaceWith(peers[1]);
  show(data);
});
