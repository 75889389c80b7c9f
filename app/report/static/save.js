// A button below each figure that saves it as an SVG file: as it is shown, with text as text.

import { css, make, ramp } from "./drawing.js";
import { watch } from "./page.js";

const FIGURES = ".chart, .forest, .pair > div, .beside > div, .maps, #data .block";
const LOOK = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity"],
  ...["opacity", "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline"],
];
const RAMP_STEPS = 40;
const HIDDEN = '.save, .hint, .keys button:not([aria-pressed="true"])';
const isShown = (element) => element.checkVisibility() && !element.closest(HIDDEN);

// Copies the page's styles to attributes of an SVG element, which then looks the same elsewhere.
function standalone(svg, place) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg, copy].map((each) => [each, ...each.querySelectorAll("*")]);
  from.forEach((element, k) => {
    const style = getComputedStyle(element);
    for (const name of LOOK) to[k].setAttribute(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries(place)) copy.setAttribute(name, value);
  copy.setAttribute("overflow", "visible");
  copy.removeAttribute("style");
  return copy;
}
// Returns the lines of a text node, each with its place.
function linesOf(node) {
  const lines = [];
  const range = document.createRange();
  for (const { 0: word, index } of node.textContent.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getBoundingClientRect();
    const last = lines.at(-1);
    if (last && Math.abs(last.box.top - box.top) < 2) last.text += ` ${word}`;
    else lines.push({ text: word, box });
  }
  return lines;
}
function swatches(element, { x, y, width, height }) {
  const isRamp = element.parentElement.classList.contains("ramp");
  const isSigned = element.parentElement.classList.contains("signed");
  const count = isRamp ? RAMP_STEPS : 1;
  const colour = ramp();
  return Array.from({ length: count }, (_, k) => {
    const share = k / (count - 1 || 1);
    return make("rect", {
      x: x + (k * width) / count,
      y,
      width: width / count + (isRamp ? 0.3 : 0),
      height,
      fill: isRamp
        ? colour(isSigned ? 2 * share - 1 : share)
        : getComputedStyle(element).backgroundColor,
    });
  });
}

// Returns an SVG element with all that is shown in some elements of the page.
function snapshot(parts) {
  const boxes = parts.map((part) => part.getBoundingClientRect());
  const [left, top] = ["left", "top"].map((side) => Math.min(...boxes.map((box) => box[side])));
  const [right, bottom] = ["right", "bottom"].map((side) =>
    Math.max(...boxes.map((box) => box[side])),
  );
  const [width, height] = [right - left, bottom - top];
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  svg.append(make("rect", { width, height, fill: css("--paper") }));
  const placeOf = (box) => ({
    x: box.left - left,
    y: box.top - top,
    width: box.width,
    height: box.height,
  });
  for (const part of parts) {
    for (const element of part.querySelectorAll("svg, canvas, i")) {
      const place = placeOf(element.getBoundingClientRect());
      if (!isShown(element) || element.parentElement.closest("svg")) continue;
      if (element.tagName === "CANVAS")
        svg.append(make("image", { href: element.toDataURL(), ...place }));
      else if (element.tagName === "I") svg.append(...swatches(element, place));
      else svg.append(standalone(element, place));
    }
    const nodes = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
      const { parentElement } = nodes.currentNode;
      if (parentElement.closest("svg") || !isShown(parentElement)) continue;
      const style = getComputedStyle(parentElement);
      for (const { text, box } of linesOf(nodes.currentNode)) {
        const { x, y, height } = placeOf(box);
        const look = {
          x,
          y: y + 0.78 * height,
          fill: style.color,
          ...Object.fromEntries(
            ["font-family", "font-size", "font-weight"].map((name) => [
              name,
              style.getPropertyValue(name),
            ]),
          ),
        };
        svg.append(make("text", look, text));
      }
    }
  }
  return svg;
}

function save(parts, figure) {
  const titles = [
    figure.querySelector("figcaption, h3") ?? figure.closest("section").querySelector("h2, b"),
    document.querySelector("h1"),
  ];
  const name = titles.map((each) => each?.textContent ?? "").join(" ");
  const text = new XMLSerializer().serializeToString(snapshot(parts));
  const href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const slug = name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  make("a", { href, download: `${slug.replace(/^-|-$/g, "")}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

// Adds the buttons that are missing: a live page gets figures later.
export function offerSaving() {
  watch(() => {
    for (const figure of document.querySelectorAll(FIGURES)) {
      const parts = [figure];
      while (parts.at(-1).nextElementSibling?.matches(".keys, .legend"))
        parts.push(parts.at(-1).nextElementSibling);
      // Drawing replaces all that is in a chart.
      const isDrawn = figure.matches(".chart, .maps");
      const last = isDrawn ? parts.at(-1).nextElementSibling : figure.lastElementChild;
      if (last?.matches(".save")) continue;
      const button = make("button", { type: "button", class: "save" }, "Save as SVG");
      button.onclick = () => save(parts, figure);
      if (isDrawn) parts.at(-1).after(button);
      else figure.append(button);
    }
  });
}
