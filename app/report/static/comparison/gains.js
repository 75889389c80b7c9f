// Gain over local per peer: a row of dots for each method, a line at the mean.

import { niceTicks } from "../axes.js";
import { css, make, picture } from "../drawing.js";
import { FORMAT, isNumber, mean, plain, spread } from "../numbers.js";
import { byId, DATA, hideTip, pick, segment, showTip, watch } from "../page.js";
import { colour, isFaded, methods } from "./methods.js";

let isRooted = false;

const written = (g) => `${g > 0 ? "+" : ""}${plain(DATA.gains.accuracy ? 100 * g : g, 3)}`;

// Returns the dots of each method, largest mean gain first.
function dotsByMethod() {
  return methods
    .filter((m) => DATA.methods[m] !== "local" || methods.length === 1)
    .map((m) => {
      const dots = DATA.gains.gain[m]
        .flatMap((gains, seed) => gains.map((gain, peer) => ({ gain, seed, peer })))
        .filter(({ gain }) => isNumber(gain))
        .sort((a, b) => a.gain - b.gain);
      return { m, dots, average: mean(dots.map(({ gain }) => gain)) };
    })
    .filter(({ dots }) => dots.length)
    .sort((a, b) => b.average - a.average);
}
// Returns ticks at 0.01, 0.05, 0.1 ... of the power of ten of the largest gain, if they fit.
function rootTicks(low, high, x) {
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const unit = 10 ** Math.floor(Math.log10(largest));
  const ticks = [0.01, 0.05, 0.1, 0.5, 1, 2, 5]
    .flatMap((k) => [-k * unit, k * unit])
    .filter((g) => g >= low && g <= high)
    .concat([0]);
  return ticks.filter((g) =>
    ticks.every((other) => Math.abs(other) >= Math.abs(g) || Math.abs(x(other) - x(g)) > 44),
  );
}
// Returns the vertical shift of each dot of a row (ascending) so that no dot covers another.
function swarm(xs, radius, half) {
  const placed = [];
  for (const x of xs) {
    const near = placed.filter(([other]) => x - other < 2 * radius);
    const isCovered = (y) => near.some(([ox, oy]) => Math.hypot(x - ox, y - oy) < 1.8 * radius);
    let y = 0;
    for (let step = 1; isCovered(y) && Math.abs(y) + radius < half; step += 1)
      y = (step % 2 ? 1 : -1) * Math.ceil(step / 2) * radius * 0.9;
    placed.push([x, y]);
  }
  return placed.map(([, y]) => y);
}

function drawDot({ gain, seed, peer }, m, x, y, radius) {
  const dot = make("circle", {
    cx: x,
    cy: y,
    r: radius,
    fill: colour(m),
    "fill-opacity": 0.62,
    stroke: colour(m),
    "stroke-width": 0.8,
  });
  const final = DATA.gains.final[m][seed][peer];
  dot.onpointermove = (event) =>
    showTip(event, [
      `${DATA.methods[m]}, ${DATA.names[seed][peer]}, seed ${DATA.seeds[seed]}`,
      DATA.clusters && `cluster ${DATA.clusters[seed][peer]}`,
      DATA.gains.accuracy
        ? `gain ${written(gain)} points, final ${FORMAT.share(final)}`
        : `gain ${written(gain)}, final ${plain(final, 4)}`,
    ]);
  return dot;
}
function drawGains() {
  const box = byId("gains");
  const rows = dotsByMethod();
  const width = Math.max(280, box.clientWidth);
  const isNarrow = width < 640;
  const [tall, top] = [isNarrow ? 58 : 42, 10];
  const [left, right] = isNarrow ? [8, width - 10] : [168, width - 104];
  const bottom = top + rows.length * tall;
  const height = bottom + 44;

  const bend = (g) => (isRooted ? Math.sign(g) * Math.sqrt(Math.abs(g)) : g);
  let [low, high] = spread([...rows.map(({ dots }) => dots.map(({ gain }) => gain)), 0]);
  if (low === high) [low, high] = [low - 0.01, high + 0.01];
  const [a, b] = [bend(low), bend(high)];
  const room = (b - a) * 0.03;
  const x = (g) => left + ((bend(g) - a + room) / (b - a + 2 * room)) * (right - left);

  const svg = picture(width, height, "Gain over local per peer and method");
  const write = (parent, x, y, anchor, text, style) =>
    parent.append(make("text", { x, y, "text-anchor": anchor, ...style }, text));
  const rule = (parent, x, y1, y2, stroke, width) =>
    parent.append(
      make("line", { x1: x, x2: x, y1, y2, stroke: css(stroke), "stroke-width": width }),
    );
  const ticks = isRooted ? rootTicks(low, high, x) : niceTicks(low, high, Math.max(3, width / 130));
  for (const g of ticks) {
    rule(svg, x(g), top, bottom, g ? "--grid" : "--faint", g ? 1 : 1.5);
    write(svg, x(g), bottom + 18, "middle", written(g));
  }
  const title = DATA.gains.accuracy
    ? "test accuracy minus local, points"
    : "local’s test loss minus the method’s";
  const scale = isRooted ? " (square-root scale)" : "";
  write(svg, (left + right) / 2, height - 5, "middle", `${title}${scale}`);

  const half = (isNarrow ? 0.3 : 0.42) * tall;
  const densest = Math.max(1, ...rows.map(({ dots }) => dots.length));
  const radius = densest > 150 ? 2.6 : densest > 50 ? 3.4 : 4.4;
  rows.forEach(({ m, dots, average }, k) => {
    const row = make("g", { opacity: isFaded(m) ? 0.25 : 1 });
    row.onclick = () => pick(m);
    svg.append(row);
    const middle = top + (k + (isNarrow ? 0.66 : 0.5)) * tall;
    const line = isNarrow ? middle - half - 6 : middle + 4.5;
    const better = dots.filter(({ gain }) => gain > 0).length / dots.length;
    write(row, 0, line, "start", DATA.methods[m], isNarrow ? {} : { class: "strong" });
    write(row, width, line, "end", `${Math.round(100 * better)} % better`);
    const shifts = swarm(
      dots.map(({ gain }) => x(gain)),
      radius,
      half,
    );
    row.append(...dots.map((dot, d) => drawDot(dot, m, x(dot.gain), middle + shifts[d], radius)));
    rule(row, x(average), middle - half, middle + half, "--paper", 5);
    rule(row, x(average), middle - half, middle + half, "--ink", 2.5);
  });
  svg.onpointerleave = hideTip;
  svg.onpointermove = (event) => {
    if (event.target.tagName !== "circle") hideTip();
  };
  box.replaceChildren(svg);
}

export function startGains() {
  if (!DATA.gains) return;
  const sizes = DATA.gains.gain
    .flat(2)
    .filter((g) => isNumber(g) && g !== 0)
    .map(Math.abs)
    .sort((u, v) => u - v);
  isRooted = sizes.length > 0 && sizes.at(-1) > 8 * sizes[sizes.length >> 1];
  const labels = { linear: "Linear", root: "Square root" };
  segment("gain-scale", labels, isRooted ? "root" : "linear", (key) => {
    isRooted = key === "root";
    drawGains();
  });
  watch(drawGains);
}
