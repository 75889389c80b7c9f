"""Export a saved model to PyTorch's pt2 format or to ONNX, for use without Coterie."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import coterie
from coterie.app.config.keys import ConfigError
from coterie.app.runs import atomic
from coterie.app.trained.about import About
from coterie.app.trained.inputs import refuses_missing
from coterie.app.trained.personal import PersonalModel
from coterie.clients.engine.tasks import TASKS
from coterie.datasets import grammar
from coterie.datasets.preprocessing import Column

if TYPE_CHECKING:
    import onnx_ir as ir

FORMATS = (".pt2", ".onnx")
METADATA = "coterie.json"
"""Name of the metadata among the extra files of a .pt2."""


def export(model: PersonalModel, path: Path) -> None:
    """Write the model, for any number of raw examples at a time.

    A .pt2 takes what `PersonalModel.forward` takes; for a table a dict, column name -> cells (B,)
    in double precision, categories by their index. It returns scores.

    An .onnx has an input `raw`; for a table an input per column, (B,): strings for a category, else
    doubles. Its outputs are `scores` and, for classes, `probabilities`.

    Cells of a table that `coterie predict` refuses make the outputs of their row NaN.

    ConfigError: the format is unknown, the package that writes it is not installed, or a column has
    no name that an .onnx can have.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: a model is exported as {' or '.join(FORMATS)}")
    columns = model.about.table
    module = _OfColumns(model, columns) if columns else model
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as draft:
        if path.suffix == ".pt2":
            files = {METADATA: json.dumps(metadata(model.about), indent=2)}
            with draft.open("wb") as file:
                torch.export.save(_traced(module, model.about), file, extra_files=files)
        else:
            _write_onnx(module, model.about, draft)


def metadata(about: About) -> dict[str, Any]:
    """Return the metadata of an exported model: JSON values by name."""
    fitted = about.preprocessing
    return {
        "format": "coterie export 1",
        "version": coterie.__version__,
        "peer": about.peer_name,
        "method": about.method,
        "network": about.model,
        "task": about.task,
        "dataset": about.dataset,
        "shape": about.shape,
        "columns": [column.as_json() for column in about.table],
        "classes": about.classes,
        "normalisation": about.normalisation,
        "schema": fitted.schema if fitted is not None else "",
        "config_digest": about.config_digest,
        "data": about.data,
    }


class _OfColumns(nn.Module):
    """Model of a table's columns by name: (B,) each, to scores (B, classes)."""

    low: Tensor
    high: Tensor
    is_category: Tensor

    def __init__(self, model: PersonalModel, columns: Sequence[Column]) -> None:
        super().__init__()
        self.model = model
        self._names = [column.name for column in columns]
        self._refuses_missing = refuses_missing(model.about)
        largest = torch.finfo(torch.float64).max
        self.register_buffer("low", torch.full((len(columns),), -largest, dtype=torch.float64))
        self.register_buffer("high", -self.low)
        self.register_buffer("is_category", torch.zeros(len(columns), dtype=torch.bool))
        for index, column in enumerate(columns):
            if column.kind == "category":
                self.is_category[index] = True
                self.low[index], self.high[index] = 0, len(column.categories) - 1
            elif column.kind == "number":
                self.low[index] = -largest if column.low is None else column.low
                self.high[index] = largest if column.high is None else column.high

    def forward(self, columns: Mapping[str, Tensor]) -> Tensor:
        raw = torch.stack([columns[name].double() for name in self._names], dim=1)
        raw = self.model.preparation.known(raw)
        wrong = (raw < self.low) | (raw > self.high)
        wrong = wrong | (self.is_category & (raw != raw.floor()) & ~raw.isnan())
        if self._refuses_missing:
            wrong = wrong | raw.isnan()
        scores: Tensor = self.model(raw)
        return scores.masked_fill(wrong.any(dim=1, keepdim=True), math.nan)


class _WithProbabilities(nn.Module):
    """Model with a second output, the class or survival probabilities."""

    def __init__(self, module: nn.Module, task: str) -> None:
        super().__init__()
        self.module, self._predict = module, TASKS[task].predict

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        scores = self.module(inputs)
        return scores, self._predict(scores)


def _traced(module: nn.Module, about: About) -> torch.export.ExportedProgram:
    """Trace the module with two examples; their number is free."""
    batch: Any = {0: torch.export.Dim("examples")}
    dtype = torch.int64 if about.task == "language" else torch.float32
    example: Any = torch.zeros(2, *about.shape, dtype=dtype)
    if about.table:
        # A tensor per column: a tensor that is shared would be traced as a single input.
        example = {column.name: torch.zeros(2, dtype=torch.float64) for column in about.table}
        batch = dict.fromkeys(example, batch)
    return torch.export.export(module.eval(), (example,), dynamic_shapes=(batch,))


def _write_onnx(module: nn.Module, about: About, path: Path) -> None:
    outputs = ["scores"]
    if about.task in ("classification", "survival"):
        module, outputs = _WithProbabilities(module, about.task), ["scores", "probabilities"]
    columns = about.table
    for name in (column.name for column in columns):
        if not name or name in outputs:
            why = f"{name} is the name of an output" if name else "a column has no name"
            raise ConfigError(f"{why}, which an .onnx file does not allow: export a .pt2")
    try:
        written = torch.onnx.export(
            _traced(module, about), input_names=[] if columns else ["raw"], output_names=outputs,
            verbose=False,
        )  # fmt: skip
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: pip install onnx onnxscript") from None
    assert written is not None
    if columns:
        _name_inputs(written.model, columns)
    for name, value in metadata(about).items():
        text = value if isinstance(value, str) else json.dumps(value)
        written.model.metadata_props[name] = text
    written.save(path)


def _name_inputs(model: ir.Model, columns: Sequence[Column]) -> None:
    """Give the graph's inputs the names of the columns, and let categories be strings."""
    from onnxscript import ir

    graph = model.graph
    names = {column.name for column in columns}
    inner = (*graph.initializers.values(), *(v for node in graph for v in node.outputs))
    for value in inner:
        while value.name in names:
            value.name = f"{value.name}_"
    first = graph[0]
    for index, column in enumerate(columns):
        value = graph.inputs[index]
        if not column.categories:
            value.name = column.name
            continue
        value.name = f"{index}:code"
        cells = ir.Value(
            name=column.name, shape=value.shape, type=ir.TensorType(ir.DataType.STRING)
        )
        graph.inputs[index] = cells
        graph.insert_before(first, _encoder(cells, value, column))
    model.opset_imports["ai.onnx.ml"] = 4


def _encoder(cells: ir.Value, code: ir.Value, column: Column) -> ir.Node:
    """Return the node that encodes a category: NaN where it is missing, infinity if unknown."""
    from onnxscript import ir

    code_of = {text: float(k) for k, text in enumerate(column.categories)}
    code_of |= dict.fromkeys({*grammar.MISSING} - code_of.keys(), math.nan)
    code_of |= dict.fromkeys(column.na_values, math.nan)
    attributes = {
        "keys_tensor": ir.tensor(list(code_of)),
        "values_tensor": ir.tensor([*code_of.values()], dtype=ir.DataType.DOUBLE),
        "default_tensor": ir.tensor([math.inf], dtype=ir.DataType.DOUBLE),
    }
    return ir.node(
        "LabelEncoder", [cells], attributes=attributes, domain="ai.onnx.ml", outputs=[code]
    )
