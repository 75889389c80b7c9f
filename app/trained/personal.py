"""A peer's trained model as a torch module that takes raw examples.

What its method does to predict - normalise, average a mixture, let its own examples vote - is
inside, so that the module gives what the run's evaluation measured.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from app.runs.files import ResultsError
from app.trained.about import About
from clients.engine.layers import without_head
from clients.engine.tasks import TASKS
from clients.methods.knn_per import vote
from clients.models.build import build, options_table
from clients.models.options import Adaptation
from datasets.preprocessing import NO_CODE

FOLDER = "models"


class PersonalModel(nn.Module):
    """A peer's model, in evaluation mode.

    It takes raw examples (B, ...) as the data set has them: pixels, tokens, or the numbers of a
    table's columns, categories by their code and NaN where one is missing. It puts out scores,
    (B, classes): their softmax are probabilities, also of a mixture, whose scores are logarithms of
    averaged probabilities. A regression puts out its values.

    Attributes
    ----------
    about : what the file says of the model.
    """

    weights: Tensor | None
    keys: Tensor
    labels: Tensor

    def __init__(self, about: About, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.about = about
        self._task = TASKS[about.task]
        self._dtype: torch.dtype = getattr(torch, about.dtype)
        self._prepare = _Prepare(about, self._dtype)
        template = _template(about).to(self._dtype)
        weights = tensors.pop("mixture", None)
        members = len(weights) if weights is not None else 1
        # What is not trained, the base of an adapter, is there once.
        frozen = {id(v): v for v in template.parameters() if not v.requires_grad}
        self.members = nn.ModuleList(copy.deepcopy(template, dict(frozen)) for _ in range(members))
        stacked = "members." if weights is not None else ""
        for number, member in enumerate(self.members):
            for name, value in (*member.named_parameters(), *member.named_buffers()):
                if f"{stacked}{name}" in tensors:
                    own = tensors[f"{stacked}{name}"]
                    value.data.copy_(own[number] if stacked else own)
                elif isinstance(value, nn.Parameter) and value.requires_grad:
                    raise ValueError(f"it has no {name}, which {about.model} is trained in")
        self.register_buffer("weights", weights)
        self.below: nn.Module | None = None
        if "memory.keys" in tensors:
            shared = {id(v): v for v in (*self.members[0].parameters(), *self.members[0].buffers())}
            self.below = without_head(copy.deepcopy(self.members[0], dict(shared)))
            self.register_buffer("keys", tensors["memory.keys"])
            self.register_buffer("labels", tensors["memory.labels"])
        self.requires_grad_(False).eval()

    def forward(self, raw: Tensor) -> Tensor:
        """Scores of raw examples."""
        inputs = self._prepare(raw)
        if self.below is not None:
            predicted = self._voted(inputs)
        elif self.weights is None:
            scores: Tensor = self.members[0](inputs)
            return scores
        else:
            shares = [
                self._predicted(member, inputs) * weight
                for member, weight in zip(self.members, self.weights.unbind(), strict=True)
            ]
            predicted = sum(shares[1:], shares[0])
        if self._task.certain is None or self.about.task == "regression":
            return predicted
        return predicted.clamp_min(torch.finfo(predicted.dtype).tiny).log()

    def probabilities(self, raw: Tensor) -> Tensor:
        """Of each class (B, classes, ...); of a regression its values."""
        return self._task.predict(self(raw)[None])[0]

    def _predicted(self, member: nn.Module, inputs: Tensor) -> Tensor:
        return self._task.predict(member(inputs)[None])[0]

    def _voted(self, inputs: Tensor) -> Tensor:
        """The model's prediction, and the vote of the peer's own examples (see kNN-Per)."""
        assert self.below is not None
        options = self.about.method_options
        queries = self.below(inputs).flatten(1)
        none = self.keys.new_zeros(1, len(self.keys))
        votes = vote(queries[None], self.keys[None], self.labels[None], none, options["neighbours"])
        return self._predicted(self.members[0], inputs).lerp(votes[0], options["lambda_"])


def _template(about: About) -> nn.Module:
    """The network, in which only what is trained has yet to be put."""
    options = options_table(about.model)
    arguments = None if options is None else options(**about.model_options)
    adaptation = Adaptation(**about.adaptation)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what is frozen, as the engine draws it
        return build(about.model, arguments, about.task, about.shape, about.outputs, adaptation)


class _Prepare(nn.Module):
    """Raw examples as the network's inputs: the peer's preprocessing, the run's normalisation."""

    mean: Tensor
    std: Tensor
    own_source: Tensor
    own_code: Tensor
    own_fill: Tensor
    own_mean: Tensor
    own_std: Tensor

    def __init__(self, about: About, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype, self._tokens = dtype, about.task == "language"
        found, fitted = about.normalisation, about.preprocessing
        self._own = fitted is not None and fitted.mean is not None
        self._is_table = fitted is not None and fitted.source is not None
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(found[name], dtype=dtype))
        for name in ("source", "code", "fill", "mean", "std"):
            value = getattr(fitted, name, None)
            tensor = None if value is None else torch.from_numpy(value)
            self.register_buffer(f"own_{name}", tensor)

    def forward(self, raw: Tensor) -> Tensor:
        """Normalised inputs."""
        if self._tokens:
            return raw.long()
        # As in training: a peer's own statistics in double precision, the run's in the model's.
        if self._is_table:
            raw = raw.double()[:, self.own_source]
            raw = torch.where(raw.isnan(), self.own_fill, raw)
            coded = (raw == self.own_code).double()
            raw = torch.where(self.own_code == NO_CODE, raw, coded)
        if self._own:
            raw = ((raw.double() - self.own_mean) / self.own_std).float()
        return (raw.to(self._dtype) - self.mean) / self.std


def personal_model(run_dir: str | Path, peer: int | str | None = None) -> PersonalModel:
    """The model that a peer has at the end of a run, taking raw examples.

    Parameters
    ----------
    run_dir : on the machine that hosts the peer.
    peer : its number or its name; None where this machine has one model only.

    Raises
    ------
    ResultsError
        There is no such model, or its file cannot be used.
    """
    return load(find(run_dir, peer))


def load(path: Path) -> PersonalModel:
    """The model in a file.

    Raises
    ------
    ResultsError
        It cannot be used.
    """
    try:
        with safe_open(path, "pt") as file:
            about = About.read(file.metadata())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.refused:
            raise ValueError(about.refused)
        return PersonalModel(about, tensors)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path}: cannot be used: {error}") from None


def find(run_dir: str | Path, peer: int | str | None) -> Path:
    """The file of a peer's model.

    Raises
    ------
    ResultsError
        There is none; says which there are.
    """
    folder = Path(run_dir) / FOLDER
    files = sorted(folder.glob("peer-*.safetensors"))
    if not files:
        raise ResultsError(f"{folder}: no models: they lie where the peers are, once a run is over")
    if peer is None and len(files) == 1:
        return files[0]
    if str(peer).isdecimal() and (folder / f"peer-{int(str(peer)):04d}.safetensors") in files:
        return folder / f"peer-{int(str(peer)):04d}.safetensors"
    names = {_name(file): file for file in files}
    if peer in names:
        return names[str(peer)]
    some = ", ".join(list(names)[:8]) + (", ..." if len(names) > 8 else "")
    asked = "which peer?" if peer is None else f'no model of "{peer}", which peer?'
    raise ResultsError(f"{folder}: {asked} {some}")


def _name(path: Path) -> str:
    with safe_open(path, "pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
    return metadata.get("peer_name", path.stem)
