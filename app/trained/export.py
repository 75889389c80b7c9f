"""Export a saved model to PyTorch's pt2 format or to ONNX, for use without Coterie."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic
from coterie.app.trained.personal import PersonalModel

FORMATS = (".pt2", ".onnx")


def export(model: PersonalModel, path: Path) -> None:
    """Write the model, for any number of raw examples at a time; see `PersonalModel.forward`.

    Raises
    ------
    ConfigError
        The format is unknown, or the package that writes it is not installed.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: a model is exported as {' or '.join(FORMATS)}")
    example = example_for(model)
    batch = {0: torch.export.Dim("examples")}
    program = torch.export.export(model, (example,), dynamic_shapes=(batch,))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as draft:
        if path.suffix == ".pt2":
            with draft.open("wb") as file:
                torch.export.save(program, file)
            return
        try:
            written = torch.onnx.export(
                program, (example,), input_names=["raw"], output_names=["scores"], verbose=False,
                dynamic_shapes=(batch,),
            )  # fmt: skip
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error}: pip install onnx onnxscript") from None
        assert written is not None
        written.save(draft)


def example_for(model: PersonalModel) -> Tensor:
    """Return two raw examples of zeros, as input for tracing."""
    about = model.about
    fitted = about.preprocessing
    if about.task == "language":
        return torch.zeros(2, *about.shape, dtype=torch.int64)
    shape = (len(fitted.columns),) if fitted is not None and fitted.columns else about.shape
    of_table = fitted is not None and fitted.columns
    return torch.zeros(2, *shape, dtype=torch.float64 if of_table else torch.float32)
