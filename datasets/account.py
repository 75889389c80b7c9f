"""Account of a peer's images, for split.json: counts and properties, never names of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

_SHOWN_PEERS = 20
_SHOWN_VALUES = 4


@dataclass(frozen=True)
class Account:
    """Account of one peer."""

    files: int  # all that lie in its folder
    left_out: Mapping[str, int]  # kind -> number of files
    notes: str  # groups of the images and empty classes, in words
    properties: Mapping[str, Mapping[str, int]]  # property -> value, "" for none -> images

    @classmethod
    def of_json(cls, data: Any) -> Self | None:
        """Read an account from split.json; None if there is none, or it is damaged."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_python(data)
        except ValidationError:
            return None

    @property
    def line(self) -> str:
        """Numbers of files read and left out, in words."""
        out = sum(self.left_out.values())
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.left_out.items()))
        left_out = f"{out} left out: {kinds}" if out else ""
        read = f"{self.files - out} read"
        return ", ".join(filter(None, (f"{self.files} files", read, self.notes, left_out)))


def named(accounts: Sequence[Account | None], names: Sequence[str]) -> dict[str, Account | None]:
    """Return accounts by the name of the peer."""
    return {names[p] if names else f"peer {p}": each for p, each in enumerate(accounts)}


def lines(accounts: Mapping[str, Account | None]) -> list[str]:
    """Return a line per peer (by name), then a line per property that differs between images."""
    known = {name: account for name, account in accounts.items() if account is not None}
    own = [f"{name}: {account.line}" for name, account in known.items()]
    if more := len(own) - _SHOWN_PEERS:
        own[_SHOWN_PEERS:] = [f"{more} more peers"] if more > 0 else []
    return own + mixtures(known)


def mixtures(accounts: Mapping[str, Account]) -> list[str]:
    """Return a line per property of the images that differs inside a peer or between peers."""
    found = []
    for name in dict.fromkeys(each for account in accounts.values() for each in account.properties):
        of_peers = {peer: account.properties.get(name, {}) for peer, account in accounts.items()}
        if len({value for counts in of_peers.values() for value in counts}) < 2:
            continue
        shown = [f"{peer} {_counts(counts)}" for peer, counts in of_peers.items() if counts]
        more = f"; {len(shown) - _SHOWN_PEERS} more peers" if len(shown) > _SHOWN_PEERS else ""
        found.append(
            f"the images differ in {name}: {'; '.join(shown[:_SHOWN_PEERS])}{more}. A model may "
            "learn this difference instead of the classes"
        )
    return found


def _counts(counts: Mapping[str, int]) -> str:
    ranked: Sequence[tuple[str, int]] = sorted(counts.items(), key=lambda each: -each[1])
    more = sum(n for _, n in ranked[_SHOWN_VALUES:])
    shown = [f"{n} {value or 'none'}" for value, n in ranked[:_SHOWN_VALUES]]
    return ", ".join(shown + ([f"{more} of {len(ranked) - _SHOWN_VALUES} others"] if more else []))
