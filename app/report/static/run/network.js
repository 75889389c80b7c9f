// Collaboration of a run: heat map, graph and recovery scores for each round.

import { css, line, make, PALETTE, picture, prepare, textOn } from "../drawing.js";
import { pairReadOut } from "../heat_map.js";
import { closest, isNumber, plain } from "../numbers.js";
import { byId, DATA, hideTip, pick, showTip, view, watch } from "../page.js";
import { startPlayer } from "../player.js";
import { blockMap, isExact, isSelf } from "./block_map.js";
import { layout } from "./layout.js";
import {
  axisName,
  blockName,
  blockOf,
  blocks,
  clusterLegend,
  inText,
  peerColour,
  peerName,
  peers,
  shortName,
} from "./peers.js";
import { blockWeight, collaborators, links, rowScale } from "./weights.js";

let frame = () => 0;

// Draws the weights of a frame.
export function drawWeights(canvas, at) {
  const { graph } = DATA;
  const written = (a, b) =>
    `weight ${plain(blockWeight(a, b, at), 2)} in round ${graph.rounds[at]}`;
  blockMap(canvas, {
    share: (a, b) => (isSelf(a, b) ? Number.NaN : blockWeight(a, b, at) / (rowScale(a, at) || 1)),
    readOut: (a, b) =>
      isExact()
        ? pairReadOut(blocks()[a][0], blocks()[b][0], {
            names: DATA.names,
            own: graph.own,
            clusters: DATA.clusters,
            describe: () => written(a, b),
          })
        : [
            blockName(blocks()[a]),
            a === b ? "give each other" : `give ${blockName(blocks()[b])}`,
            isSelf(a, b) && !graph.own ? "no own weight in this method" : `mean ${written(a, b)}`,
          ],
  });
}

function drawGraph() {
  const canvas = byId("graph");
  const size = Math.min(canvas.parentElement.clientWidth, 520);
  const ink = prepare(canvas, size, size);
  const { places, centres, radius } = layout(size);
  drawEdges(ink, places);
  drawPeers(ink, places, centres, radius);
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const distance = (p) => Math.hypot(places[p][0] - px, places[p][1] - py);
    const p = closest(peers(), distance);
    return distance(p) <= radius + 6 ? p : null;
  };
  canvas.onpointermove = (event) => {
    const p = under(event);
    canvas.style.cursor = p === null ? "default" : "pointer";
    if (p === null) {
      hideTip();
      return;
    }
    const largest = collaborators(p, 4, frame()).map(
      ([j, w]) => `weight for ${inText(j)}: ${plain(w, 2)}`,
    );
    showTip(event, [peerName(p), ...(largest.length ? largest : ["no weight for other peers"])]);
  };
  canvas.onpointerleave = hideTip;
  canvas.onclick = (event) => {
    const p = under(event);
    if (p !== null) pick(p);
  };
}
// Draws each half of an edge by the weight that the nearer peer gives. The links of a crowd are rarely
// mutual, so each link is a whole line.
function drawEdges(ink, places) {
  const { clusters, crowd, graph } = DATA;
  const place = blockOf();
  const isDense = DATA.peers > 30;
  const far = crowd ? 1 : 0.5;
  const sparse = Math.min(1, Math.sqrt(300 / DATA.peers));
  const [accent, soft] = [css("--accent"), css("--soft")];
  const [thinnest, widest] = crowd
    ? [0.4, 0.8]
    : isDense
      ? [0.4, 1.6]
      : [0.6, DATA.peers > 10 ? 4 : 6];
  for (const i of peers()) {
    const drawn = crowd && view.picked !== i ? graph.links.drawn : undefined;
    const scale = rowScale(place[i], frame()) || 1;
    for (const [j, weight] of links(i, frame()).slice(0, drawn)) {
      const share = Math.min(1, weight / scale);
      if (share < 0.02) continue;
      const isPicked = view.picked === i || view.picked === j;
      const faded = view.picked === null ? 1 : 0.15;
      const thinned = isDense && share < 0.5 ? 0.5 : 1;
      const opacity = crowd ? (0.15 + 0.4 * share) * sparse : (0.04 + 0.9 * share ** 1.2) * thinned;
      ink.globalAlpha = isPicked ? 0.04 + 0.9 * share ** (crowd ? 0.5 : 1.2) : opacity * faded;
      ink.strokeStyle = isPicked ? accent : crowd && clusters ? peerColour(i) : soft;
      ink.lineWidth = thinnest + widest * share;
      const [[xi, yi], [xj, yj]] = [places[i], places[j]];
      ink.beginPath();
      ink.moveTo(xi, yi);
      ink.lineTo(xi + far * (xj - xi), yi + far * (yj - yi));
      ink.stroke();
    }
  }
  ink.globalAlpha = 1;
}
function drawPeers(ink, places, centres, radius) {
  ink.textAlign = "center";
  ink.textBaseline = "middle";
  const high = radius > 16 ? 15 : radius > 10 ? 13 : 10;
  ink.font = ink.font.replace(/^.*?px/, `600 ${high}px`);
  const rim = Math.min(2, radius / 3);
  const last = (p) => p === view.picked;
  for (const p of [...peers()].sort((a, b) => last(a) - last(b))) {
    const [x, y] = places[p];
    ink.beginPath();
    ink.arc(x, y, last(p) ? Math.max(radius, 5) : radius, 0, 2 * Math.PI);
    ink.fillStyle = peerColour(p);
    ink.fill();
    ink.strokeStyle = css(last(p) ? "--ink" : "--paper");
    ink.lineWidth = last(p) ? 3 : rim;
    ink.stroke();
    if (radius < 9) continue;
    ink.fillStyle = textOn(peerColour(p));
    if (shortName(p).length <= 3) ink.fillText(shortName(p), x, y + 0.5);
    else drawName(ink, p, places[p], centres[p], radius);
  }
}
// Draws a name that does not fit into the dot on the outside of its group, with a halo over edges:
// beside the dot if there is room, else above or below.
function drawName(ink, p, [x, y], [centreX, centreY], radius) {
  const [size, width] = [ink.canvas.clientWidth, ink.measureText(axisName(p)).width];
  const [right, down] = [x - centreX, y - centreY];
  const gap = radius + 6;
  const isBeside = Math.abs(right) > Math.abs(down);
  const hasRoom = right > 0 ? x + gap + width < size : x - gap - width > 0;
  let at = [
    Math.min(size - width / 2 - 2, Math.max(width / 2 + 2, x)),
    y + Math.sign(down || 1) * (gap + 4),
  ];
  if (isBeside && hasRoom) at = [x + Math.sign(right) * (gap + width / 2), y];
  ink.strokeStyle = css("--paper");
  ink.lineJoin = "round";
  ink.lineWidth = 5;
  ink.strokeText(axisName(p), ...at);
  ink.fillStyle = css("--ink");
  ink.fillText(axisName(p), ...at);
}

