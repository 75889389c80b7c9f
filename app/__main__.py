"""`coterie`: see `coterie.app.cli.main`."""

import signal
import sys

from coterie.app.cli.main import main

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
