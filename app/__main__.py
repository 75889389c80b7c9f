"""`coterie`: see `coterie.app.cli.main`."""

import signal
import sys
from pathlib import Path

# `python -m` looks for modules in the working directory first: a rich.py there is not ours.
if not sys.flags.safe_path:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from coterie.app.cli.main import main

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
