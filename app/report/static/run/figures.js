// All figures of a run. They redraw the data that `show` of page.js gets.

import { offerSaving } from "../save.js";
import { startCurves } from "./curves.js";
import { startNetwork } from "./network.js";
import { startPredictions } from "./predictions.js";
import { startSplit } from "./split.js";
import { startTable } from "./table.js";
import { startWorth } from "./worth.js";

export function startFigures() {
  startCurves();
  startNetwork();
  startWorth();
  startSplit();
  startPredictions();
  startTable();
  offerSaving();
}
