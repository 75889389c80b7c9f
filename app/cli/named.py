"""Command-line options of a peer's model, and of the code and files that a run directory names.

A run directory may come from anywhere, so code and files that it names are used only if the user
names them too, in the same words.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.app.trained.personal import PersonalModel


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the option that names code."""
    parser.add_argument(
        "--part", action="append", default=[], metavar="MODULE:ATTRIBUTE",
        help="your code that the run directory names; may be repeated",
    )  # fmt: skip


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a peer's model, and the code and weights that it needs."""
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--peer", help="number or name (the only one that is here)")
    add_parts(parser)
    parser.add_argument(
        "--weights", action="append", default=[], metavar="FILE",
        help="pretrained weights that the network starts from, if the model file lacks them",
    )  # fmt: skip


def model_of(options: argparse.Namespace) -> PersonalModel:
    """Return the model that the options of `add_model` name."""
    from coterie.app.trained.personal import Named, personal_model  # torch: not for --help

    named = Named(tuple(options.part), tuple(options.weights))
    return personal_model(options.run_dir, options.peer, named)
