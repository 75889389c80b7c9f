// The page of a comparison.

import { start } from "../page.js";
import { startFigures } from "./figures.js";

startFigures();
start();
