// All figures and the table of a comparison. They redraw the data that `show` of page.js gets, which
// must have the same methods and seeds.

import { offerSaving } from "../save.js";
import { startCurves } from "./curves.js";
import { startGains } from "./gains.js";
import { startMaps } from "./maps.js";
import { startRisks } from "./risks.js";
import { startTable } from "./table.js";

export function startFigures() {
  startTable();
  startCurves();
  startGains();
  startMaps();
  startRisks();
  offerSaving();
}
