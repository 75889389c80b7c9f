"""A network that calls its layers one after the other, and the way back through them by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor, nn

from coterie.clients.engine.forms import MANY, RELU_OVER_INPUTS, Form, Wanted, forward_only, single
from coterie.clients.engine.layers import is_plain, is_sequence
from coterie.clients.models.convnets import Residual

State = Mapping[str, Tensor]
"""Parameters and buffers of a network by name, those of many models with a leading axis."""


class Layer(NamedTuple):
    """A layer in its place.

    Attributes
    ----------
    tensors : its own name of each of its tensors that models have for themselves -> the network's.
    shared : its other tensors.
    trained : its own names of those that are trained.
    """

    module: nn.Module
    form: Form
    tensors: Mapping[str, str]
    shared: Mapping[str, Tensor]
    trained: Collection[str]

    def own(self, state: State) -> Mapping[str, Tensor]:
        """The layer's tensors."""
        if not self.tensors:
            return self.shared
        return {**self.shared, **{name: state[full] for name, full in self.tensors.items()}}


class Passed(NamedTuple):
    """A layer that was run: its tensors, its inputs, and what it kept for the way back."""

    layer: Layer
    own: Mapping[str, Tensor]
    inputs: Tensor
    kept: Any

    def back(self, gradient: Tensor, wanted: Wanted) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Gradients of the inputs and of the layer's own tensors."""
        back = self.layer.form.back
        assert back is not None
        return back(self.layer.module, self.own, self.inputs, self.kept, gradient, wanted)


class Split(NamedTuple):
    """A residual layer that was run: what its branch kept."""

    branch: Line
    passed: Trail


Seen = Callable[[nn.Module, Tensor, Tensor], None]
"""Is shown a layer, its inputs and its outputs."""
Trail = list[Passed | Split]
Take = Callable[[Passed, Tensor, bool], Tensor | None]
"""What is done at a layer that is trained: (the layer, gradient of its outputs, whether that of
its inputs is wanted) -> that of its inputs."""


class Line:
    """Layers one after the other, of which residual ones are lines themselves.

    Attributes
    ----------
    trains : whether anything in it is trained.
    has_back : whether the way back to the lowest such layer is known; through : or to the inputs.
    once : whether each tensor that is trained is in one place only.
    many : whether tensors have an axis of models.
    """

    def __init__(self, layers: Sequence[Layer | Line], *, many: bool = False) -> None:
        self.layers, self.many = layers, many
        trains: list[bool] = [
            at.trains if isinstance(at, Line) else bool(at.trained) for at in layers
        ]
        back = [at.through if isinstance(at, Line) else at.form.back is not None for at in layers]
        self.trains: bool = any(trains)
        self.through: bool = all(back)
        self._lowest = trains.index(True) if self.trains else len(layers)
        self.has_back = self.trains and all(back[self._lowest :])
        uses = Counter(at.tensors[name] for at in self.everything() for name in at.trained)
        self.once = all(count == 1 for count in uses.values())

    def everything(self) -> Iterator[Layer]:
        """All layers, those of branches, too."""
        return chain.from_iterable(
            at.everything() if isinstance(at, Line) else [at] for at in self.layers
        )

    def outputs(self, state: State, x: Tensor, seen: Seen | None) -> Tensor:
        """The outputs alone; what is shown of layers that are trained stays as it is."""
        for at in self.layers:
            assert isinstance(at, Layer), "only of many models, which have no branches"
            y, _ = at.form.run(at.module, at.own(state), x)
            if seen is not None and at.trained:
                seen(at.module, x, y)
            x = y
        return x

    def __call__(self, state: State, x: Tensor, wanted: bool = False) -> tuple[Tensor, Trail]:
        """The outputs, and what `back` takes.

        Parameters
        ----------
        wanted : whether the gradient of the inputs will be.
        """
        trail: Trail = []
        lowest = 0 if wanted else self._lowest
        for k, at in enumerate(self.layers):
            if isinstance(at, Line):
                added, passed = at(state, x, wanted or k > lowest)
                if k >= lowest:
                    trail.append(Split(at, passed))
                x = x + added
                continue
            own = at.own(state)
            if k < lowest:
                x = forward_only(at.module, own, x, at.form)
                continue
            y, kept = at.form.run(at.module, own, x)
            trail.append(Passed(at, own, x, kept))
            x = y
        return x, trail

    def back(
        self, trail: Trail, gradient: Tensor, take: Take, wanted: bool = False
    ) -> Tensor | None:
        """Take the gradient of the outputs back, last layer first.

        Parameters
        ----------
        trail : of the call; each layer lets go of what it kept.
        wanted : whether the gradient of the inputs is, as it was said then; it is returned.
        """
        over = False  # as the gradient of a branch is wanted once more beside it
        while trail:
            at = trail.pop()
            further = wanted or bool(trail)
            found: Tensor | None
            if isinstance(at, Split):
                below = at.branch.back(at.passed, gradient, take, further)
                found = None if below is None else gradient + below
                over = True
            else:
                if at.layer.trained:
                    found = take(at, gradient, further)
                else:
                    found, _ = at.back(gradient, Wanted(further, own=False, over=over))
                form = at.layer.form
                over = form.fresh or (over and not form.borrows)
            if found is None:
                break
            gradient = found
        return gradient if wanted else None


