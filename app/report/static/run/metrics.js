// Metrics of a run: for each round, the values of all peers.

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
