// Collaboration weights: a heat map for each method whose peers give each other weights.

import { clusterColours, make } from "../drawing.js";
import { axisLabel, heatMap, pairReadOut } from "../heat_map.js";
import { decode, FORMAT, isNumber, plain } from "../numbers.js";
import { byId, DATA, fromData, pick, segment, watch } from "../page.js";
import { startPlayer } from "../player.js";
import { isFaded, methods, swatch } from "./methods.js";

const codes = fromData(({ maps }) => Uint8Array.from(atob(maps.shares), (c) => c.charCodeAt(0)));
const scales = fromData(({ maps }) => maps.of.map((each) => decode(each.scales, 2)));
const owns = fromData(({ maps }) => maps.of.map(({ own }) => own && decode(own, 2)));
const NAMED = 12; // peers whose names a small map has room for
const shown = { seed: 0, frame: () => 0 };

// Weights of map `m` of `DATA.maps.of`: as a share of the row's scale, unscaled, and a peer's own.
function mapShare(map, i, j) {
  const { low } = DATA.maps.of[map];
  const at = ((map * DATA.maps.rounds.length + shown.frame()) * DATA.peers + i) * DATA.peers + j;
  return low + ((1 - low) * codes()[at]) / 255;
}
const atRow = (i) => shown.frame() * DATA.peers + i;
const mapWeight = (map, i, j) =>
  i === j ? owns()[map][atRow(i)] : mapShare(map, i, j) * scales()[map][atRow(i)];

function emptyFigure({ method, f1 }) {
  const value = f1 && isNumber(f1[shown.frame()]) ? `F1 ${f1[shown.frame()].toFixed(2)}` : "F1 –";
  const score = DATA.clusters ? (f1 ? value : "learns no graph") : "";
  const name = DATA.methods[method];
  const figure = make(
    "figure",
    {},
    make("figcaption", {}, swatch(method), make("b", {}, name), make("span", {}, score)),
    make("canvas", { role: "img", "aria-label": `Collaboration weights of ${name}` }),
  );
  figure.style.opacity = isFaded(method) ? 0.35 : 1;
  return figure;
}
function drawMaps() {
  const order = DATA.order[shown.seed];
  const clusters = DATA.clusters?.[shown.seed];
  const here = [...DATA.maps.of.keys()].filter((map) => DATA.maps.of[map].seed === shown.seed);
  const figures = here.map((map) => emptyFigure(DATA.maps.of[map]));
  byId("maps").replaceChildren(...figures);
  byId("maps").classList.toggle("few", figures.length <= 8);
  byId("maps").classList.toggle("named", DATA.peers <= NAMED);
  here.forEach((map, k) => {
    const { method, own } = DATA.maps.of[map];
    const names = DATA.names[shown.seed];
    const canvas = figures[k].querySelector("canvas");
    heatMap(canvas, {
      size: figures[k].clientWidth,
      margin: clusters ? 10 : 0,
      labels: order.map((p) => axisLabel(names[p], p)),
      font: 11,
      order,
      clusters,
      colours: clusters && clusterColours(clusters),
      share: (i, j) => (i === j ? Number.NaN : mapShare(map, i, j)),
      readOut: (i, j) =>
        pairReadOut(i, j, {
          names,
          own,
          clusters,
          describe: () => `weight ${plain(mapWeight(map, i, j), 2)}`,
        }),
    });
    canvas.onclick = () => pick(method);
  });
  const drawn = here.map((map) => DATA.maps.of[map].method);
  const silent = methods.filter((m) => !drawn.includes(m)).map((m) => DATA.methods[m]);
  byId("silent").textContent = silent.length
    ? `No map for ${silent.join(", ")}: no peer gives weight to another peer.`
    : "";
  byId("frame").replaceChildren(
    "round ",
    make("b", {}, FORMAT.round(DATA.maps.rounds[shown.frame()])),
  );
}

export function startMaps() {
  if (!DATA.maps) return;
  const labels = Object.fromEntries(DATA.seeds.map((seed, s) => [s, `seed ${seed}`]));
  segment("map-seed", labels, "0", (key) => {
    shown.seed = +key;
    drawMaps();
  });
  byId("map-seed").hidden = DATA.seeds.length === 1;
  shown.frame = startPlayer(() => DATA.maps.rounds, drawMaps);
  watch(drawMaps);
}