class Collected:
    """Gradients of what is trained, by name."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}

    def __call__(self, at: Passed, gradient: Tensor, wanted: bool) -> Tensor | None:
        inputs, own = at.back(gradient, Wanted(wanted, own=True, over=False))
        for name in at.layer.trained:
            full, value = at.layer.tensors[name], own[name]
            self.found[full] = self.found[full] + value if full in self.found else value
        return inputs


class Slope(NamedTuple):
    """What went into a layer, and the gradient of what came out."""

    layer: nn.Module
    inputs: Tensor
    gradient: Tensor


class Slopes:
    """Of the layers that are trained, the last one first."""

    def __init__(self) -> None:
        self.found: list[Slope] = []

    def __call__(self, at: Passed, gradient: Tensor, wanted: bool) -> Tensor | None:
        self.found.append(Slope(at.layer.module, at.inputs, gradient))
        return at.back(gradient, Wanted(wanted, own=False, over=False))[0] if wanted else None


def line_of(
    module: nn.Module, known: Collection[str], trained: Collection[str], *, many: bool
) -> Line | None:
    """The layers of a network that calls them one after the other and does nothing else.

    Parameters
    ----------
    known : names of the tensors that every model has for itself.
    trained : of those that are trained.
    many : of many models at once, where every layer has a form and all tensors are the models'
        own, each in one place; a single one takes any layer of torch's and ours.

    Returns
    -------
    None for another network.
    """
    names = {id(value): name for name, value in module.named_parameters()}
    names |= {id(value): name for name, value in module.named_buffers()}
    found = _layers(module, _Names(names, known, trained), many, None)
    if not found:
        return None
    line = Line(found, many=many)
    placed = {at.tensors[name] for at in line.everything() for name in at.trained}
    return line if placed == {*trained} and (line.once or not many) else None


class _Names(NamedTuple):
    """What tensors are called, by identity: one that layers share has one name."""

    of: Mapping[int, str]
    known: Collection[str]
    trained: Collection[str]


def _layers(
    module: nn.Module, names: _Names, many: bool, before: Layer | Line | None
) -> list[Layer | Line] | None:
    """The layers of a sequence.

    Parameters
    ----------
    before : what comes before it, None at the beginning of a line.
    """
    if not is_sequence(module) or not is_plain(module):
        return None
    found: list[Layer | Line] = []
    for child in module._modules.values():  # a layer that is there twice counts twice
        below: Sequence[Layer | Line] | None
        assert child is not None
        if is_sequence(child):
            below = _layers(child, names, many, before)
        elif type(child) is Residual and not many and is_plain(child):
            branch = _layers(child.branch, names, many, None)
            below = [Line(branch)] if branch else None
        else:
            layer = _layer(child, names, many, before)
            below = [layer] if layer else None
        if below is None:
            return None
        found += below
        before = found[-1] if found else before
    return found


def _layer(
    module: nn.Module, names: _Names, many: bool, before: Layer | Line | None
) -> Layer | None:
    """A layer, if its kind is known."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    called = {key: names.of[id(value)] for key, value in own.items()}
    tensors = {key: name for key, name in called.items() if name in names.known}
    ours = type(module).__module__.startswith(("torch.nn.", "clients."))
    form = MANY.get(type(module)) if many else single(module) if ours else None
    if form is None or not all(map(is_plain, module.modules())):
        return None
    if many and len(tensors) < len(own):
        return None
    inplace = getattr(module, "inplace", False)
    fresh = isinstance(before, Line) or (before is not None and before.form.fresh)
    if type(module) is nn.ReLU and fresh:  # of many it overwrites nothing, see `outputs`
        form = form if many else RELU_OVER_INPUTS
    elif inplace:
        return None  # somebody else may want what it overwrites
    shared = {key: value for key, value in own.items() if key not in tensors}
    trained = [key for key, name in tensors.items() if name in names.trained]
    return Layer(module, form, tensors, shared, trained)
