// Slider and button over the rounds.

import { make } from "./drawing.js";
import { byId } from "./page.js";

const PLAY = "M8 5v14l11-7z";
const PAUSE = "M7 5h4v14H7zM13 5h4v14h-4z";

// At the last of `rounds` to begin with; show(index) draws.
export function startPlayer(rounds, show) {
  const [slider, button, last] = [byId("slider"), byId("play"), rounds.length - 1];
  slider.max = last;
  slider.value = last;
  byId("player").hidden = last === 0;
  let timer = null;
  const go = (frame) => {
    slider.value = frame;
    slider.setAttribute("aria-valuetext", `round ${rounds[frame]}`);
    show(frame);
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
  const step = () => (+slider.value < last ? go(+slider.value + 1) : stop());
  button.onclick = () => {
    if (timer) {
      stop();
      return;
    }
    if (+slider.value === last) go(0);
    timer = setInterval(step, Math.min(500, Math.max(60, 7000 / last)));
    label(PAUSE, "Pause");
  };
  slider.oninput = () => {
    if (timer) stop();
    go(+slider.value);
  };
  stop();
}
