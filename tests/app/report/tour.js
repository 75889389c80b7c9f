// Uses every control of a page: points at and clicks on figures, presses buttons, clicks rows,
// searches, and turns to the last page.

const flags = document.documentElement.dataset;
addEventListener("error", (event) => {
  flags.error = event.message;
});

function touch(element, x, y) {
  const { left, top, width, height } = element.getBoundingClientRect();
  const at = { clientX: left + x * width, clientY: top + y * height, bubbles: true };
  element.dispatchEvent(new PointerEvent("pointermove", at));
  element.dispatchEvent(new MouseEvent("click", at));
  element.dispatchEvent(new PointerEvent("pointerleave", at));
}
function touchFigures(places) {
  for (const figure of document.querySelectorAll("canvas, .chart > svg"))
    for (const place of places) touch(figure, place, 1 - place);
}

addEventListener("load", () => {
  for (const dot of document.querySelectorAll(".chart circle")) touch(dot, 0.5, 0.5);
  touchFigures([0.01, 0.3, 0.5, 0.8]);
  for (const button of document.querySelectorAll(".seg button, th button")) {
    button.click();
    touchFigures([0.3]);
  }
  for (const button of document.querySelectorAll(".keys button, #play")) button.click();
  for (const row of [...document.querySelectorAll("tbody tr")].slice(0, 6)) row.click();
  dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  const search = document.getElementById("search");
  for (const words of search ? ["cluster 1", "nobody", ""] : []) {
    search.value = words;
    search.dispatchEvent(new Event("input"));
  }
  const next = document.getElementById("next");
  while (next && !next.disabled) next.click();
  const slider = document.getElementById("slider");
  if (slider) {
    slider.value = 0;
    slider.dispatchEvent(new Event("input"));
  }
  flags.toured = "yes";
});
