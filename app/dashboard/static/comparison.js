// The page of a comparison, while its runs go on.

import "../../report/static/comparison/main.js";
import { follow } from "./live.js";

follow(() => location.reload());
