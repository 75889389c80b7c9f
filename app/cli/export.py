"""`coterie export`: write a peer's trained model to a file for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from coterie.app.cli.named import add_model, model_of


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write a model that takes raw examples and runs without Coterie."""
    add_model(parser)
    parser.add_argument("out", type=Path, metavar="model.pt2|model.onnx")
    options = parser.parse_intermixed_args(arguments)
    from coterie.app.trained import export  # torch: not for --help

    model = model_of(options)
    export.export(model, options.out)
    console.print(f"{model.about.peer_name}'s model ({model.about.method}): {options.out}")
