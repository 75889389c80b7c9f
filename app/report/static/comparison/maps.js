// Collaboration weights: a heat map for each method whose peers give each other weights.

import { clusterColours, make } from "../drawing.js";
import { heatMap, pairReadOut } from "../heat_map.js";
import { FORMAT, isNumber, plain } from "../numbers.js";
import { byId, DATA, fromData, pick, segment, watch } from "../page.js";
import { startPlayer } from "../player.js";
import { isFaded, methods, swatch } from "./methods.js";

const codes = fromData(({ maps }) => Uint8Array.from(atob(maps.weights), (c) => c.charCodeAt(0)));
const shown = { seed: 0, frame: () => 0 };

// Returns a weight of `DATA.maps.of[map]`.
function mapWeight(map, i, j) {
  const { low, high } = DATA.maps.of[map];
  const at = ((map * DATA.maps.rounds.length + shown.frame()) * DATA.peers + i) * DATA.peers + j;
  return low + ((high - low) * codes()[at]) / 255;
}

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
  here.forEach((map, k) => {
    const { method, own, top } = DATA.maps.of[map];
    const canvas = figures[k].querySelector("canvas");
    heatMap(canvas, {
      size: figures[k].clientWidth,
      edge: clusters ? 10 : 0,
      order,
      clusters,
      colours: clusters && clusterColours(clusters),
      top,
      weight: (i, j) => (i === j && !own ? Number.NaN : mapWeight(map, i, j)),
      readOut: (i, j) =>
        pairReadOut(i, j, {
          names: DATA.names[shown.seed],
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
