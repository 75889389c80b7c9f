"""Command-line options with which the user allows code and files that a run directory names.

A run directory may come from anywhere, so code and files that it names are used only if the user
names them too, in the same words.
"""

from __future__ import annotations

import argparse


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the option that names code."""
    parser.add_argument(
        "--part", action="append", default=[], metavar="MODULE:ATTRIBUTE",
        help="your code that the run directory names; may be repeated",
    )  # fmt: skip


def add_named(parser: argparse.ArgumentParser) -> None:
    """Add the options that name code and files of trained weights."""
    add_parts(parser)
    parser.add_argument(
        "--weights", action="append", default=[], metavar="FILE",
        help="pretrained weights that the network starts from, if the model file lacks them",
    )  # fmt: skip
