"""Personal model: a peer's model with all prediction steps inside, as a torch module."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from coterie.app.config import limits, parts, schema
from coterie.app.config.keys import ConfigError
from coterie.app.runs import files
from coterie.app.runs.files import ResultsError
from coterie.app.trained.about import About
from coterie.app.trained.decision import NO_POINT, OperatingPoint, of_strings
from coterie.clients.engine.layers import without_head
from coterie.clients.engine.tasks import TASKS
from coterie.clients.methods import knn_per
from coterie.clients.models.build import build
from coterie.clients.models.fitted import Fitted, Kinds
from coterie.clients.models.options import Adaptation, Gpt2Options, KindOptions, kinds_in, model_of
from coterie.datasets.preprocessing import IS_MISSING, NO_CODE

FOLDER = "models"
T = TypeVar("T")
_MEMBERS = 1024
"""Maximum number of models of a mixture."""
_FROZEN = 100_000_000
"""Maximum number of frozen random parameters, which neither the file nor the user supplies."""
_BYTES = 1 << 40
_HEADER = 1 << 25
"""Maximum bytes of a file, and of its metadata."""
_WRONG = (
    *(SafetensorError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(OverflowError, RecursionError, MemoryError, RuntimeError, ConfigError),
)
"""Errors that an invalid file can raise."""


@dataclass(frozen=True)
class Named:
    """Code and weights that the user has named, and the file of a model may therefore use."""

    parts: tuple[str, ...] = ()  # code as "module:attribute", and folders as "transformers:FOLDER"
    weights: tuple[str, ...] = ()  # files of pretrained weights that networks start from

    @property
    def size(self) -> int:
        """Bytes of the weight files, an upper bound of their number of values."""
        return sum(Path(path).stat().st_size for path in self.weights if Path(path).is_file())

    def weights_like(self, path: str) -> str:
        """Return the named file of weights with the file name of `path`, or raise ValueError."""
        name = Path(path).name
        for known in self.weights:
            if Path(known).name == name:
                return known
        raise ValueError(
            f"it starts from trained weights, {schema.brief(name)}, and opens no file that you do "
            f"not name: --weights PATH/{shlex.quote(name)}"
        )


NOTHING = Named()


class PersonalModel(nn.Module):
    """A peer's model, in evaluation mode.

    It takes raw examples (B, ...) as the data set has them: pixels, tokens, or the numbers of a
    table's columns, categories by their code and NaN for missing values. It returns scores,
    (B, classes): their softmax are probabilities, also of a mixture, whose scores are logarithms of
    averaged probabilities. A regression returns its values, a survival model the logits of its
    hazards.
    """

    about: About
    point: OperatingPoint  # that validation examples chose; the scores do not use it
    authors: tuple[str, ...]  # names of the members' peers if their scores are limited; else empty
    weights: Tensor | None
    offset: Tensor | None
    low: Tensor | None
    high: Tensor | None
    keys: Tensor
    labels: Tensor
    covariance: Tensor | None

    def __init__(
        self,
        about: About,
        tensors: dict[str, Tensor],
        named: Named = NOTHING,
        point: OperatingPoint = NO_POINT,
        authors: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.about, self.point = about, point
        self._task = TASKS[about.task]
        self._dtype: torch.dtype = getattr(torch, about.dtype)
        self.preparation = _Prepare(about, self._dtype)
        held = sum(value.numel() for value in tensors.values())
        template = _template(about, named, held).to(self._dtype)
        weights, offset = tensors.pop("mixture", None), tensors.pop("mixture.offset", None)
        if offset is not None and (weights is None or offset.shape != (about.outputs,)):
            raise ValueError(
                f"its offset is {tuple(offset.shape)}: {about.outputs} scores are added"
            )
        if weights is not None and (weights.dim() != 1 or not 0 < len(weights) <= _MEMBERS):
            raise ValueError(f"its mixture is {tuple(weights.shape)}: 1 to {_MEMBERS} are mixed")
        members = len(weights) if weights is not None else 1
        bounds = [tensors.pop(f"mixture.{name}", None) for name in ("low", "high")]
        shapes = [None if value is None else tuple(value.shape) for value in bounds]
        if shapes not in [[each] * 2 for each in (None, (members, 1), (members, about.outputs))]:
            raise ValueError(f"its limits are {shapes}: {members} of 1 or {about.outputs} scores")
        tensors.pop("mixture.authors", None)
        self.authors = authors if len(authors) == members and bounds[0] is not None else ()
        # The members share untrained parameters, such as the base of an adapter.
        frozen = {id(v): v for v in template.parameters() if not v.requires_grad}
        self.members = nn.ModuleList(copy.deepcopy(template, dict(frozen)) for _ in range(members))
        stacked = "members." if weights is not None else ""
        for number, member in enumerate(self.members):
            for name, value in (*member.named_parameters(), *member.named_buffers()):
                if f"{stacked}{name}" in tensors:
                    own = tensors[f"{stacked}{name}"]
                    if own.shape != ((members, *value.shape) if stacked else value.shape):
                        raise ValueError(f"its {name} has shape {tuple(own.shape)}")
                    value.data.copy_(own[number] if stacked else own)
                elif isinstance(value, nn.Parameter) and value.requires_grad:
                    raise ValueError(f"it has no {name}, which {about.model} is trained in")
            if isinstance(member, Fitted | Kinds):
                stack = {name: value[None] for name, value in member.named_parameters()}
                if member.malformed(stack).any():
                    raise ValueError(f"its parameters are not those of {about.model}")
        self.register_buffer("weights", weights)
        self.register_buffer("offset", offset)
        self._free = [] if bounds[0] is None else bounds[0].isinf().all(dim=1).tolist()
        self.register_buffer("low", bounds[0])
        self.register_buffer("high", bounds[1])
        self._keep(tensors)
        self.requires_grad_(False).eval()

    def _keep(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep what a file has besides the networks: voting examples, an estimate's covariance."""
        about, member = self.about, self.members[0]
        covariance = tensors.get("effects.covariance")
        if covariance is not None:
            trained = sum(value.numel() for value in member.parameters() if value.requires_grad)
            free = about.outputs - (about.task == "classification")
            size = trained // about.outputs * free
            if covariance.shape != (size, size) or not covariance.isfinite().all():
                raise ValueError(f"its covariance is not one of {size} parameters")
        self.register_buffer("covariance", covariance)
        self.noise = float(tensors.get("effects.noise", torch.zeros(())))
        self.below: nn.Module | None = None
        if "memory.keys" in tensors or covariance is not None:
            shared = {id(v): v for v in (*member.parameters(), *member.buffers())}
            self.below = without_head(copy.deepcopy(member, dict(shared)))
        self._voting: knn_per.KNNPer | None = None
        if "memory.keys" in tensors:
            self._voting = _voting(about, tensors)
            self.register_buffer("keys", tensors["memory.keys"])
            self.register_buffer("labels", tensors["memory.labels"])

    def forward(self, raw: Tensor) -> Tensor:
        inputs = self.preparation(raw)
        if self._voting is not None:
            predicted = self._voted(inputs)
        elif self.weights is None:
            scores: Tensor = self.members[0](inputs)
            return scores
        else:
            shares = [
                self._share(self._limited(outputs, m), m)
                for m, outputs in enumerate(member(inputs) for member in self.members)
            ]
            predicted = sum(shares[1:], shares[0])
            if self.offset is not None:
                return predicted + self.offset
        return self._task.scores(predicted)

    def probabilities(self, raw: Tensor) -> Tensor:
        """Return class probabilities (B, classes, ...), survival probabilities, or values."""
        return self._task.predict(self(raw)[None])[0]

    def deviations(self, raw: Tensor) -> Tensor:
        """Return standard deviations (B, outputs) from the uncertainty of the coefficients.

        They are those of the logits of the classes' probabilities, or of new values of a regression
        (with the variance of its residuals). ValueError: the model has no uncertainty.

        With free scores eta_c = theta_c (1, x), of covariance (1, x)' C_ce (1, x), the logit of p_k
        has the derivative (delta_kc - p_c) / (1 - p_k) by eta_c.
        """
        if self.covariance is None or self.below is None or self.about.task == "survival":
            raise ValueError(f"{self.about.method} gives no intervals of {self.about.task}")
        features = self.below(self.preparation(raw)).flatten(1)
        x_bj = torch.cat([torch.ones_like(features[:, :1]), features], dim=1)
        free = len(self.covariance) // x_bj.shape[1]
        blocks = self.covariance.view(free, x_bj.shape[1], free, x_bj.shape[1])
        eta_bce = torch.einsum("bj,cjel,bl->bce", x_bj, blocks, x_bj)
        if self.about.task == "regression":
            return (eta_bce.diagonal(dim1=1, dim2=2) + self.noise**2).sqrt()
        p_bk = self.probabilities(raw)
        slopes_bkc = torch.eye(p_bk.shape[1]).to(p_bk)[:, 1:] - p_bk[:, None, 1:]
        slopes_bkc = slopes_bkc / (1 - p_bk).clamp_min(torch.finfo(p_bk.dtype).tiny)[:, :, None]
        return torch.einsum("bkc,bce,bke->bk", slopes_bkc, eta_bce, slopes_bkc).sqrt()

    def limited(self, raw: Tensor) -> list[tuple[str, int]]:
        """Return names of peers, and the number of examples on which their scores were limited."""
        inputs, beyond = self.preparation(raw), dict[str, Tensor]()
        for m, name in enumerate(self.authors):
            outputs = self.members[m](inputs)
            inside = self._task.are_inside(outputs, *self._limits(outputs, m))
            here = ~inside.flatten(1).all(dim=1)
            beyond[name] = beyond.get(name, here) | here
        return [(name, int(here.sum())) for name, here in beyond.items()]

    def _limits(self, outputs: Tensor, m: int) -> list[Tensor]:
        assert self.low is not None
        assert self.high is not None
        return [each[m].view(*[1] * (outputs.dim() - 1), -1) for each in (self.low, self.high)]

    def _limited(self, outputs: Tensor, m: int) -> Tensor:
        if self.low is None or self._free[m]:
            return outputs
        return self._task.clipped(outputs, *self._limits(outputs, m))

    def _share(self, outputs: Tensor, m: int) -> Tensor:
        assert self.weights is not None
        share = outputs if self.offset is not None else self._task.predict(outputs[None])[0]
        return share * self.weights[m]

    def _voted(self, inputs: Tensor) -> Tensor:
        """Combine the model's prediction with the vote of the peer's own examples (see kNN-Per)."""
        assert self.below is not None
        assert self._voting is not None
        options = self._voting
        queries = self.below(inputs).flatten(1)
        none = self.keys.new_zeros(1, len(self.keys))
        votes = knn_per.vote(
            queries[None], self.keys[None], self.labels[None], none, options.neighbours
        )
        predicted = self._task.predict(self.members[0](inputs)[None])[0]
        return predicted.lerp(votes[0], options.lambda_)


