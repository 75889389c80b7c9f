"""Hosted peers by the virtual clock: an offer belongs to the round in which its author is ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from coterie.app.node.cohort import mail as post
from coterie.app.node.cohort.cohort import HostedPeers
from coterie.app.node.cohort.filters import Tensors
from coterie.app.node.cohort.mail import Piece, offers_of
from coterie.clients.letters import Ints, Letters, no_letters
from coterie.strategies.protocol import PeerMessage
from coterie.strategies.schedule import ByClock


class ClockedPeers(HostedPeers):
    """Cohort whose peers work for as long as their machines and links need, see `ByClock`."""

    schedule: ByClock

    def restart(self) -> None:
        super().restart()
        self.coming = no_letters()  # offers of peers that are ready in later rounds
        self._tell_schedule()

    def _publish(self, made: Letters, t: int) -> None:
        """Let offers wait until their authors are ready; show those that are due."""
        if len(made.authors):
            self.coming = post.together([self.coming, self._timed(made)])
        due = self.coming.written <= t
        super()._publish(post.only(self.coming, due), t)
        self.coming = post.only(self.coming, ~due)

    def _timed(self, made: Letters) -> Letters:
        """Return new offers with the rounds in which their authors are ready."""
        schedule, t, rows = self.schedule, self.round, np.searchsorted(self.peers, made.authors)
        ready = schedule.done(t, self.costs.seconds(schedule.clock, made.authors, rows))
        if schedule.base is None:  # else the count starts again at the end of the round
            self.costs.mark(rows)
        self.costs.ready[rows] = ready
        schedule.note(t - 1, made.authors.tolist(), ready)
        return offers_of(made.authors, made.tensors, ready)

    def _begun(self) -> Ints:
        return np.concatenate([self.offers.authors, self.coming.authors])

    def _end(self, t: int) -> None:
        super()._end(t)
        self.changed[:] = True  # nothing else records which peers made no progress

    def offer_letters(self, first: int) -> Iterator[PeerMessage]:
        return self.wire.messages(post.together([self.offers, self.coming]), first)

    def snapshot(self, rows: Ints) -> dict[str, Tensor]:
        coming = post.packed_offers("coming", self.coming, self.peers[rows])
        return super().snapshot(rows) | coming

    def restore(self, pieces: Sequence[Piece], letters: Tensors | None = None) -> None:
        super().restore(pieces, letters)
        self.coming = post.unpacked_offers("coming", pieces, self.peers, self.engine.device)
        self._tell_schedule()

    def _tell_schedule(self) -> None:
        """Synchronise the schedule with the progress of these peers."""
        last = np.zeros_like(self.peers)
        last[np.searchsorted(self.peers, self.offers.authors)] = self.offers.written
        self.schedule.recall(self.peers.tolist(), self.costs.ready, last)
