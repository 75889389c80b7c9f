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
    parser.add_argument(
        "--threshold",
        type=_threshold,
        metavar="P|validation",
        help="probability above which the second of two classes is predicted; validation: the one "
        "that the peer's validation examples chose (the most probable class)",
    )
    parser.add_argument(
        "--recalibrate",
        action="store_true",
        help="scale probabilities by the temperature that the validation examples chose",
    )
    options = parser.parse_intermixed_args(arguments)
    if options.out.resolve() == options.input.resolve():
        raise ConfigError(
            f"--out {options.out} is the input: name another file for the predictions"
        )
    from coterie.app.trained import inputs, predict  # torch: not for --help

    model = model_of(options)
    examples = inputs.read(options.input, model.about)
    predict.write(options.out, model, examples, options.threshold, recalibrate=options.recalibrate)
    if (options.threshold == "validation" or options.recalibrate) and model.point.caution:
        console.print(f"warning: {model.point.caution}")
    about = model.about
    for name, limited in predict.limited(model, examples.raw):
        console.print(
            f"note: {name}'s scores were limited on {limited} of {len(examples.raw)} examples, "
            "which are unlike the rows that chose its weight"
        )
    console.print(
        f"{len(examples.raw)} predictions by {about.peer_name}'s model ({about.method}): "
        f"{options.out}"
    )


def _threshold(text: str) -> float | str:
    if text == "validation":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f'{text} is neither a number from 0 to 1 nor "validation"')
    return value
