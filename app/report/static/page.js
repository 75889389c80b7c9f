// Functions of every page: select a peer or method, redraw, offer choices, show a tooltip.

import { make } from "./drawing.js";

export const byId = (id) => document.getElementById(id);

// The data that the page draws; initially the data in the page.
export let DATA = JSON.parse(byId("run").textContent);
// Draws newer data of the same run; choices and selection stay.
export function show(data) {
  DATA = data;
  refresh();
}
// Returns a function that caches `derive(data)` until newer data are shown.
export function fromData(derive) {
  let source = null;
  let value = null;
  return () => {
    if (source !== DATA) [source, value] = [DATA, derive(DATA)];
    return value;
  };
}

// Index of the peer or method that is selected in all figures.
export const view = { picked: null };
export function pick(index) {
  view.picked = view.picked === index ? null : index;
  refresh();
}

// Drawing functions that run again when data, selection or colours change.
const drawings = [];
export function watch(draw) {
  drawings.push(draw);
  draw();
}
export function refresh() {
  for (const draw of drawings) draw();
}

// Starts the page; call it last.
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

// Draws buttons of which one is pressed, with a label for each key. A second call with the same
// labels keeps the buttons and the keyboard focus.
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

// Replaces the children of an element; the button with the same `data-key` keeps keyboard focus.
export function redraw(element, ...children) {
  const isInside = element.contains(document.activeElement);
  const key = isInside ? document.activeElement.dataset.key : undefined;
  element.replaceChildren(...children);
  if (key === undefined) return;
  const button = [...element.querySelectorAll("button")].find(({ dataset }) => dataset.key === key);
  button?.focus({ preventScroll: true });
}

// Shows a tooltip beside the pointer; the first line is its heading. `wide`: two columns.
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
