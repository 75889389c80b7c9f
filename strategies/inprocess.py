"""Transport inside one process: requests are function calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.errors import PartError, is_full_disk
from coterie.strategies.protocol import Handler, Request, Response


class InProcessTransport:
    """Transport that calls nodes of this process in order; `error` is the last one of a node."""

    def __init__(self, nodes: Sequence[Handler]) -> None:
        self._nodes = nodes
        self.error: Exception | None = None

    def nodes(self) -> list[int]:
        return list(range(len(self._nodes)))

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Response | str]:
        """Deliver requests by node; an exception becomes the reason for a missing response."""
        # It is raised if the same request would fail again: a PartError, or a full disk.
        return {node: self._call(node, request) for node, request in requests.items()}

    def _call(self, node: int, request: Request) -> Response | str:
        if node not in self.nodes():
            return "cannot be reached"
        try:
            return self._nodes[node].handle(request)
        except Exception as error:  # as coterie.app.client does
            if isinstance(error, PartError) or is_full_disk(error):
                raise
            self.error = error
            return f"{type(error).__name__}: {error}"
