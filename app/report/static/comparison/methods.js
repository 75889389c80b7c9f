// Colours and line styles of a comparison's methods.

import { make, PALETTE } from "../drawing.js";
import { DATA, view } from "../page.js";

export const methods = [...DATA.methods.keys()];
const DASHES = ["", "7 4", "2 3"];
export const colour = (m) => PALETTE[m % PALETTE.length];
export const dash = (m) => DASHES[Math.floor(m / PALETTE.length) % DASHES.length];
// Returns whether another method is selected.
export const isFaded = (m) => view.picked !== null && view.picked !== m;

export function swatch(m) {
  const svg = make("svg", { viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true" });
  svg.append(
    make("line", {
      x1: 1,
      x2: 25,
      y1: 5,
      y2: 5,
      stroke: colour(m),
      "stroke-width": 3,
      "stroke-dasharray": dash(m),
    }),
  );
  return svg;
}
