"""The report page's script, second part: collaboration heat map, learnt graph and their player."""

NETWORK = r"""
const G = D.graph;
const codes = G && new Uint16Array(
  Uint8Array.from(atob(G.weights), (c) => c.charCodeAt(0)).buffer);
function weight(frame, i, j) {
  const code = codes[(frame * D.peers + i) * D.peers + j];
  return G.low + (G.high - G.low) * code / 65535;
}
const runs = clusterRuns(D.order, D.clusters, clusterColour);
function drawHeat() {
  const canvas = byId("heat"), n = D.peers;
  const size = Math.min(canvas.parentElement.clientWidth, 520);
  const edge = (size - 30) / n >= 17 ? 30 : 10, cell = (size - edge - 2) / n;
  const ink = prepare(canvas, size, size), gap = cell > 12 ? 1 : 0;
  paintHeat(ink, {order: D.order, runs, edge, cell, gap, own: G.own,
    share: (i, j) => weight(view.frame, i, j) / G.top});
  if (edge === 30) {
    ink.textAlign = "center"; ink.textBaseline = "middle";
    D.order.forEach((p, k) => {
      ink.fillStyle = css(p === view.peer ? "--ink" : "--soft");
      ink.fillText(p, edge + (k + 0.5) * cell, 18); ink.fillText(p, 18, edge + (k + 0.5) * cell);
    });
  }
  if (view.peer !== null) {
    const k = D.order.indexOf(view.peer);
    ink.strokeStyle = css("--ink"); ink.lineWidth = 2;
    ink.strokeRect(edge - 1, edge + k * cell - 1, n * cell + 1, cell + 1);
  }
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - edge) / cell);
    const column = Math.floor((event.clientX - box.left - edge) / cell);
    return row >= 0 && column >= 0 && row < n && column < n ? [D.order[row], D.order[column]]
                                                            : null;
  };
  canvas.onpointermove = (event) => {
    const found = at(event);
    if (!found) { tip(null, null); return; }
    const [i, j] = found;
    tip(event, [i === j ? `Peer ${i} itself` : `Peer ${i} gives peer ${j}`,
      i === j && !G.own ? "no own weight in this method"
        : `weight ${plain(weight(view.frame, i, j), 3)} in round ${G.rounds[view.frame]}`,
      i !== j && D.clusters
        && (D.clusters[i] === D.clusters[j] ? `both in cluster ${D.clusters[i]}`
            : `clusters ${D.clusters[i]} and ${D.clusters[j]}`)]);
  };
  canvas.onpointerleave = () => tip(null, null);
  canvas.onclick = (event) => { const found = at(event); if (found) pick(found[0]); };
}

function layout(size) {
  const places = Array(D.peers), middle = size / 2;
  if (runs.length > 1) {
    const room = middle - 30, inner = Math.min(0.3 * room, room * Math.sin(Math.PI / runs.length)
      / (1 + Math.sin(Math.PI / runs.length)) * 0.8), outer = room - inner;
    runs.forEach(([first, end], k) => {
      const angle = 2 * Math.PI * k / runs.length - Math.PI / 2;
      const [cx, cy] = [middle + outer * Math.cos(angle), middle + outer * Math.sin(angle)];
      const many = end - first;
      for (let m = 0; m < many; m += 1) {
        const turn = 2 * Math.PI * m / many + angle + Math.PI / 2;
        const radius = many === 1 ? 0 : many === 2 ? Math.min(inner, 48) : inner;
        places[D.order[first + m]] = [cx + radius * Math.cos(turn), cy + radius * Math.sin(turn)];
      }
    });
  } else D.order.forEach((p, k) => {
    const angle = 2 * Math.PI * k / D.peers - Math.PI / 2, radius = D.peers > 1 ? middle - 28 : 0;
    places[p] = [middle + radius * Math.cos(angle), middle + radius * Math.sin(angle)];
  });
  return places;
}
function drawGraph() {
  const canvas = byId("graph"), n = D.peers;
  const size = Math.min(canvas.parentElement.clientWidth, 520);
  const ink = prepare(canvas, size, size), places = layout(size);
  const radius = n > 48 ? 6 : n > 20 ? 9 : n > 10 ? 14 : 18, quiet = css("--soft");
  for (let i = 0; i < n; i += 1) for (let j = 0; j < n; j += 1) {
    const share = i === j ? 0 : Math.min(1, weight(view.frame, i, j) / G.top);
    if (share < 0.02) continue;
    const mine = view.peer === i || view.peer === j;
    const [[xi, yi], [xj, yj]] = [places[i], places[j]];
    ink.globalAlpha = (0.04 + 0.9 * share ** 1.2) * (view.peer === null || mine ? 1 : 0.15)
      * (n > 30 && !mine && share < 0.5 ? 0.5 : 1);
    ink.strokeStyle = mine ? css("--accent") : quiet;
    ink.lineWidth = (n > 30 ? 0.4 : 0.6) + (n > 30 ? 1.6 : n > 10 ? 4 : 6) * share;
    ink.beginPath(); ink.moveTo(xi, yi); ink.lineTo((xi + xj) / 2, (yi + yj) / 2); ink.stroke();
  }
  ink.globalAlpha = 1; ink.textAlign = "center"; ink.textBaseline = "middle";
  peers.forEach((p) => {
    const [x, y] = places[p];
    ink.beginPath(); ink.arc(x, y, radius, 0, 2 * Math.PI);
    ink.fillStyle = peerColour(p); ink.fill();
    ink.strokeStyle = css(p === view.peer ? "--ink" : "--paper");
    ink.lineWidth = p === view.peer ? 3 : 2; ink.stroke();
    if (radius >= 9) {
      ink.fillStyle = D.clusters ? "#fff" : css("--paper");
      const high = radius > 16 ? 15 : radius > 10 ? 13 : 10;
      ink.font = ink.font.replace(/^.*?px/, `600 ${high}px`);
      ink.fillText(p, x, y + 0.5);
    }
  });
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const gap = (p) => Math.hypot(places[p][0] - event.clientX + box.left,
                                  places[p][1] - event.clientY + box.top);
    const p = peers.reduce((a, b) => gap(b) < gap(a) ? b : a);
    return gap(p) <= radius + 6 ? p : null;
  };
  canvas.onpointermove = (event) => {
    const p = at(event);
    canvas.style.cursor = p === null ? "default" : "pointer";
    if (p === null) { tip(null, null); return; }
    const mates = collaborators(p, view.frame, 4);
    tip(event, [`Peer ${p}${D.clusters ? `, cluster ${D.clusters[p]}` : ""}`,
      ...(mates.length ? mates.map(([j, w]) => `gives peer ${j} ${plain(w, 3)}`)
                       : ["gives nobody any weight"])]);
  };
  canvas.onpointerleave = () => tip(null, null);
  canvas.onclick = (event) => { const p = at(event); if (p !== null) pick(p); };
}
function collaborators(i, frame, most) {
  if (!G) return [];
  const least = Math.max(1e-9, 0.005 * G.top);
  return peers.filter((j) => j !== i).map((j) => [j, weight(frame, i, j)])
    .filter(([, w]) => w > least).sort((a, b) => b[1] - a[1]).slice(0, most);
}

function drawStrip() {
  const box = byId("strip");
  if (!G.scores || G.rounds.length < 2) return;
  const width = Math.max(200, box.clientWidth), height = 84, inset = 8, top = 8, bottom = 74;
  const x = (k) => inset + k / (G.rounds.length - 1) * (width - 2 * inset);
  const y = (v) => bottom - v * (bottom - top);
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, height, width: "100%", role: "img",
    "aria-label": "F1 and adjusted Rand index of the learnt graph over the rounds"});
  [0, 0.5, 1].forEach((v) => svg.append(make("line", {x1: inset, x2: width - inset, y1: y(v),
    y2: y(v), stroke: css("--grid")})));
  [["f1", css("--accent"), ""], ["rand", PALETTE[1], "5 3"]].forEach(([key, stroke, dash]) => {
    const points = G.scores.map((s, k) => `${x(k).toFixed(1)} ${y(Math.max(0, s[key] ?? 0))
      .toFixed(1)}`);
    svg.append(make("path", {d: `M${points.join("L")}`, fill: "none", stroke,
      "stroke-width": 2, "stroke-dasharray": dash, "stroke-linejoin": "round"}));
  });
  svg.append(make("line", {x1: x(view.frame), x2: x(view.frame), y1: 0, y2: height,
    stroke: css("--ink"), "stroke-width": 1.5}));
  box.replaceChildren(svg);
}
function drawReadout() {
  const s = G.scores && G.scores[view.frame];
  const two = (v) => isNumber(v) ? v.toFixed(2) : "–";
  const parts = [["round", G.rounds[view.frame]], ["learnt edges", G.edges[view.frame]],
    ["groups", G.groups[view.frame]], ...(s ? [["precision", two(s.precision)],
    ["recall", two(s.recall)], ["F1", two(s.f1)], ["adjusted Rand index", two(s.rand)]] : [])];
  byId("frame").replaceChildren(...parts.flatMap(([label, value], k) =>
    [k ? "  ·  " : "", `${label} `, make("b", {}, String(value))]));
}
function startNetwork() {
  if (!G) return;
  const draw = () => [drawHeat, drawGraph, drawStrip, drawReadout].forEach((each) => each());
  player(G.rounds, (frame) => { view.frame = frame; draw(); });
  byId("top").textContent = plain(G.top, 3);
  byId("graph-legend").replaceChildren(...clusterLegend("dot"));
  watch(draw);
}
"""
