// Who collaborates with whom in a run: heat map, learnt graph and recovery, round by round.

import { css, line, make, PALETTE, picture, prepare } from "../drawing.js";
import { clusterRuns, heatMap } from "../heat_map.js";
import { closest, isNumber, plain } from "../numbers.js";
import { byId, DATA, fromData, hideTip, pick, showTip, view, watch } from "../page.js";
import { startPlayer } from "../player.js";
import { clusterColour, clusterLegend, peerColour, peerName, peers } from "./peers.js";

const codes = fromData(
  ({ graph }) =>
    new Uint16Array(Uint8Array.from(atob(graph.weights), (c) => c.charCodeAt(0)).buffer),
);
let frame = () => 0;

function weight(i, j, at = frame()) {
  const { low, high } = DATA.graph;
  const code = codes()[(at * DATA.peers + i) * DATA.peers + j];
  return low + ((high - low) * code) / 65535;
}
// The peers to which peer i gives most weight: peer and weight.
export function collaborators(i, most, at = frame()) {
  const least = Math.max(1e-9, 0.005 * DATA.graph.top);
  return peers()
    .filter((j) => j !== i)
    .map((j) => [j, weight(i, j, at)])
    .filter(([, w]) => w > least)
    .sort((a, b) => b[1] - a[1])
    .slice(0, most);
}

function drawHeatMap() {
  const canvas = byId("heat");
  const size = Math.min(canvas.parentElement.clientWidth, 520);
  const hasNumbers = (size - 30) / DATA.peers >= 17;
  const edge = hasNumbers ? 30 : 10;
  const { ink, cell, under } = heatMap(canvas, {
    size,
    edge,
    order: DATA.order,
    clusters: DATA.clusters,
    colours: clusterColour(),
    own: DATA.graph.own,
    top: DATA.graph.top,
    weight,
    describe: (i, j) => `weight ${plain(weight(i, j), 3)} in round ${DATA.graph.rounds[frame()]}`,
  });
  if (hasNumbers) {
    ink.textAlign = "center";
    ink.textBaseline = "middle";
    DATA.order.forEach((p, k) => {
      const middle = edge + (k + 0.5) * cell;
      ink.fillStyle = css(p === view.picked ? "--ink" : "--soft");
      ink.fillText(p, middle, 18);
      ink.fillText(p, 18, middle);
    });
  }
  if (view.picked !== null) {
    const row = DATA.order.indexOf(view.picked);
    ink.strokeStyle = css("--ink");
    ink.lineWidth = 2;
    ink.strokeRect(edge - 1, edge + row * cell - 1, DATA.peers * cell + 1, cell + 1);
  }
  canvas.onclick = (event) => {
    const pair = under(event);
    if (pair) pick(pair[0]);
  };
}

// Places on a ring, the first at `angle`.
function ring(count, [x, y], radius, angle) {
  return Array.from({ length: count }, (_, k) => {
    const turn = (2 * Math.PI * k) / count + angle;
    return [x + radius * Math.cos(turn), y + radius * Math.sin(turn)];
  });
}
// Where the peers stand: clusters are rings on a ring; without them, all peers are on one.
function layout(size) {
  const middle = size / 2;
  const runs = DATA.clusters ? clusterRuns(DATA.order, DATA.clusters) : [];
  const top = -Math.PI / 2;
  let places = ring(DATA.peers, [middle, middle], DATA.peers > 1 ? middle - 28 : 0, top);
  if (runs.length > 1) {
    const room = middle - 30;
    const share = Math.sin(Math.PI / runs.length);
    const inner = Math.min(0.3 * room, ((room * share) / (1 + share)) * 0.8);
    const centres = ring(runs.length, [middle, middle], room - inner, top);
    places = runs.flatMap(({ first, end }, k) => {
      const count = end - first;
      const radius = count === 1 ? 0 : count === 2 ? Math.min(inner, 48) : inner;
      return ring(count, centres[k], radius, (2 * Math.PI * k) / runs.length);
    });
  }
  return peers().map((p) => places[DATA.order.indexOf(p)]);
}

function drawGraph() {
  const canvas = byId("graph");
  const size = Math.min(canvas.parentElement.clientWidth, 520);
  const ink = prepare(canvas, size, size);
  const places = layout(size);
  drawEdges(ink, places);
  const radius = drawPeers(ink, places);
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
    const given = collaborators(p, 4).map(([j, w]) => `gives peer ${j} ${plain(w, 3)}`);
    showTip(event, [peerName(p), ...(given.length ? given : ["gives nobody any weight"])]);
  };
  canvas.onpointerleave = hideTip;
  canvas.onclick = (event) => {
    const p = under(event);
    if (p !== null) pick(p);
  };
}
// Each half of an edge is as strong as the weight that the peer at its end gives.
function drawEdges(ink, places) {
  const isCrowded = DATA.peers > 30;
  const [accent, soft] = [css("--accent"), css("--soft")];
  const [thinnest, widest] = isCrowded ? [0.4, 1.6] : [0.6, DATA.peers > 10 ? 4 : 6];
  for (const i of peers())
    for (const j of peers()) {
      const share = i === j ? 0 : Math.min(1, weight(i, j) / DATA.graph.top);
      if (share < 0.02) continue;
      const isPicked = view.picked === i || view.picked === j;
      const faded = view.picked === null || isPicked ? 1 : 0.15;
      ink.globalAlpha =
        (0.04 + 0.9 * share ** 1.2) * faded * (isCrowded && !isPicked && share < 0.5 ? 0.5 : 1);
      ink.strokeStyle = isPicked ? accent : soft;
      ink.lineWidth = thinnest + widest * share;
      const [[xi, yi], [xj, yj]] = [places[i], places[j]];
      ink.beginPath();
      ink.moveTo(xi, yi);
      ink.lineTo((xi + xj) / 2, (yi + yj) / 2);
      ink.stroke();
    }
  ink.globalAlpha = 1;
}
// Returns the radius of a peer.
function drawPeers(ink, places) {
  const n = DATA.peers;
  const radius = n > 48 ? 6 : n > 20 ? 9 : n > 10 ? 14 : 18;
  ink.textAlign = "center";
  ink.textBaseline = "middle";
  const high = radius > 16 ? 15 : radius > 10 ? 13 : 10;
  ink.font = ink.font.replace(/^.*?px/, `600 ${high}px`);
  for (const p of peers()) {
    const [x, y] = places[p];
    ink.beginPath();
    ink.arc(x, y, radius, 0, 2 * Math.PI);
    ink.fillStyle = peerColour(p);
    ink.fill();
    ink.strokeStyle = css(p === view.picked ? "--ink" : "--paper");
    ink.lineWidth = p === view.picked ? 3 : 2;
    ink.stroke();
    if (radius < 9) continue;
    ink.fillStyle = DATA.clusters ? "#fff" : css("--paper");
    ink.fillText(p, x, y + 0.5);
  }
  return radius;
}

// How well the learnt graph finds the true clusters, over the rounds.
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
  const parts = [
    ["round", DATA.graph.rounds[frame()]],
    ["learnt edges", DATA.graph.edges[frame()]],
    ["groups", DATA.graph.groups[frame()]],
  ];
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
    drawHeatMap();
    drawGraph();
    drawRecovery();
    drawReadout();
    byId("top").textContent = plain(DATA.graph.top, 3);
    byId("graph-legend").replaceChildren(...clusterLegend("dot"));
  };
  frame = startPlayer(() => DATA.graph?.rounds ?? [], draw);
  watch(draw);
}
