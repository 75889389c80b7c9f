"""`python -m coterie`, the same as the command `coterie`."""

import sys

# `python -m` looks for modules in the working directory first: a rich.py there is not ours.
if not sys.flags.safe_path:
    del sys.path[0]

from coterie.app.cli.main import run_as_program

if __name__ == "__main__":
    run_as_program()
