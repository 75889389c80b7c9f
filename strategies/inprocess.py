"""A transport inside one process: requests are function calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.errors import PartError
from coterie.strategies.protocol import Handler, Request, Response


class InProcessTransport:
    """Calls nodes of this process in order; node k is the k-th.

    Attributes
    ----------
    error : what a node raised last; None as long as none has failed.
    """

    def __init__(self, nodes: Sequence[Handler]) -> None:
        self._nodes = nodes
        self.error: Exception | None = None

    def nodes(self) -> list[int]:
        """All of them."""
        return list(range(len(self._nodes)))

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Response | str]:
        """Deliver `requests` by node; an exception is the line that says why there is none.

        Raises
        ------
        PartError
            A user's part failed on a node; the same request would fail again.
        """
        return {node: self._call(node, request) for node, request in requests.items()}

    def _call(self, node: int, request: Request) -> Response | str:
        if node not in self.nodes():
            return "cannot be reached"
        try:
            return self._nodes[node].handle(request)
        except PartError:
            raise
        except Exception as error:  # as coterie.app.client does
            self.error = error
            return f"{type(error).__name__}: {error}"
