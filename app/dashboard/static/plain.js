// Live page without figures.

import { follow } from "./live.js";

follow(() => {});
