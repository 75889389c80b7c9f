// Data per peer, or block of peers: a bar for the training examples, a heat map of the classes.

import { css, prepare, ramp } from "../drawing.js";
import { plain } from "../numbers.js";
import { byId, DATA, hideTip, pick, showTip, view, watch } from "../page.js";
import { axisName, blockName, blockOf, blocks, className, peerColour } from "./peers.js";

const BARS = 62;

function drawSplit() {
  byId("data").hidden = !DATA.labels;
  if (!DATA.labels) return;
  const canvas = byId("split");
  const columns = blocks();
  const classes = DATA.labels[0].length;
  const isExact = columns.length === DATA.peers;
  const label = (c) => (DATA.classes[c] ?? String(c)).slice(0, 14);
  const longest = Math.max(...DATA.labels[0].map((_, c) => label(c).length));
  const left = Math.max(isExact ? 34 : 44, 16 + 7 * longest);
  const cell = Math.min(84, (canvas.parentElement.clientWidth - left) / columns.length);
  const gap = cell > 12 ? 2 : 0.5;
  const tall = Math.max(4, Math.min(20, 420 / classes));
  const hasNumbers = isExact && cell >= 17;
  const top = BARS + 14 + (hasNumbers ? 20 : 0);
  const ink = prepare(canvas, left + columns.length * cell + 1, top + classes * tall + 1);
  const shade = ramp();
  const highest = Math.max(1, ...DATA.labels.flat());
  const sizes = DATA.labels.map((counts) => counts.reduce((a, b) => a + b, 0));
  const largest = Math.max(1, ...sizes);
  const picked = view.picked === null ? null : blockOf()[view.picked];
  ink.textBaseline = "middle";
  ink.textAlign = "center";
  columns.forEach(([p], k) => {
    const x = left + k * cell;
    const high = (BARS * sizes[k]) / largest;
    ink.globalAlpha = picked === null || picked === k ? 1 : 0.35;
    ink.fillStyle = peerColour(p);
    ink.fillRect(x, BARS - high + 2, cell - gap, high);
    if (hasNumbers) {
      ink.fillStyle = css(picked === k ? "--ink" : "--soft");
      ink.fillText(axisName(p), x + (cell - gap) / 2, BARS + 14, cell - gap);
    }
    DATA.labels[k].forEach((count, c) => {
      ink.fillStyle = shade(count / highest);
      ink.fillRect(x, top + c * tall, cell - gap, tall - (tall > 8 ? 2 : 0));
    });
  });
  ink.globalAlpha = 1;
  ink.fillStyle = css("--soft");
  ink.textAlign = "right";
  const every = Math.ceil(14 / tall);
  for (let c = 0; c < classes; c += every)
    ink.fillText(label(c), left - 8, top + (c + 0.5) * tall - 1);
  ink.fillText(plain(largest, 3), left - 8, 8);

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - left) / cell);
    return [column, Math.floor((event.clientY - box.top - top) / tall)];
  };
  canvas.onpointermove = (event) => {
    const [column, c] = under(event);
    if (!columns[column]) {
      hideTip();
      return;
    }
    const count = DATA.labels[column][c];
    const each = columns[column].length > 1 ? " per peer on average" : "";
    showTip(event, [
      blockName(columns[column]),
      `${plain(sizes[column], 6)} training examples${each}`,
      count !== undefined && `${plain(count, 6)} of ${className(c)}`,
    ]);
  };
  canvas.onpointerleave = hideTip;
  canvas.onclick = (event) => {
    const block = columns[under(event)[0]];
    if (block?.length === 1) pick(block[0]);
  };
  byId("split-top").textContent = plain(highest, 6);
}

export function startSplit() {
  watch(drawSplit);
}
