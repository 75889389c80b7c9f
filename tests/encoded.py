"""A node behind Flower's records, in this process."""

from __future__ import annotations

from coterie.strategies.flower.records import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from coterie.strategies.protocol import Handler, Request, Response


class Encoded:
    """Calls `node` with requests, and answers with responses, that were records in between."""

    def __init__(self, node: Handler) -> None:
        self.node = node

    def handle(self, request: Request) -> Response:
        received = decode_request(encode_request(request))
        record = encode_response(self.node.handle(received), received)
        response = decode_response(record, request)
        assert isinstance(response, Response)
        return response
