"""Options by which the user names the code and the files that a run directory names.

A run directory may come from anywhere, so what it names is not enough: what the user names in the
same words is taken from it.
"""

from __future__ import annotations

import argparse


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Let the user name code."""
    parser.add_argument(
        "--part", action="append", default=[], metavar="MODULE:ATTRIBUTE",
        help="code of your own that the run directory names; repeat it for several",
    )  # fmt: skip


def add_named(parser: argparse.ArgumentParser) -> None:
    """Let the user name code, and files of trained weights."""
    add_parts(parser)
    parser.add_argument(
        "--weights", action="append", default=[], metavar="FILE",
        help="trained weights that the network starts from, where they are not in the model's file",
    )  # fmt: skip
