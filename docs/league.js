// Filters and sorting of the league's tables, which are complete without this script.

const form = document.querySelector(".league-filters");
const tables = [...document.querySelectorAll(".league table")];
const rowsOf = (table) => [...table.tBodies[0].rows];

function filter() {
  const { name, group, leads, free, covered } = form.elements;
  for (const row of tables.flatMap(rowsOf)) {
    const { dataset } = row;
    row.hidden =
      !dataset.method.includes(name.value.trim().toLowerCase()) ||
      (group.value !== "" && dataset.group !== group.value) ||
      (leads.checked && !("leads" in dataset)) ||
      (free.checked && "validates" in dataset) ||
      (covered.checked && "exposes" in dataset);
  }
}

function sortBy(table, heading) {
  const k = heading.cellIndex;
  const before = heading.getAttribute("aria-sort");
  const down = before ? before === "ascending" : heading.dataset.better === "high";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (row) => Number.parseFloat(row.cells[k].dataset.value);
  const order = (a, b) =>
    Number.isNaN(a) || Number.isNaN(b) ? Number.isNaN(a) - Number.isNaN(b) : down ? b - a : a - b;
  table.tBodies[0].append(...rowsOf(table).sort((a, b) => order(value(a), value(b))));
}

for (const group of new Set(tables.flatMap(rowsOf).map((row) => row.dataset.group)))
  form.elements.group.add(new Option(group, group));
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
for (const table of tables)
  for (const heading of table.tHead.rows[0].cells) {
    const button = heading.querySelector("button");
    if (button) button.onclick = () => sortBy(table, heading);
  }
