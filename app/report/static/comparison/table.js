// Tables of a comparison: click a heading to sort; click a method to highlight it in all figures.

import { compare } from "../numbers.js";
import { pick, view, watch } from "../page.js";
import { swatch } from "./methods.js";

export function startTable() {
  const tables = [...document.querySelectorAll(".measures")];
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
  for (const row of rows) {
    const m = Number(row.dataset.row);
    row.querySelector(".key").append(swatch(m));
    row.onclick = () => pick(m);
  }
  for (const table of [...tables, document.querySelector("#by-peer table")])
    if (table) sortable(table);
  watch(() => {
    for (const row of rows) {
      const m = Number(row.dataset.row);
      row.classList.toggle("picked", view.picked === m);
      row.querySelector("button").setAttribute("aria-pressed", String(view.picked === m));
    }
  });
}
// Makes the headings in the last row of the table head sort the rows.
function sortable(table) {
  const headings = [...[...table.tHead.rows].at(-1).cells];
  headings.forEach((heading, k) => {
    const value = (row) => Number.parseFloat(row.cells[k].dataset.value);
    heading.firstChild.onclick = () => {
      const before = heading.getAttribute("aria-sort");
      const down = before ? before === "ascending" : k > 0 && heading.dataset.better !== "low";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const [body] = table.tBodies;
      body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b), down)));
    };
  });
}
