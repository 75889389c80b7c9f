// What the peers of a run measured, by metric: for each round, the numbers of all peers.

import { decode } from "../numbers.js";
import { fromData } from "../page.js";

export const metrics = fromData(({ metrics, peers, rounds }) =>
  Object.fromEntries(
    Object.entries(metrics).map(([key, text]) => {
      const values = decode(text, 3);
      return [key, rounds.map((_, r) => [...values.subarray(r * peers, (r + 1) * peers)])];
    }),
  ),
);
