"""Options that several commands share: code of a run directory runs only if named here too."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.app.config.keys import ConfigError
from coterie.errors import Interrupted

if TYPE_CHECKING:
    from coterie.app.trained.personal import PersonalModel


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that execute several runs."""
    parser.add_argument(
        "--workers", type=int, help="number of parallel runs (as many as cores allow)"
    )


def add_comparison(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add the options of every comparison of runs."""
    parser.add_argument(
        "--seeds", type=int, help="number of seeds, counted from the key seed (3; tables: 10)"
    )
    add_workers(parser)
    parser.add_argument(
        "--out", help=f"directory (runs/{kind}/<preset>; <preset>-2 and so on beside others)"
    )


@contextmanager
def continued(command: str, arguments: Sequence[str], directory: Path) -> Iterator[None]:
    """Turn Ctrl-C into Interrupted with the command that goes on, once `directory` exists."""
    try:
        yield
    except KeyboardInterrupt:
        line = shlex.join(["coterie", command, *arguments])
        raise Interrupted(line if directory.exists() else "") from None


def new_folder(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Path:
    """Return the only argument, a folder that does not exist or is empty."""
    parser.add_argument("directory", type=Path, help="a new or an empty folder")
    directory: Path = parser.parse_args(arguments).directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists already: name a new or an empty folder")
    return directory


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
