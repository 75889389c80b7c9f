"""`coterie export`: write a peer's trained model to a file for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from coterie.app.cli.named import add_named


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write a model that takes raw examples and runs without Coterie."""
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--peer", help="number or name (the only one that is here)")
    parser.add_argument("out", type=Path, metavar="model.pt2|model.onnx")
    add_named(parser)
    given = parser.parse_intermixed_args(arguments)
    from coterie.app.trained import export  # torch: not for --help
    from coterie.app.trained.personal import Named, personal_model

    named = Named(tuple(given.part), tuple(given.weights))
    model = personal_model(given.run_dir, given.peer, named)
    export.export(model, given.out)
    console.print(f"{model.about.peer_name}'s model ({model.about.method}): {given.out}")
