"""Rule wrapper that checks the results and reports errors with their location.

A state that a user's method makes non-finite ends the run; if training did, the peer keeps its
last finite model. Legend: P = hosted peers, n = all peers, d = parameters, E = messages.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from inspect import unwrap
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.app.node.cohort.arrays import flatten, non_finite, unsound
from coterie.clients.engine.data import SplitName
from coterie.clients.engine.engine import Engine, Scores
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Bools, Ints
from coterie.clients.rule import Floats, Rule, State
from coterie.errors import Error, PartError, in_users_code, short_path, written

T = TypeVar("T")


@dataclass
class _Clock:
    round: int = 0  # the current one of the rules of a node


class CheckedRule(Rule[Any]):
    """A rule that reports errors and wrong shapes as `PartError`, with place, peers and round."""

    rule: Rule[Any]
    clock: _Clock = field(default_factory=_Clock)

    @property
    def engine(self) -> Engine:
        return self.rule.engine

    def narrowed(self, engine: Engine) -> Self:
        return type(self)(self.rule.narrowed(engine), self.clock)

    def init(self) -> Any:
        return self._state("init", self._result(0, self.rule.init))

    def wants(self, state: Any, round_: int) -> Bools | None:
        mask = self._result(round_, self.rule.wants, state, round_)
        return None if mask is None else self._matrix("wants", mask, "b", "a mask")

    def edges(self, mask_pn: Bools | None) -> Ints:
        return self.rule.edges(mask_pn)

    def offer(self, state: Any, round_: int) -> tuple[Any, Mapping[str, Tensor]]:
        result: Any = self._result(round_, self.rule.offer, state, round_)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            self._refuse(
                "offer", f"returned {_described(result)}: expected (state, {{name: tensor}})"
            )
        self._rows("offer", self._tensors("offer", result[1]))
        return self._state("offer", result[0]), result[1]

    def answer_shapes(self, round_: int) -> dict[str, tuple[int, ...]]:
        return self._result(round_, self.rule.answer_shapes, round_)

    def receive(self, state: Any, asked: Inbox) -> Any:
        return self._state("receive", self._result(asked.round, self.rule.receive, state, asked))

    def answer(self, state: Any, asked: Inbox) -> Mapping[str, Tensor]:
        result = self._result(asked.round, self.rule.answer, state, asked)
        tensors = self._tensors("answer", result)
        declared = self.answer_shapes(asked.round).items()
        shapes = {name: (len(asked), *shape) for name, shape in declared}
        for name in shapes.keys() | tensors.keys():
            here = tuple(tensors[name].shape) if name in tensors else None
            if here != shapes.get(name):
                wanted = shapes.get(name, "no tensor of that name")
                self._refuse(
                    "answer", f'returned "{name}" of shape {here}: expected {wanted}, a row per '
                    "message, as declared by answer_shapes()",
                )  # fmt: skip
        return tensors

    def update(self, state: Any, inbox: Inbox) -> Any:
        result = self._result(inbox.round, self.rule.update, state, inbox)
        after = self._state("update", result)
        if type(self.rule).__module__.partition(".")[0] != "coterie":  # a user's method
            self._require_finite(state, after, inbox)
        return after

    def personal(self, state: Any) -> Any:
        return self._state("personal", self._result(None, self.rule.personal, state))

    def evaluate(self, state: Any, split: SplitName) -> Scores:
        losses, accuracies = scores = self._result(None, self.rule.evaluate, state, split)
        self._numbers("evaluate", {"losses": losses, "accuracies": accuracies})
        return scores

    def saved(self, state: Any) -> Sequence[Mapping[str, Tensor]]:
        return self._result(None, self.rule.saved, state)

    def metrics(self, state: Any) -> Mapping[str, Floats]:
        values = self._result(None, self.rule.metrics, state)
        self._numbers("metrics", values)
        return values

    def weights(self, state: Any) -> Floats:
        weights = self._result(None, self.rule.weights, state)
        return self._matrix("weights", weights, "fiub", "numbers")

    def _result(self, round_: int | None, hook: Callable[..., T], *arguments: Any) -> T:
        """Call a hook, and note the round; report an error with peers and round."""
        if round_ is not None:
            self.clock.round = round_
        try:
            return hook(*arguments)
        except Error:
            raise
        except Exception as error:
            peers = self.engine.peers.tolist()
            raise PartError.of(error, self.clock.round, peers) from error

    def _state(self, hook: str, state: Any) -> Any:
        """Return a state whose arrays have a row per hosted peer; refuse any other."""
        if not is_dataclass(state) or isinstance(state, type):
            self._refuse(hook, f"returned {_described(state)}: expected a coterie.State")
        arrays, shape = flatten(state), (len(self.engine.peers), self.engine.d)
        if "x" in arrays and tuple(arrays["x"].shape) != shape:
            self._refuse(
                hook, f"returned x, {_described(arrays['x'])}: expected {shape}, a row of "
                "parameters per hosted peer",
            )  # fmt: skip
        self._rows(hook, arrays)
        return state

    def _rows(self, hook: str, values: Mapping[str, Tensor]) -> None:
        """Refuse tensors without a row per hosted peer."""
        peers = len(self.engine.peers)
        for name, value in values.items():
            if value.dim() == 0 or len(value) != peers:
                self._refuse(
                    hook, f'returned "{name}", {_described(value)}: expected ({peers}, ...), '
                    "a row per hosted peer",
                )  # fmt: skip

    def _numbers(self, hook: str, values: Mapping[str, Tensor | Floats]) -> None:
        """Refuse arrays without a number per hosted peer."""
        shape = (len(self.engine.peers),)
        for name, value in values.items():
            if np.shape(value) != shape:
                why = f'returned "{name}", {_described(value)}: expected {shape}'
                self._refuse(hook, f"{why}, a number per hosted peer")

    def _matrix(self, hook: str, value: Any, kinds: str, wanted: str) -> npt.NDArray[Any]:
        """Return a matrix with a row per hosted peer and a column per peer; refuse any other."""
        matrix, shape = np.asarray(value), (len(self.engine.peers), self.engine.n)
        if matrix.shape != shape or matrix.dtype.kind not in kinds:
            why = f"returned {_described(value)}: expected {wanted} {shape}"
            self._refuse(hook, f"{why}, a row per hosted peer and a column per peer")
        return matrix

    def _require_finite(self, before: Any, after: Any, inbox: Inbox) -> None:
        """Report peers whose finite state `update` of a user's method made non-finite."""
        sound_p = ~unsound(before)
        lost = {name: (bad_p & sound_p).numpy() for name, bad_p in non_finite(after).items()}
        name = next((name for name, lost_p in lost.items() if lost_p.any()), None)
        if name is None:
            return
        counts = self.engine.n_gradients.copy()
        # The rule is a pure function: computed again, it takes the same course.
        place = _first_non_finite(lambda: self.rule.update(before, inbox))
        self.engine.n_gradients[:] = counts
        if place:
            peers = self.engine.peers[lost[name]].tolist()
            raise PartError.at(place, f"{name} is not finite", self.clock.round, peers)

    def _tensors(self, hook: str, result: Any) -> Mapping[str, Tensor]:
        if not isinstance(result, Mapping):
            self._refuse(hook, f"returned {_described(result)}: expected {{name: tensor}}")
        for name, value in result.items():
            if not isinstance(value, Tensor):
                self._refuse(hook, f'returned "{name}", {_described(value)}: expected a tensor')
        return result

    def _refuse(self, hook: str, why: str) -> NoReturn:
        code = getattr(unwrap(getattr(type(self.rule), hook)), "__code__", None)
        file = "" if code is None else f"{short_path(code.co_filename)}:{code.co_firstlineno}, "
        peers = self.engine.peers.tolist()
        raise PartError.at(f"{file}in {hook}()", why, self.clock.round, peers)


