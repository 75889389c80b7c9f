"""The script that all pages share: numbers in words, elements, controls, the read-out."""

from __future__ import annotations

HELPERS = r"""
"use strict";
const D = JSON.parse(document.getElementById("run").textContent);
const byId = (id) => document.getElementById(id);
const PALETTE = ["#3f7fb5", "#d9822b", "#4a9a5b", "#c44e52", "#8566b0",
                 "#8c6d5a", "#d178b0", "#6f7680", "#b5a12e", "#3aa6a6"];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isNumber = (x) => x !== null && x !== undefined && Number.isFinite(x);

const paint = (k) => k < PALETTE.length ? PALETTE[k] : `hsl(${(k * 137.5) % 360} 42% 52%)`;
const idsOf = (clusters) => clusters ? [...new Set(clusters)].sort((a, b) => a - b) : [];

// What is drawn registers here, to be drawn again when something it depends on changes.
const watchers = [];
const watch = (redraw) => { watchers.push(redraw); redraw(); };
const refresh = () => watchers.forEach((redraw) => redraw());
function start() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
  let settled = 0;
  addEventListener("resize", () => { clearTimeout(settled); settled = setTimeout(refresh, 80); });
  document.documentElement.dataset.ready = "yes";
}

function mean(values) {
  const kept = values.filter(isNumber);
  return kept.length ? kept.reduce((a, b) => a + b, 0) / kept.length : null;
}
function plain(x, digits = 4) {
  if (!isNumber(x)) return "–";
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6)) return x.toExponential(2);
  return String(+x.toPrecision(digits));
}
function compact(x, base, units) {
  if (!isNumber(x)) return "–";
  let k = 0;
  while (Math.abs(x) >= base && k < units.length - 1) { x /= base; k += 1; }
  const digits = k === 0 || Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2;
  return `${x.toFixed(digits)}${units[k]}`;
}
const FORMAT = {
  share: (x) => isNumber(x) ? `${(100 * x).toFixed(1)} %` : "–",
  loss: (x) => plain(x, 4),
  fixed: (x) => isNumber(x) && x >= 1e-3 && x < 1e6 ? x.toPrecision(4) : plain(x, 4),
  bytes: (x) => compact(x, 1000, [" B", " kB", " MB", " GB", " TB"]),
  round: (x) => isNumber(x) ? Math.round(x).toLocaleString("en") : "–",
  count: (x) => compact(x, 1000, ["", " k", " M", " G", " T"]),
};

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "text", "rect", "g"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
                   : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function segment(box, options, chosen, onPick) {
  const buttons = options.map(([key, label, enabled]) => {
    const button = make("button", {type: "button"}, label);
    button.disabled = !enabled;
    button.onclick = () => { mark(key); onPick(key); };
    button.dataset.key = key;
    return button;
  });
  const mark = (key) => buttons.forEach(
    (button) => button.setAttribute("aria-pressed", String(button.dataset.key === key)));
  box.replaceChildren(...buttons);
  mark(chosen);
}
function tip(event, lines, wide = false) {
  const box = byId("tip");
  box.classList.toggle("wide", wide);
  if (!lines) { box.style.visibility = "hidden"; return; }
  box.replaceChildren(...lines.filter(Boolean).map((line) => make("div", {}, line)));
  const {width, height} = box.getBoundingClientRect();
  const x = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16
                                                    : event.clientX + 16;
  box.style.left = `${Math.max(6, x)}px`;
  box.style.top = `${Math.max(6, Math.min(event.clientY + 14, innerHeight - height - 6))}px`;
  box.style.visibility = "visible";
}
"""
