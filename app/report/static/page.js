// What every page does: follow one peer or method, draw anew what changed, offer choices, read out.

import { make } from "./drawing.js";

export const byId = (id) => document.getElementById(id);

// What the page draws; at first what it carries.
export let DATA = JSON.parse(byId("run").textContent);
// Draws newer data of the same run; what the reader chose and follows stays.
export function show(data) {
  DATA = data;
  refresh();
}
// A function that returns what `derive` makes of the data, once for each data shown.
export function fromData(derive) {
  let source = null;
  let value = null;
  return () => {
    if (source !== DATA) [source, value] = [DATA, derive(DATA)];
    return value;
  };
}

// The peer or method, by index, that the reader follows through all figures.
export const view = { picked: null };
export function pick(index) {
  view.picked = view.picked === index ? null : index;
  refresh();
}

// What is drawn registers here, to be drawn anew when something it depends on changes.
const drawings = [];
export function watch(draw) {
  drawings.push(draw);
  draw();
}
export function refresh() {
  for (const draw of drawings) draw();
}

// The last thing a page calls.
export function start() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
  let settled = 0;
  addEventListener("resize", () => {
    clearTimeout(settled);
    settled = setTimeout(refresh, 80);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && view.picked !== null) pick(view.picked);
  });
  document.documentElement.dataset.ready = "yes";
}

// Buttons of which one is pressed: a label for each key. Called again, it keeps the buttons there
// are, and with them the keyboard's focus.
export function segment(id, labels, chosen, onPick, isEnabled = () => true) {
  const box = byId(id);
  const wanted = JSON.stringify(labels);
  if (box.dataset.labels !== wanted) {
    const buttons = Object.entries(labels).map(([key, label]) => {
      const button = make("button", { type: "button" }, label);
      button.dataset.key = key;
      return button;
    });
    box.dataset.labels = wanted;
    box.replaceChildren(...buttons);
  }
  const press = (key) => {
    for (const button of box.children)
      button.setAttribute("aria-pressed", String(button.dataset.key === key));
  };
  for (const button of box.children) {
    const { key } = button.dataset;
    button.disabled = !isEnabled(key);
    button.onclick = () => {
      press(key);
      onPick(key);
    };
  }
  press(chosen);
}

// The read-out beside the pointer, the first line as its heading; columns when `wide`.
export function showTip(event, lines, wide = false) {
  const box = byId("tip");
  box.classList.toggle("wide", wide);
  box.replaceChildren(...lines.filter(Boolean).map((text) => make("div", {}, text)));
  const { width, height } = box.getBoundingClientRect();
  const right = event.clientX + 16;
  const x = right + width > innerWidth ? event.clientX - width - 16 : right;
  box.style.left = `${Math.max(6, x)}px`;
  box.style.top = `${Math.max(6, Math.min(event.clientY + 14, innerHeight - height - 6))}px`;
  box.style.visibility = "visible";
}
export function hideTip() {
  byId("tip").classList.remove("wide");
  byId("tip").style.visibility = "hidden";
}
