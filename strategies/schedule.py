"""Schedules: who is awake in which round. Client sampling, churn, and traces of availability.

A schedule is a pure function of its options, a seed and the round, so the relay and every node
work out the same rounds by themselves; where it follows the virtual clock (`ByClock`), of what the
peers have spent too. A sleeping peer trains nothing, sends and receives nothing, and its state
stands still.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from coterie.strategies.clock import Clock
from coterie.strategies.errors import ScheduleError

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SAMPLE, _CHURN = 0x5A3B, 0xC402
"""Purposes of the random streams."""


@dataclass(frozen=True)
class Options:
    """The options of a schedule.

    Attributes
    ----------
    kind : who is awake: everybody ("all"), a fresh random sample of the peers in each round, peers
        that go down and come up at random ("churn"), as a file says ("trace"), or who has done its
        work ("clock": asynchronous, a round is a tick of the virtual clock).
    fraction : of the peers that are awake in a round of a "sample", at least one peer.
    mean_up, mean_down : rounds that a peer of a "churn" stays up, and down, on average.
    file : CSV of a "trace" with the columns peer, from, to: first and last round of each time that
        a peer is awake; one that the file does not name sleeps.
    max_age : how many rounds old a model may be when it is heard.
    staleness_discount : exponent a of the polynomial discount of FedAsync (Xie et al. 2019): where
        models are averaged, one that is s rounds old counts (s + 1)^-a times as much; 0: no less.
    """

    kind: Literal["all", "sample", "churn", "trace", "clock"] = "all"
    fraction: float = 0.1
    mean_up: float = 10.0
    mean_down: float = 10.0
    file: Annotated[str, Path] = ""
    max_age: int = 0
    staleness_discount: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError("fraction must be above 0 and at most 1")
        if min(self.mean_up, self.mean_down) < 1:
            raise ValueError("mean-up and mean-down must be at least 1 round")
        if self.max_age < 0 or self.staleness_discount < 0:
            raise ValueError("max-age and staleness-discount must not be negative")
        if self.kind == "trace" and not self.file:
            raise ValueError('kind = "trace" needs a file')


@dataclass(frozen=True, eq=False)
class Schedule:
    """Who is awake in which round; this one: everybody, always.

    Attributes
    ----------
    peers, rounds : of the run.
    seed : of random schedules.
    max_age : how many rounds old an offer may be when it is heard.
    hears_on_waking : whether a peer that wakes for a round hears the offers of the round before.
        True of methods whose rounds end in averaging what came: what such a peer trains next
        starts from that average. Where rounds end in training it would train for two rounds.
    clock : how long peers take, None where no time is kept.
    """

    peers: int
    rounds: int
    seed: int = 0
    max_age: int = 0
    hears_on_waking: bool = False
    clock: Clock | None = None
    _drawn: dict[int, Bools] = field(default_factory=dict, init=False, repr=False)

    foresees: ClassVar[bool] = True
    """Whether it is known beforehand who will be awake."""

    @property
    def is_always(self) -> bool:
        """Whether nobody ever sleeps."""
        return type(self) is Schedule

    def awake(self, t: int) -> Bools:
        """(n,) who is awake in round `t`: who trains and offers then.

        Nobody before round 1, everybody once the last round is over: each peer comes to hear how
        the run ended, and is measured.
        """
        if not 1 <= t <= self.rounds:
            return np.full(self.peers, t > self.rounds)
        if t not in self._drawn:
            self._drawn[t] = self._draw(t)
        return self._drawn[t]

    def beginning(self, t: int) -> Bools:
        """(n,) who begins to work for round `t`, when the one before has ended."""
        return self.awake(t)

    def ending(self, t: int) -> Bools:
        """(n,) who takes part in ending round `t`, and hears its offers."""
        return self.awake(t) | self.beginning(t + 1) if self.hears_on_waking else self.awake(t)

    def measured(self, t: int) -> Bools:
        """(n,) who measures itself after round `t`, if it is evaluated; at first and last all."""
        return self.awake(self.rounds + 1) if t in (0, self.rounds) else self.ending(t)

    def changes(self, t: int) -> Bools:
        """(n,) whose state changes in the step that ends round `t` and begins the next one."""
        return self.measured(t) | self.beginning(t + 1)

    def offered(self, t: int) -> Ints:
        """(n,) the round of the newest offer that may be heard in round `t`; 0 of none."""
        newest = np.zeros(self.peers, dtype=np.int64)
        for s in range(max(1, t - self.max_age), t + 1):
            newest[self.awake(s)] = s
        return newest

    def last_change(self, peers: Sequence[int], t: int) -> int:
        """The last round up to `t` whose end changed the state of some of `peers`."""
        who = list(peers)
        return next((s for s in range(t, 0, -1) if self.changes(s)[who].any()), 0)

    def next_ending(self, peers: Sequence[int], t: int) -> int:
        """The first round after `t` that some of `peers` take part in ending; else the next one."""
        who, later = list(peers), range(t + 1, self.rounds + 1)
        return next((s for s in later if self.ending(s)[who].any()), t + 1)

    def _draw(self, t: int) -> Bools:
        return np.ones(self.peers, dtype=np.bool_)

    def elapsed(self, seconds: Floats) -> float:
        """Seconds of a round in which the peers took so many each (P,)."""
        return float(seconds.max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Sample(Schedule):
    """A share of the peers, at least one, drawn anew in each round (client sampling)."""

    fraction: float = 0.1

    def _draw(self, t: int) -> Bools:
        size = max(1, round(self.fraction * self.peers))
        chosen = np.random.default_rng((self.seed, t, _SAMPLE)).permutation(self.peers)[:size]
        awake = np.zeros(self.peers, dtype=np.bool_)
        awake[chosen] = True
        return awake


@dataclass(frozen=True, eq=False)
class Churn(Schedule):
    """Peers go down and come up at random, in the long run `mean_up` and `mean_down` rounds each.

    Each peer is a Markov chain with two states that begins in its stationary distribution.
    """

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
    """Peers are awake as a file says: (first, last) round of each time, by peer."""

    times: Sequence[tuple[int, int, int]] = ()

    def _draw(self, t: int) -> Bools:
        awake = np.zeros(self.peers, dtype=np.bool_)
        awake[[peer for peer, first, last in self.times if first <= t <= last]] = True
        return awake


@dataclass(frozen=True, eq=False)
class ByClock(Schedule):
    """A peer is awake in the round by whose end its work is done.

    Who works for longer than a round lasts sleeps in the meantime, and its offer is of the round in
    which it is ready. It is for simulations: whoever asks has to know what each peer has spent.

    Attributes
    ----------
    length : seconds that a round lasts at most.
    base : who begins to work when, of peers that are not at work; None: each again as soon as its
        work is done, and rounds last `length` seconds.
    ready : (n,) the round by whose end each peer's work is done; 0 before it has begun.
    last : (n,) the same of the work before that.
    """

    length: float = 1.0
    base: Schedule | None = None
    ready: Ints = field(init=False)
    last: Ints = field(init=False)

    foresees: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("ready", "last"):
            object.__setattr__(self, name, np.zeros(self.peers, dtype=np.int64))

    def awake(self, t: int) -> Bools:
        """(n,) whose work is done in round `t`; known of this round and the one before."""
        return self._newest(t) == t if 1 <= t <= self.rounds else super().awake(t)

    def beginning(self, t: int) -> Bools:
        """(n,) who begins to work for round `t` or later."""
        if t > self.rounds:
            return self.awake(t)
        idle = self.ready < t
        return idle if self.base is None else idle & self.base.beginning(t)

    def changes(self, t: int) -> Bools:
        """Everybody: nobody knows beforehand."""
        return self.awake(self.rounds + 1)

    def offered(self, t: int) -> Ints:
        """(n,) the round of the newest offer that may be heard in round `t`; 0 of none."""
        newest = self._newest(t)
        return np.where(newest >= t - self.max_age, newest, 0)

    def next_ending(self, peers: Sequence[int], t: int) -> int:
        """The next round: nobody knows beforehand."""
        return t + 1

    def _newest(self, t: int) -> Ints:
        return np.where(self.ready <= t, self.ready, self.last)

    def note(self, t: int, peers: Sequence[int], ready: npt.ArrayLike) -> None:
        """Note when the work of some peers is done, as it stands after round `t`."""
        who = [*peers]
        self.last[who] = self._newest(t)[who]
        self.ready[who] = ready

    def recall(self, peers: Sequence[int], ready: npt.ArrayLike, last: npt.ArrayLike) -> None:
        """Go back to an earlier round, for some peers."""
        self.ready[[*peers]], self.last[[*peers]] = ready, last

    def done(self, t: int, seconds: Floats) -> Ints:
        """The rounds by whose ends work of so many seconds is done that begins with round `t`."""
        rounds: Ints = np.maximum(np.ceil(seconds / self.length), 1).astype(np.int64)
        return t - 1 + rounds

    def elapsed(self, seconds: Floats) -> float:
        """Seconds of a round in which the peers took so many each (P,)."""
        return self.length if self.base is None else min(super().elapsed(seconds), self.length)


def schedule(
    options: Options,
    peers: int,
    rounds: int,
    seed: int,
    *,
    hears_on_waking: bool,
    clock: Clock | None = None,
    tick: float = 1.0,
    deadline: float = 0.0,
) -> Schedule:
    """Make the schedule of a configuration.

    Parameters
    ----------
    hears_on_waking : see `Schedule`.
    clock, tick, deadline : the virtual clock, see `coterie.strategies.clock.Options`.

    Raises
    ------
    ScheduleError
        The file of a trace is missing or wrong.
    """
    if options.kind == "clock":
        if clock is None:
            raise ScheduleError('schedule.kind = "clock" needs clock.profile')
        return ByClock(peers, rounds, seed, options.max_age, False, clock, length=tick)
    run = peers, rounds, seed, options.max_age, hears_on_waking, clock
    base = _chosen(options, run)
    return ByClock(*run, length=deadline, base=base) if deadline else base


def _chosen(options: Options, run: tuple[int, int, int, int, bool, Clock | None]) -> Schedule:
    peers = run[0]
    match options.kind:
        case "sample" if round(options.fraction * peers) < peers:
            return Sample(*run, fraction=options.fraction)
        case "churn":
            return Churn(*run, mean_up=options.mean_up, mean_down=options.mean_down)
        case "trace":
            return Trace(*run, times=_read(Path(options.file), peers))
    return Schedule(*run)


def _read(path: Path, peers: int) -> list[tuple[int, int, int]]:
    def refuse(why: str) -> ScheduleError:
        return ScheduleError(f"schedule file {path}: {why}")

    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise refuse(error.strerror or "cannot be read") from None
    except ValueError:
        raise refuse("not text") from None
    times = []
    for number, row in enumerate(rows, start=2):
        try:
            peer, first, last = (int(row[name]) for name in ("peer", "from", "to"))
        except (KeyError, TypeError, ValueError):
            raise refuse(f"line {number}: wants whole numbers under peer, from and to") from None
        if not (0 <= peer < peers and 1 <= first <= last):
            raise refuse(f"line {number}: not a peer of 0 to {peers - 1} and rounds from 1 on")
        times.append((peer, first, last))
    if not times:
        raise refuse("nobody is ever awake: wants a line peer,from,to for each time")
    return times