// Draws the recovery scores of the learnt graph over the rounds.
function drawRecovery() {
  const isEmpty = !DATA.graph.scores || DATA.graph.rounds.length < 2;
  byId("recovery").hidden = isEmpty;
  if (isEmpty) {
    byId("strip").replaceChildren();
    return;
  }
  const box = byId("strip");
  const width = Math.max(200, box.clientWidth);
  const [height, inset, top, bottom] = [84, 8, 8, 74];
  const x = (k) => inset + (k / (DATA.graph.rounds.length - 1)) * (width - 2 * inset);
  const y = (v) => bottom - v * (bottom - top);
  const svg = picture(
    width,
    height,
    "F1 and adjusted Rand index of the learnt graph over the rounds",
  );
  svg.setAttribute("width", "100%");
  for (const v of [0, 0.5, 1])
    svg.append(
      make("line", { x1: inset, x2: width - inset, y1: y(v), y2: y(v), stroke: css("--grid") }),
    );
  const draw = (key, style) =>
    svg.append(
      line(
        DATA.graph.scores.map((score, k) => [x(k), y(Math.max(0, score[key] ?? 0))]),
        { "stroke-width": 2, ...style },
      ),
    );
  draw("f1", { stroke: css("--accent") });
  draw("rand", { stroke: PALETTE[1], "stroke-dasharray": "5 3" });
  svg.append(
    make("line", {
      x1: x(frame()),
      x2: x(frame()),
      y1: 0,
      y2: height,
      stroke: css("--ink"),
      "stroke-width": 1.5,
    }),
  );
  box.replaceChildren(svg);
}
function drawReadout() {
  const score = DATA.graph.scores?.[frame()];
  const two = (v) => (isNumber(v) ? v.toFixed(2) : "–");
  const parts = [["round", DATA.graph.rounds[frame()]]];
  if (DATA.graph.learns)
    parts.push(["learnt edges", DATA.graph.edges[frame()]], ["groups", DATA.graph.groups[frame()]]);
  if (score)
    parts.push(
      ["precision", two(score.precision)],
      ["recall", two(score.recall)],
      ["F1", two(score.f1)],
      ["adjusted Rand index", two(score.rand)],
    );
  byId("frame").replaceChildren(
    ...parts.flatMap(([label, value], k) => [
      k ? "  ·  " : "",
      `${label} `,
      make("b", {}, String(value)),
    ]),
  );
}

export function startNetwork() {
  const draw = () => {
    byId("collaboration").hidden = !DATA.graph;
    if (!DATA.graph) return;
    drawWeights(byId("heat"), frame());
    drawGraph();
    drawRecovery();
    drawReadout();
    byId("graph-title").textContent = DATA.graph.learns ? "Learnt graph" : "Graph";
    byId("graph-legend").replaceChildren(...clusterLegend("dot"));
  };
  frame = startPlayer(() => DATA.graph?.rounds ?? [], draw);
  watch(draw);
}
