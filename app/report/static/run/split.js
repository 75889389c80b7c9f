// Who holds which data: a bar for each peer's training examples, a heat map of their classes.

import { css, prepare, ramp } from "../drawing.js";
import { byId, DATA, hideTip, pick, showTip, view, watch } from "../page.js";
import { peerColour, peerName } from "./peers.js";

const LEFT = 34;
const BARS = 62;

function drawSplit() {
  byId("data").hidden = !DATA.labels;
  if (!DATA.labels) return;
  const canvas = byId("split");
  const classes = DATA.labels[0].length;
  const cell = Math.min(84, (canvas.parentElement.clientWidth - LEFT) / DATA.peers);
  const gap = cell > 12 ? 2 : 0.5;
  const tall = Math.max(4, Math.min(20, 420 / classes));
  const hasNumbers = cell >= 17;
  const top = BARS + 14 + (hasNumbers ? 20 : 0);
  const ink = prepare(canvas, LEFT + DATA.peers * cell + 1, top + classes * tall + 1);
  const shade = ramp();
  const most = Math.max(1, ...DATA.labels.flat());
  const sizes = DATA.labels.map((counts) => counts.reduce((a, b) => a + b, 0));
  const largest = Math.max(1, ...sizes);
  ink.textBaseline = "middle";
  ink.textAlign = "center";
  DATA.order.forEach((p, k) => {
    const x = LEFT + k * cell;
    const high = (BARS * sizes[p]) / largest;
    ink.globalAlpha = view.picked === null || view.picked === p ? 1 : 0.35;
    ink.fillStyle = peerColour(p);
    ink.fillRect(x, BARS - high + 2, cell - gap, high);
    if (hasNumbers) {
      ink.fillStyle = css(p === view.picked ? "--ink" : "--soft");
      ink.fillText(p, x + (cell - gap) / 2, BARS + 14);
    }
    DATA.labels[p].forEach((count, label) => {
      ink.fillStyle = shade(count / most);
      ink.fillRect(x, top + label * tall, cell - gap, tall - (tall > 8 ? 2 : 0));
    });
  });
  ink.globalAlpha = 1;
  ink.fillStyle = css("--soft");
  ink.textAlign = "right";
  const every = Math.ceil(14 / tall);
  for (let label = 0; label < classes; label += every)
    ink.fillText(label, LEFT - 8, top + (label + 0.5) * tall - 1);
  ink.fillText(largest, LEFT - 8, 8);

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const peer = DATA.order[Math.floor((event.clientX - box.left - LEFT) / cell)];
    return [peer, Math.floor((event.clientY - box.top - top) / tall)];
  };
  canvas.onpointermove = (event) => {
    const [peer, label] = under(event);
    if (peer === undefined) {
      hideTip();
      return;
    }
    const count = DATA.labels[peer][label];
    showTip(event, [
      peerName(peer),
      `${sizes[peer]} training examples`,
      count !== undefined && `${count} of class ${label}`,
    ]);
  };
  canvas.onpointerleave = hideTip;
  canvas.onclick = (event) => {
    const [peer] = under(event);
    if (peer !== undefined) pick(peer);
  };
  byId("split-top").textContent = most;
}

export function startSplit() {
  watch(drawSplit);
}
