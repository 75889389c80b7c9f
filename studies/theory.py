"""Figures that papers calculate: `python -m studies.theory [FOLDER]`, docs/images by default.

Figure 1 of All-for-one is the size of the sufficient cluster of its definition 2, for quadratics
around optima that differ; figure 1 of WGA the speed-up of its theorem 1. No training is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coterie.app.reproduction.formulas import sufficient_clusters, wga_speed_up
from studies.svg import save


def main() -> None:
    """Draw both."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    save(sufficient_clusters(), folder / "sufficient-cluster.svg")
    save(wga_speed_up(), folder / "wga-speed-up.svg")


if __name__ == "__main__":
    main()
