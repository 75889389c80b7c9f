// The page of a run.

import { start } from "../page.js";
import { startFigures } from "./figures.js";

startFigures();
start();
