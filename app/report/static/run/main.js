// The page of a run.

import { start } from "../page.js";
import { startCurves } from "./curves.js";
import { startNetwork } from "./network.js";
import { startSplit } from "./split.js";
import { startTable } from "./table.js";

startCurves();
startNetwork();
startSplit();
startTable();
start();
