// Live page of a comparison.

import { startFigures } from "../../report/static/comparison/figures.js";
import { DATA, show, start } from "../../report/static/page.js";
import { follow } from "./live.js";

// Returns the structure that the figures depend on.
const shape = ({ methods, seeds, metrics, gains, maps }) =>
  JSON.stringify([methods, seeds, Object.keys(metrics), !gains, maps?.of.map(({ seed }) => seed)]);

const rowsOf = (page) => [...page.querySelectorAll("#results tbody tr")];
function showResults(page) {
  const old = new Map(rowsOf(document).map((row) => [row.dataset.method, row]));
  for (const row of rowsOf(page))
    for (const [k, cell] of [...row.cells].entries())
      if (k) old.get(row.dataset.method).cells[k].replaceWith(cell.cloneNode(true));
}

startFigures();
start();
follow((page) => {
  const data = JSON.parse(page.getElementById("run").textContent);
  const [before, now] = [document, page].map((where) => rowsOf(where)[0]?.cells.length);
  if (shape(data) !== shape(DATA) || before !== now) {
    location.reload();
    return;
  }
  showResults(page);
  show(data);
});
