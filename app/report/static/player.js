// Slider and button over the rounds.

import { make } from "./drawing.js";
import { closest } from "./numbers.js";
import { byId, watch } from "./page.js";

const PLAY = "M8 5v14l11-7z";
const PAUSE = "M7 5h4v14H7zM13 5h4v14h-4z";

// Starts at the last of the rounds that `roundsOf()` returns. With newer data it keeps its round, or
// moves to the new last round if it was at the last one. Calls `draw()` when the round changes.
// Returns a function that returns the index of the round.
export function startPlayer(roundsOf, draw) {
  const [slider, button] = [byId("slider"), byId("play")];
  let rounds = [];
  let timer = null;
  const last = () => rounds.length - 1;
  const place = (frame) => {
    slider.value = frame;
    slider.setAttribute("aria-valuetext", `round ${rounds[frame]}`);
  };
  const go = (frame) => {
    place(frame);
    draw();
  };
  const label = (d, text) => {
    const svg = make("svg", { viewBox: "0 0 24 24", width: 22, height: 22 });
    svg.append(make("path", { d, fill: "currentColor" }));
    svg.style.margin = "auto";
    button.replaceChildren(svg);
    button.setAttribute("aria-label", text);
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    label(PLAY, "Play the rounds");
  };
  const step = () => (+slider.value < last() ? go(+slider.value + 1) : stop());
  button.onclick = () => {
    if (timer) {
      stop();
      return;
    }
    if (+slider.value === last()) go(0);
    timer = setInterval(step, Math.min(500, Math.max(60, 7000 / last())));
    label(PAUSE, "Pause");
  };
  slider.oninput = () => {
    if (timer) stop();
    go(+slider.value);
  };
  stop();
  watch(() => {
    const [wasLast, round] = [+slider.value === last() || !rounds.length, rounds[+slider.value]];
    rounds = roundsOf();
    slider.max = Math.max(0, last());
    byId("player").hidden = last() < 1;
    const indices = [...rounds.keys()];
    place(wasLast ? Math.max(0, last()) : closest(indices, (k) => Math.abs(rounds[k] - round)));
  });
  return () => +slider.value;
}