def _voting(about: About, tensors: Mapping[str, Tensor]) -> knn_per.KNNPer:
    keys, labels = tensors["memory.keys"], tensors.get("memory.labels")
    if about.method != "knn-per" or labels is None:
        raise ValueError("it has voting examples, which only knn-per uses")
    if keys.dim() != 2 or labels.shape != (len(keys), about.outputs) or not len(keys):
        raise ValueError(f"its examples are {tuple(keys.shape)} and {tuple(labels.shape)}")
    return _made(knn_per.KNNPer, about.method_options)


def _template(about: About, named: Named, held: int) -> nn.Module:
    """Build the untrained network; `held`, the number of values in the file, limits its size."""
    for kind in kinds_in(about.model):
        if parts.code_named({"model": kind}) and kind not in named.parts:
            raise ValueError(parts.unnamed("model", kind))
    options, adaptation = _options(about), _made(Adaptation, about.adaptation)
    if isinstance(options, Gpt2Options):
        options = replace(options, weights_file=named.weights_like(options.weights_file))
    if adaptation.weights:
        adaptation = replace(adaptation, weights=named.weights_like(adaptation.weights))
    largest = held + named.size + _FROZEN
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the engine draws frozen parameters with this seed
        return build(
            about.model, options, about.task, about.shape, about.outputs, adaptation, largest
        )


