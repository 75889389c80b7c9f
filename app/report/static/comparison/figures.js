// All figures of a comparison, and its table. They draw the page's data, and anew what `show` of
// page.js is given, as long as that is of the same methods and seeds.

import { startCurves } from "./curves.js";
import { startGains } from "./gains.js";
import { startMaps } from "./maps.js";
import { startTable } from "./table.js";

export function startFigures() {
  startTable();
  startCurves();
  startGains();
  startMaps();
}
