// Live page of a run.

import { show, start } from "../../report/static/page.js";
import { startFigures } from "../../report/static/run/figures.js";
import { follow } from "./live.js";

startFigures();
start();
follow((page) => show(JSON.parse(page.getElementById("run").textContent)));
