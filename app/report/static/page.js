// What every page does: follow one peer or method, draw anew what changed, offer choices, read out.

import { make } from "./drawing.js";

export const DATA = JSON.parse(document.getElementById("run").textContent);
export const byId = (id) => document.getElementById(id);

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

// Buttons of which one is pressed: a label for each key.
export function segment(id, labels, chosen, onPick, isEnabled = () => true) {
  const buttons = Object.entries(labels).map(([key, label]) => {
    const button = make("button", { type: "button" }, label);
    button.disabled = !isEnabled(key);
    button.onclick = () => {
      press(button);
      onPick(key);
    };
    button.dataset.key = key;
    return button;
  });
  const press = (pressed) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === pressed));
  };
  byId(id).replaceChildren(...buttons);
  press(buttons.find((button) => button.dataset.key === chosen));
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
