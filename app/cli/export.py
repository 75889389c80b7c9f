"""`coterie export`: write a peer's trained model to a file for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from coterie.app.cli.named import add_named


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write a model that takes raw examples and runs without Coterie."""
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--peer", help="number or name (the only one on this machine)")
    parser.add_argument("out", type=Path, metavar="model.pt2|model.onnx")
    add_named(parser)
    options = parser.parse_intermixed_args(arguments)
    from coterie.app.trained import export  # torch: not for --help
    from coterie.app.trained.personal import Named, personal_model

    named = Named(tuple(options.part), tuple(options.weights))
    model = personal_model(options.run_dir, options.peer, named)
    export.export(model, options.out)
    console.print(f"{model.about.peer_name}'s model ({model.about.method}): {options.out}")
