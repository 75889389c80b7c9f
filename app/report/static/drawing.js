// Elements, colours and canvases of the figures.

// Returns a colour of the style sheet.
export const css = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const PALETTE = [
  ..."#3f7fb5 #d9822b #4a9a5b #c44e52 #8566b0".split(" "),
  ..."#8c6d5a #d178b0 #6f7680 #b5a12e #3aa6a6".split(" "),
];
// Returns the colour of each cluster id; beyond the palette, hues that are far apart.
export function clusterColours(clusters) {
  const ids = [...new Set(clusters)].sort((a, b) => a - b);
  return new Map(ids.map((id, k) => [id, PALETTE[k] ?? `hsl(${(k * 137.5) % 360} 42% 52%)`]));
}

const SVG = ["svg", "path", "line", "circle", "text", "rect", "g", "image"];
export function make(tag, attributes = {}, ...children) {
  const element = SVG.includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
export function picture(width, height, label) {
  return make("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": label,
  });
}
// Draws a line through points; null is a gap.
export function line(points, style) {
  const steps = points.map(
    (at, k) => at && `${points[k - 1] ? "L" : "M"}${at[0].toFixed(1)} ${at[1].toFixed(1)}`,
  );
  const d = steps.filter(Boolean).join("");
  return make("path", { d, fill: "none", "stroke-linejoin": "round", ...style });
}

const scratch = document.createElement("canvas").getContext("2d");
// Returns black or white, whichever has the higher contrast with a colour (4.5:1 or more, WCAG 2).
export function textOn(colour) {
  scratch.fillStyle = colour;
  const [r, g, b] = scratch.fillStyle.match(/[0-9a-f]{2}/gi).map((hex) => {
    const c = parseInt(hex, 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

// Returns a function that maps a share from 0 to 1 to a colour of the page's ramp, and a share from
// -1 to 0 to one of the ramp of losses.
export function ramp() {
  const stops = (names) =>
    names.map((name) =>
      css(name)
        .match(/[0-9a-f]{2}/gi)
        .map((hex) => parseInt(hex, 16)),
    );
  const gains = stops(["--ramp0", "--ramp1", "--ramp2", "--ramp3", "--ramp4"]);
  const losses = stops(["--ramp0", "--loss1", "--loss2", "--loss3", "--loss4"]);
  return (share) => {
    const colours = share < 0 ? losses : gains;
    const at = 4 * Math.min(1, Math.abs(share));
    const k = Math.min(3, Math.floor(at));
    const mix = colours[k].map((c, m) => Math.round(c + (colours[k + 1][m] - c) * (at - k)));
    return `rgb(${mix.join(" ")})`;
  };
}

// Returns a canvas's context in CSS pixels, scaled to the screen's resolution.
export function prepare(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ink = canvas.getContext("2d");
  ink.scale(ratio, ratio);
  ink.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  return ink;
}