def _options(about: About) -> Any:
    """Return the options of the network, None if it has none; ValueError if one is invalid."""
    kinds, each = kinds_in(about.model), [about.model_options]
    if len(kinds) > 1:
        each = [values or {} for values in about.model_options["of"]]
    made: list[Any] = []
    for kind, values in zip(kinds, each, strict=True):
        table = model_of(kind).options
        if table is None and values:
            raise ValueError(f"{schema.brief(kind)} has no options")
        made.append(None if table is None else _made(table, values))
    return made[0] if len(made) == 1 else KindOptions(tuple(made))


def _made(table: type[T], values: Mapping[str, Any]) -> T:
    """Make an options table from the values of a file; ValueError if one is invalid."""
    for name, value in values.items():
        limits.check(name.rstrip("_").replace("_", "-"), value)
    return schema.made(table, values)


class _Prepare(nn.Module):
    """Convert raw examples to network inputs: the peer's preprocessing, the run's normalisation."""

    mean: Tensor
    std: Tensor
    own_source: Tensor
    own_code: Tensor
    own_fill: Tensor
    own_mean: Tensor
    own_std: Tensor
    own_absent: Tensor | None

    def __init__(self, about: About, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype, self._tokens = dtype, about.task == "language"
        statistics, fitted = about.normalisation, about.preprocessing
        self._own = fitted is not None and fitted.mean is not None
        self._is_table = fitted is not None and fitted.source is not None
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(statistics[name], dtype=dtype))
        for name in ("source", "code", "fill", "mean", "std"):
            value = getattr(fitted, name, None)
            tensor = None if value is None else torch.from_numpy(value)
            self.register_buffer(f"own_{name}", tensor)
        absent = np.empty((0, 0)) if fitted is None else fitted.absent()
        # Exports cannot hold an empty tensor.
        self.register_buffer("own_absent", torch.from_numpy(absent) if len(absent) else None)

    def forward(self, raw: Tensor) -> Tensor:
        if self._tokens:
            return raw.long()
        # As in training: a peer's own statistics in double precision, the run's in the model's.
        if self._is_table:
            raw = self.known(raw.double())[:, self.own_source]
            missing = raw.isnan()
            raw = torch.where(missing, self.own_fill, raw)
            is_mark = self.own_code == IS_MISSING  # ONNX runtimes have no torch.where of truths
            coded = (is_mark & missing) | (~is_mark & (raw == self.own_code))
            raw = torch.where(self.own_code == NO_CODE, raw, coded.double())
        if self._own:
            raw = ((raw.double() - self.own_mean) / self.own_std).float()
        return (raw.to(self._dtype) - self.mean) / self.std

    def known(self, raw: Tensor) -> Tensor:
        """Return raw rows of a table with NaN for numbers that mean a missing cell."""
        for absent in () if self.own_absent is None else self.own_absent:
            raw = torch.where(raw == absent, torch.nan, raw)
        return raw


