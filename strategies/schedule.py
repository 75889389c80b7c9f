"""Schedules of the peers that are awake in each round: client sampling, churn, availability traces.

A schedule is a pure function of its options, a seed and the round, so that the relay and every node
compute the same rounds; one that follows the virtual clock (`ByClock`) also depends on the time
that the peers have spent. A sleeping peer does not train, send or receive, and keeps its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.ranges import option
from coterie.strategies.clock import Clock, Floats, Ints
from coterie.strategies.columns import fault_in, read_columns
from coterie.strategies.errors import ScheduleError

Bools = npt.NDArray[np.bool_]

_SAMPLE, _CHURN = 0x5A3B, 0xC402
"""Purposes of the random streams."""


@dataclass(frozen=True)
class Options:
    """Options of a schedule."""

    kind: str = option(
        "all",
        "Peers that are awake in a round, see `coterie list schedules`, or the name of a plugin.",
    )
    fraction: float = option(
        0.1, 'Fraction of the peers in a "sample" (client sampling), at least one.', above=0, high=1
    )
    mean_up: float = option(
        10.0, 'Mean number of rounds that a peer stays up, or down, in a "churn".', low=1
    )
    mean_down: float = option(
        10.0, 'Mean number of rounds that a peer stays up, or down, in a "churn".', low=1
    )
    file: str = option(
        "",
        'path CSV of a "trace", with the columns peer, from, to: first and last round of each '
        "interval in which a peer is awake. Peers that are not listed sleep.",
        path=True,
    )
    max_age: int = option(
        0, "Maximum age of a model, in rounds, for other peers to receive it.", low=0
    )
    staleness_discount: float = option(
        0.0,
        "Exponent a of FedAsync's polynomial discount (Xie et al. 2019): in averages, the weight "
        "of a model that is s rounds old is multiplied by (s + 1)^-a; 0 for no discount.",
        low=0,
    )

    def __post_init__(self) -> None:
        if self.kind == "trace" and not self.file:
            raise ValueError('kind = "trace" needs a file')
        if self.kind == "all" and self.fraction != 0.1:
            raise ValueError(f'fraction = {self.fraction} needs kind = "sample": client sampling')


@dataclass(frozen=True, eq=False)
class Schedule:
    """Schedule in which all peers are always awake, and base of the others."""

    peers: int
    rounds: int
    """Number of peers and of rounds."""
    seed: int = 0
    """Seed of random schedules."""
    max_age: int = 0
    """Maximum age of an offer in rounds."""
    receives_on_waking: bool = False
    """A peer that wakes for a round receives the offers of the previous one. True for methods whose
    rounds end in averaging: the peer then trains from that average. Where rounds end in training it
    would train for two rounds."""
    clock: Clock | None = None
    """Speed of the peers; None without a virtual clock."""
    _drawn: dict[int, Bools] = field(default_factory=dict, init=False, repr=False)

    foresees: ClassVar[bool] = True
    """Awake peers are known in advance."""

    @property
    def is_always(self) -> bool:
        """True if no peer ever sleeps."""
        return type(self) is Schedule

    def awake(self, t: int) -> Bools:
        """Return a mask (n,) of the peers that train and offer in round `t`.

        No peer before round 1; all peers after the last round, for the final update and evaluation.
        """
        if not 1 <= t <= self.rounds:
            return np.full(self.peers, t > self.rounds)
        if t not in self._drawn:
            self._drawn[t] = self._draw(t)
        return self._drawn[t]

    def beginning(self, t: int) -> Bools:
        """Return a mask (n,) of the peers that start working for round `t`."""
        return self.awake(t)

    def ending(self, t: int) -> Bools:
        """Return a mask (n,) of the peers that receive the offers of round `t` and update."""
        return self.awake(t) | self.beginning(t + 1) if self.receives_on_waking else self.awake(t)

    def measured(self, t: int) -> Bools:
        """Return a mask (n,) of the peers that evaluate after round `t`; all in first and last."""
        return self.awake(self.rounds + 1) if t in (0, self.rounds) else self.ending(t)

    def changes(self, t: int) -> Bools:
        """Return a mask (n,) of the peers whose state changes between rounds `t` and `t` + 1."""
        return self.measured(t) | self.beginning(t + 1)

    def offered(self, t: int) -> Ints:
        """Return the round (n,) of each peer's newest valid offer in round `t`; 0 for none."""
        newest = np.zeros(self.peers, dtype=np.int64)
        for s in range(max(1, t - self.max_age), t + 1):
            newest[self.awake(s)] = s
        return newest

    def last_change(self, peers: Sequence[int], t: int) -> int:
        """Return the last round up to `t` whose end changed the state of any of `peers`; else 0."""
        rows = list(peers)
        return next((s for s in range(t, 0, -1) if self.changes(s)[rows].any()), 0)

    def next_ending(self, peers: Sequence[int], t: int) -> int:
        """Return the first round after `t` that any of `peers` takes part in ending; else t + 1."""
        rows, later = list(peers), range(t + 1, self.rounds + 1)
        return next((s for s in later if self.ending(s)[rows].any()), t + 1)

    def _draw(self, t: int) -> Bools:
        return np.ones(self.peers, dtype=np.bool_)

    def elapsed(self, seconds: Floats) -> float:
        """Return the duration of a round in which the peers took `seconds`, (P,)."""
        return float(seconds.max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Sample(Schedule):
    """Client sampling: a random fraction of the peers, at least one, in each round."""

    fraction: float = 0.1

    def _draw(self, t: int) -> Bools:
        size = max(1, round(self.fraction * self.peers))
        chosen = np.random.default_rng((self.seed, t, _SAMPLE)).permutation(self.peers)[:size]
        awake = np.zeros(self.peers, dtype=np.bool_)
        awake[chosen] = True
        return awake


@dataclass(frozen=True, eq=False)
class Churn(Schedule):
    """Markov chain per peer, up for `mean_up` and down for `mean_down` rounds on average."""

    mean_up: float = 10.0
    mean_down: float = 10.0

    def _draw(self, t: int) -> Bools:
        first = next((s for s in range(t - 1, 0, -1) if s in self._drawn), 0)
        awake = self._drawn.get(first, np.zeros(0, dtype=np.bool_))
        for s in range(first + 1, t + 1):
            draws = np.random.default_rng((self.seed, s, _CHURN)).random(self.peers)
            if s == 1:
                awake = draws < self.mean_up / (self.mean_up + self.mean_down)
            else:
                awake = np.where(awake, draws >= 1 / self.mean_up, draws < 1 / self.mean_down)
            self._drawn[s] = awake
        return awake


@dataclass(frozen=True, eq=False)
class Trace(Schedule):
    """Availability trace: (peer, first, last) round of each interval in which a peer is awake."""

    times: Sequence[tuple[int, int, int]] = ()

    def _draw(self, t: int) -> Bools:
        awake = np.zeros(self.peers, dtype=np.bool_)
        awake[[peer for peer, first, last in self.times if first <= t <= last]] = True
        return awake


@dataclass(frozen=True, eq=False)
class ByClock(Schedule):
    """Schedule by the virtual clock: a peer is awake in the round in which its work is done.

    For simulations only, since the caller must know each peer's time.
    """

    length: float = 1.0  # maximum duration of a round in seconds
    base: Schedule | None = None
    """Schedule by which idle peers start; None: at once, in rounds of `length` seconds."""
    ready: Ints = field(init=False)
    """Round (n,) at whose end each peer's current work is done; 0 before it has begun."""
    last: Ints = field(init=False)  # round (n,) at whose end its previous work was done

    foresees: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("ready", "last"):
            object.__setattr__(self, name, np.zeros(self.peers, dtype=np.int64))

    def awake(self, t: int) -> Bools:
        """Return a mask (n,) of the peers that are done in round `t`, the current or previous."""
        return self._newest(t) == t if 1 <= t <= self.rounds else super().awake(t)

    def beginning(self, t: int) -> Bools:
        """Return a mask (n,) of the peers that start working for round `t` or later."""
        if t > self.rounds:
            return self.awake(t)
        idle = self.ready < t
        return idle if self.base is None else idle & self.base.beginning(t)

    def changes(self, t: int) -> Bools:
        return self.awake(self.rounds + 1)  # all: changes are not known in advance

    def offered(self, t: int) -> Ints:
        newest = self._newest(t)
        return np.where(newest >= t - self.max_age, newest, 0)

    def next_ending(self, peers: Sequence[int], t: int) -> int:
        return t + 1  # endings are not known in advance

    def _newest(self, t: int) -> Ints:
        return np.where(self.ready <= t, self.ready, self.last)

    def note(self, t: int, peers: Sequence[int], ready: npt.ArrayLike) -> None:
        """Record the rounds at whose end some peers are ready, as known after round `t`."""
        self.last[[*peers]] = self._newest(t)[[*peers]]
        self.ready[[*peers]] = ready

    def recall(self, peers: Sequence[int], ready: npt.ArrayLike, last: npt.ArrayLike) -> None:
        self.ready[[*peers]], self.last[[*peers]] = ready, last

    def done(self, t: int, seconds: Floats) -> Ints:
        """Return the rounds at whose end work of `seconds` is done that starts in round `t`."""
        rounds: Ints = np.maximum(np.ceil(seconds / self.length), 1).astype(np.int64)
        return t - 1 + rounds

    def elapsed(self, seconds: Floats) -> float:
        return self.length if self.base is None else min(super().elapsed(seconds), self.length)


class Setting(NamedTuple):
    """First fields of every `Schedule`, in order: `Sample(*setting, fraction=0.1)`."""

    peers: int
    rounds: int
    seed: int
    max_age: int
    receives_on_waking: bool
    clock: Clock | None


@dataclass(frozen=True)
class ScheduleKind:
    """Kind of schedule: a row of `SCHEDULES`."""

    summary: str
    """Description in one line."""
    make: Callable[[Options, Setting], Schedule]
    """Function that makes the schedule of a run. It raises ScheduleError if there is none."""

    def schedule(self, options: Options, setting: Setting, deadline: float = 0.0) -> Schedule:
        """Make the schedule of a run; `deadline` ends a round after these seconds, 0: no limit.

        ScheduleError: the file of a trace is missing or invalid, or kind = "clock" without a clock.
        """
        base = self.make(options, setting)
        return ByClock(*setting, length=deadline, base=base) if deadline and base.foresees else base


def _sample(options: Options, setting: Setting) -> Schedule:
    if round(options.fraction * setting.peers) >= setting.peers:
        return Schedule(*setting)
    return Sample(*setting, fraction=options.fraction)


def _by_clock(options: Options, setting: Setting) -> Schedule:
    if setting.clock is None:
        raise ScheduleError('schedule.kind = "clock" needs clock.profile')
    alone = setting._replace(receives_on_waking=False)
    return ByClock(*alone, length=setting.clock.tick)


def _read(path: Path, peers: int) -> list[tuple[int, int, int]]:
    invalid, times = fault_in(path, "schedule", ScheduleError), []
    for number, (peer, first, last) in read_columns(path, ("peer", "from", "to"), int, invalid):
        if not (0 <= peer < peers and 1 <= first <= last):
            raise invalid(
                f"line {number}: needs a peer from 0 to {peers - 1} and rounds 1 <= from <= to"
            )
        times.append((peer, first, last))
    if not times:
        raise invalid("no peer is ever awake: add a line peer,from,to for each interval")
    return times


SCHEDULES: Mapping[str, ScheduleKind] = {
    "all": ScheduleKind("all peers, in every round", lambda _, setting: Schedule(*setting)),
    "sample": ScheduleKind(
        "a random share of the peers, at least one, in each round: client sampling", _sample
    ),
    "churn": ScheduleKind(
        "peers that leave and return: geometric up and down times, one Markov chain per peer",
        lambda options, setting: Churn(
            *setting, mean_up=options.mean_up, mean_down=options.mean_down
        ),
    ),
    "trace": ScheduleKind(
        "intervals in a file, such as recorded availability or office hours",
        lambda options, setting: Trace(*setting, times=_read(Path(options.file), setting.peers)),
    ),
    "clock": ScheduleKind(
        "peers that have finished their work: asynchronous; a round is a tick of the virtual clock",
        _by_clock,
    ),
}
"""Kinds of schedule by name."""
