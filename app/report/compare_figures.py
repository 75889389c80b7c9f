"""The comparison page's script, second part: gains peer by peer, collaboration maps, the start."""

from __future__ import annotations

FIGURES = r"""
const gains = {rooted: false};
function drawGains() {
  const box = byId("gains"), {accuracy, gain, final} = D.gains;
  const width = Math.max(280, box.clientWidth), narrow = width < 640;
  const rows = methods.filter((m) => D.methods[m] !== "local" || methods.length === 1)
    .map((m) => [m, gain[m].flatMap((seed, s) => seed.map((g, p) => [g, s, p]))
      .filter(([g]) => isNumber(g))])
    .filter(([, dots]) => dots.length)
    .sort(([, a], [, b]) => mean(b.map(([g]) => g)) - mean(a.map(([g]) => g)));
  const many = Math.max(1, ...rows.map(([, dots]) => dots.length));
  const radius = many > 150 ? 2.6 : many > 50 ? 3.4 : 4.4;
  const tall = narrow ? 58 : 42, top = 10, left = narrow ? 8 : 168, right = narrow ? 10 : 104;
  const height = top + rows.length * tall + 44, bend = (g) => gains.rooted
    ? Math.sign(g) * Math.sqrt(Math.abs(g)) : g;
  let [low, high] = spread([...rows.flatMap(([, dots]) => dots.map(([g]) => g)), 0]);
  if (low === high) { low -= 0.01; high += 0.01; }
  const [a, b] = [bend(low), bend(high)], room = (b - a) * 0.03;
  const x = (g) => left + (bend(g) - a + room) / (b - a + 2 * room) * (width - left - right);
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": "Gain over local of every peer, by method"});
  const told = (g) => accuracy ? `${g > 0 ? "+" : ""}${plain(100 * g, 3)}`
                               : `${g > 0 ? "+" : ""}${plain(g, 3)}`;
  let ticks = niceTicks(low, high, Math.max(3, width / 130));
  if (gains.rooted) {
    const most = Math.max(Math.abs(low), Math.abs(high)), unit = 10 ** Math.floor(Math.log10(most));
    ticks = [0.01, 0.05, 0.1, 0.5, 1, 2, 5].flatMap((k) => [-k * unit, k * unit])
      .filter((g) => g >= low && g <= high).concat([0]);
    ticks = ticks.filter((g) => ticks.every((other) => Math.abs(other) >= Math.abs(g)
      || Math.abs(x(other) - x(g)) > 44));
  }
  const end = top + rows.length * tall;
  ticks.forEach((g) => svg.append(
    make("line", {x1: x(g), x2: x(g), y1: top, y2: end,
                  stroke: css(g === 0 ? "--faint" : "--grid"), "stroke-width": g === 0 ? 1.5 : 1}),
    make("text", {x: x(g), y: end + 18, "text-anchor": "middle"}, told(g))));
  svg.append(make("text", {x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle"},
    (accuracy ? "test accuracy over local, points" : "test loss below local")
      + (gains.rooted ? " (square-root scale)" : "")));
  rows.forEach(([m, dots], k) => {
    const middle = top + (k + (narrow ? 0.66 : 0.5)) * tall, half = (narrow ? 0.3 : 0.42) * tall;
    const row = make("g", {opacity: faded(m) ? 0.25 : 1});
    const better = dots.filter(([g]) => g > 0).length / dots.length;
    const share = `${Math.round(100 * better)} % better`;
    row.append(make("text", narrow ? {x: 0, y: middle - half - 6}
                                   : {x: 0, y: middle + 4.5, class: "strong"}, D.methods[m]),
      make("text", narrow ? {x: width, y: middle - half - 6, "text-anchor": "end"}
                          : {x: width, y: middle + 4.5, "text-anchor": "end"}, share));
    const placed = [];
    [...dots].sort(([u], [v]) => u - v).forEach(([g, s, p]) => {
      const cx = x(g), near = placed.filter(([other]) => cx - other < 2 * radius);
      let shift = 0;
      for (let step = 1; near.some(([ox, oy]) => Math.hypot(cx - ox, shift - oy) < 1.8 * radius)
           && Math.abs(shift) + radius < half; step += 1)
        shift = (step % 2 ? 1 : -1) * Math.ceil(step / 2) * radius * 0.9;
      placed.push([cx, shift]);
      const dot = make("circle", {cx, cy: middle + shift, r: radius, fill: colour(m),
        "fill-opacity": 0.62, stroke: colour(m), "stroke-width": 0.8});
      dot.onpointermove = (event) => tip(event, [`${D.methods[m]}, peer ${p}, seed ${D.seeds[s]}`,
        D.clusters && `cluster ${D.clusters[s][p]}`,
        accuracy ? `${told(g)} points, ends with ${FORMAT.share(final[m][s][p])}`
                 : `${told(g)}, ends with ${plain(final[m][s][p], 4)}`]);
      row.append(dot);
    });
    const centre = x(mean(dots.map(([g]) => g)));
    row.append(make("line", {x1: centre, x2: centre, y1: middle - half, y2: middle + half,
      stroke: css("--paper"), "stroke-width": 5}), make("line", {x1: centre, x2: centre,
      y1: middle - half, y2: middle + half, stroke: css("--ink"), "stroke-width": 2.5}));
    row.onclick = () => pick(m);
    svg.append(row);
  });
  svg.onpointerleave = () => tip(null, null);
  svg.onpointermove = (event) => { if (event.target.tagName !== "circle") tip(null, null); };
  box.replaceChildren(svg);
}
function startGains() {
  if (!D.gains) return;
  const sizes = D.gains.gain.flat(2).filter((g) => isNumber(g) && g !== 0).map(Math.abs)
    .sort((u, v) => u - v);
  gains.rooted = sizes.length > 0 && sizes[sizes.length - 1] > 8 * sizes[sizes.length >> 1];
  segment(byId("gain-scale"), [["linear", "Linear", true], ["root", "Square root", true]],
    gains.rooted ? "root" : "linear", (key) => { gains.rooted = key === "root"; drawGains(); });
  watch(drawGains);
}

const M = D.maps;
const bytes = M && Uint8Array.from(atob(M.weights), (c) => c.charCodeAt(0));
const maps = {seed: 0, frame: M ? M.rounds.length - 1 : 0};
function mapWeight(k, i, j) {
  const {low, high} = M.of[k];
  const at = ((k * M.rounds.length + maps.frame) * D.peers + i) * D.peers + j;
  return low + (high - low) * bytes[at] / 255;
}
function drawMaps() {
  const n = D.peers, s = maps.seed, order = D.order[s], clusters = D.clusters && D.clusters[s];
  const ids = idsOf(clusters), runs = clusterRuns(order, clusters, (c) => paint(ids.indexOf(c)));
  const here = [...M.of.keys()].filter((k) => M.of[k].seed === s);
  const boxes = here.map((k) => {
    const {method: m, f1} = M.of[k];
    const canvas = make("canvas", {role: "img",
      "aria-label": `Collaboration weights of ${D.methods[m]}`});
    const score = f1 && isNumber(f1[maps.frame]) ? `F1 ${f1[maps.frame].toFixed(2)}` : "";
    const box = make("figure", {}, make("figcaption", {}, swatch(m),
      make("b", {}, D.methods[m]), make("span", {}, score)), canvas);
    box.style.opacity = faded(m) ? 0.35 : 1;
    return box;
  });
  byId("maps").replaceChildren(...boxes);
  byId("maps").classList.toggle("few", boxes.length <= 8);
  here.forEach((k, index) => {
    const entry = M.of[k], canvas = boxes[index].querySelector("canvas");
    const size = boxes[index].clientWidth, edge = clusters ? 10 : 0, cell = (size - edge - 2) / n;
    const share = (i, j) => mapWeight(k, i, j) / entry.top;
    paintHeat(prepare(canvas, size, size), {order, runs, edge, cell, gap: cell > 12 ? 1 : 0,
      own: entry.own, share});
    canvas.onpointermove = (event) => {
      const frame = canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - frame.top - edge) / cell);
      const column = Math.floor((event.clientX - frame.left - edge) / cell);
      if (row < 0 || column < 0 || row >= n || column >= n) { tip(null, null); return; }
      const [i, j] = [order[row], order[column]];
      tip(event, [i === j ? `Peer ${i} itself` : `Peer ${i} gives peer ${j}`,
        i === j && !entry.own ? "no own weight in this method"
                              : `weight ${plain(mapWeight(k, i, j), 2)}`,
        i !== j && clusters && (clusters[i] === clusters[j] ? `both in cluster ${clusters[i]}`
          : `clusters ${clusters[i]} and ${clusters[j]}`)]);
    };
    canvas.onpointerleave = () => tip(null, null);
    canvas.onclick = () => pick(entry.method);
  });
  const drawn = new Set(here.map((k) => M.of[k].method));
  const silent = methods.filter((m) => !drawn.has(m)).map((m) => D.methods[m]);
  byId("silent").textContent = silent.length
    ? `No map: in ${silent.join(", ")}, no peer gives another any weight.` : "";
  byId("frame").replaceChildren("round ", make("b", {}, FORMAT.round(M.rounds[maps.frame])));
}
function startMaps() {
  if (!M) return;
  segment(byId("map-seed"), D.seeds.map((seed, s) => [String(s), `seed ${seed}`, true]), "0",
    (key) => { maps.seed = +key; drawMaps(); });
  byId("map-seed").hidden = D.seeds.length === 1;
  player(M.rounds, (frame) => { maps.frame = frame; drawMaps(); });
  watch(drawMaps);
}

startTable();
startCurves();
startGains();
startMaps();
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && view.picked !== null) pick(view.picked);
});
start();
"""