def personal_model(
    run_dir: str | Path, peer: int | str | None = None, named: Named = NOTHING
) -> PersonalModel:
    """Load the model of a peer, by number or name, or (None) the only one in a run directory."""
    return load(find(run_dir, peer), named)


def load(path: Path, named: Named = NOTHING) -> PersonalModel:
    """Load the model of an untrusted file, with code that the user has named only."""
    with _refusing(path):
        strings, tensors = _read(path)
        about, point = About.read(strings), of_strings(strings)
        if about.refused:
            raise ValueError(about.refused)
        authors = json.loads(strings.get("authors", "[]"))
        if not isinstance(authors, list) or not all(isinstance(name, str) for name in authors):
            raise ValueError("its authors are not names")
        return PersonalModel(about, tensors, named, point, tuple(authors))


def read(path: Path) -> tuple[About, dict[str, Tensor]]:
    """Read metadata and named tensors of an untrusted file, without building a network."""
    with _refusing(path):
        strings, tensors = _read(path)
        return About.read(strings), tensors


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    strings = _metadata(path)
    with safe_open(path, "pt") as file:
        return strings, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn the errors of an invalid file into a ResultsError that names it."""
    try:
        yield
    except ResultsError:
        raise
    except _WRONG as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ResultsError(f"{path}: cannot be used: {reason}") from None


def find(run_dir: str | Path, peer: int | str | None) -> Path:
    """Return the file of a peer's model; ResultsError lists the available peers."""
    folder = Path(run_dir) / FOLDER
    paths = sorted(folder.glob("peer-*.safetensors"))
    if not paths:
        raise ResultsError(f"{folder}: no models: each node writes its models at the end")
    if peer is None and len(paths) == 1:
        return paths[0]
    if str(peer).isdecimal() and (folder / f"peer-{int(str(peer)):04d}.safetensors") in paths:
        return folder / f"peer-{int(str(peer)):04d}.safetensors"
    names = {_name(file): file for file in paths}
    if peer in names:
        return names[str(peer)]
    some = ", ".join(list(names)[:8]) + (", ..." if len(names) > 8 else "")
    asked = "which peer?" if peer is None else f'no model of "{peer}", which peer?'
    raise ResultsError(f"{folder}: {asked} {some}")


def _name(path: Path) -> str:
    try:
        return _metadata(path).get("peer_name", path.stem)
    except (ResultsError, ValueError):  # the others can be used
        return path.stem


def _metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a file of a run: strings by name; ValueError: not safetensors."""
    with files.opened(path.parent.parent, f"{path.parent.name}/{path.name}", _BYTES) as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _HEADER:
            raise ValueError(f"its header has {size} bytes, and at most {_HEADER} are read")
        header = json.loads(file.read(size))
    strings = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(strings, dict) or not all(isinstance(text, str) for text in strings.values()):
        raise ValueError("its metadata are not strings")
    return strings
