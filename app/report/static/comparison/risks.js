// Gain against risk: a point for each method whose letters were measured.

import { axes } from "../axes.js";
import { css, make } from "../drawing.js";
import { plain, spread } from "../numbers.js";
import { byId, DATA, pick, watch } from "../page.js";
import { colour, isFaded, methods } from "./methods.js";

const CHANCE = 0.5; // area under the ROC curve of a coin

function drawRisks() {
  const { title, points } = DATA.risks;
  const format = (value) => plain(value, 3);
  const plot = axes(byId("risks"), {
    measure: { title, format },
    axis: { title: "letter AUC: 0.5 tells nothing, 1 everything", format },
    log: false,
    logX: false,
    rangeX: spread([CHANCE, ...points.map(([, x]) => x)]),
    rangeY: spread(points.map(([, , y]) => y)),
    label: `${title} of each method against what its letters tell`,
  });
  for (const [name, risk, value] of points) {
    const m = methods.find((each) => DATA.methods[each] === name);
    const [cx, cy] = [plot.x(risk), plot.y(value)];
    const isLeft = cx > (plot.left + plot.right) / 2;
    const dot = make("circle", { cx, cy, r: 5, fill: colour(m) });
    const text = {
      x: cx + (isLeft ? -9 : 9),
      y: cy + 4.5,
      "text-anchor": isLeft ? "end" : "start",
    };
    const point = make("g", { opacity: isFaded(m) ? 0.25 : 1, fill: css("--ink") });
    point.append(dot, make("text", text, name));
    point.onclick = () => pick(m);
    plot.svg.append(point);
  }
  byId("risks").replaceChildren(plot.svg);
}

export function startRisks() {
  if (DATA.risks) watch(drawRisks);
}
