// The page of a comparison.

import { start } from "../page.js";
import { startCurves } from "./curves.js";
import { startGains } from "./gains.js";
import { startMaps } from "./maps.js";
import { startTable } from "./table.js";

startTable();
startCurves();
startGains();
startMaps();
start();
