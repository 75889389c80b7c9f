"""`coterie predict`: predict new examples with a peer's trained model."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from coterie.app.cli.named import add_model, model_of
from coterie.app.config.keys import ConfigError


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Predict the examples of a file with a peer's model on this machine."""
    add_model(parser)
    parser.add_argument("input", type=Path, help="table (.csv, .parquet), .npz, folder of images")
    parser.add_argument("--out", type=Path, default=Path("predictions.csv"), help="or .npz")
    options = parser.parse_intermixed_args(arguments)
    if options.out.resolve() == options.input.resolve():
        raise ConfigError(
            f"--out {options.out} is the input: name another file for the predictions"
        )
    from coterie.app.trained import inputs, predict  # torch: not for --help

    model = model_of(options)
    examples = inputs.read(options.input, model.about)
    predict.write(options.out, model, examples)
    about = model.about
    console.print(
        f"{len(examples.raw)} predictions by {about.peer_name}'s model ({about.method}): "
        f"{options.out}",
        soft_wrap=True,
    )