def _first_non_finite(call: Callable[[], object]) -> str:
    """Return the first place in the user's code, not in `fit`, that makes a tensor non-finite."""
    place = ""
    lines: dict[FrameType, int] = {}

    def watch(frame: FrameType, event: str, result: Any) -> Any:
        nonlocal place
        ended = lines.get(frame)
        values = [*frame.f_locals.values(), *([result] if event == "return" else [])]
        if ended and not place and any(map(_has_non_finite, values)):
            trains = "fit(" in linecache.getline(frame.f_code.co_filename, ended)
            place = "training" if trains else written(frame, ended)
        lines[frame] = frame.f_lineno
        return watch

    def enter(frame: FrameType, _event: str, _result: Any) -> Any:
        if not in_users_code(frame) or frame.f_code.co_filename == "<string>":  # of a dataclass
            return None
        # The arguments of a gradient that the user wrote may have diverged already.
        return None if any(map(_has_non_finite, frame.f_locals.values())) else watch

    former = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(former)
    return place.removeprefix("training")


def _has_non_finite(value: Any) -> bool:
    """Return whether a tensor, or a tensor of a state, has a number that is not finite."""
    if isinstance(value, State):
        return bool(unsound(value).any())
    is_number = isinstance(value, Tensor) and value.is_floating_point()
    return is_number and not bool(torch.isfinite(value).all())


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"a {kind}" if shape is None else f"a {kind} of shape {tuple(shape)}"
