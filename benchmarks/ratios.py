"""Three rows of the engine benchmark in half a minute, as ratios.

    OMP_NUM_THREADS=1 python -m benchmarks.ratios

CI prints them beside the ratios of docs/results/speed.md, to show a change that halves one. They
never fail a job, because CI machines are shared; only processor seconds are compared.
"""

from __future__ import annotations

import time

from benchmarks import engine

ROWS = (("mlp-64", 8, 10, 6.8), ("mlp-784", 20, 10, 2.5), ("cnn", 1, 10, 1.1))
"""Network, peers, batch; the last ratio measured on a quiet machine."""


def main() -> None:
    """Measure and print."""
    engine.clock = time.process_time
    for network, peers, batch, before in ROWS:
        row = engine.compare("cpu", network, peers, batch)
        slow = "  slower than half of that" if row.ratio < before / 2 else ""
        print(f"{network}, {peers} peers: {row.ratio} times a plain loop ({before}){slow}")


if __name__ == "__main__":
    main()
