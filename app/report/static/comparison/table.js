// Table of results: sorts by a heading, selects the method of a row.

import { compare } from "../numbers.js";
import { byId, pick, view, watch } from "../page.js";
import { swatch } from "./methods.js";

export function startTable() {
  const table = byId("results");
  const [body] = table.tBodies;
  const rows = [...body.rows];
  rows.forEach((row, m) => {
    row.querySelector(".key").append(swatch(m));
    row.onclick = () => pick(m);
  });
  const headings = [...table.tHead.rows[1].cells];
  headings.forEach((heading, k) => {
    const value = (row) => Number.parseFloat(k ? row.cells[k].dataset.value : row.dataset.method);
    heading.firstChild.onclick = () => {
      const before = heading.getAttribute("aria-sort");
      const down = before ? before === "ascending" : k > 0 && heading.dataset.better !== "low";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...[...rows].sort((a, b) => compare(value(a), value(b), down)));
    };
  });
  watch(() => {
    for (const [m, row] of rows.entries()) {
      row.classList.toggle("picked", view.picked === m);
      row.querySelector("button").setAttribute("aria-pressed", String(view.picked === m));
    }
  });
}
