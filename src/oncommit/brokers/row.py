"""A row of the outbox as it was read: what it is ordered by, and what is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from oncommit import checks, codec
from oncommit.message import Body

_NONE: Final[Mapping[str, str]] = {}


class FetchedRow(msgspec.Struct, gc=False):
    """One live event: its sink, then the columns of fetch.sql in their order. It can be sent as it is."""

    sink: str
    lane: int
    epoch: int
    place: int
    """The row's id: its place in the order of its lane."""
    id: UUID
    type: str
    aggregate_type: str | None
    aggregate_id: str | None
    topic: str | None
    content_type: str
    correlation_id: str | None
    causation_id: str | None
    saga_id: UUID | None
    schema_version: int
    priority: int
    attempts: int
    crashes: int
    max_attempts: int | None
    created_at: datetime
    ordering_key: str | None
    wait: float
    """Seconds until it may go."""
    written_headers: str
    data: bytes | None
    is_json: bool
    size: int
    found: int = 0
    """Rows that its read has found; fewer came where they were too large together."""
    headers: Mapping[str, Any] = _NONE
    traceparent: str | None = None
    tracestate: str | None = None
    problem: str | None = None
    """Why it cannot be sent, ever. Reading it must not fail: that would hold up everybody else."""

    def __post_init__(self) -> None:
        """Take the trace out of the headers. Plain SQL may have written anything there, so nothing is trusted."""
        if self.written_headers == "{}":
            return
        try:
            headers: Any = codec.decode(self.written_headers)
        except ValueError as error:
            self.problem = f"its headers cannot be read: {error}"
            return
        if not isinstance(headers, dict):
            self.problem = "its headers are no JSON object"
            return
        trace, state = headers.pop("traceparent", None), headers.pop("tracestate", None)
        if isinstance(trace, str) and checks.is_traceparent(trace):
            self.traceparent = trace
            self.tracestate = state if isinstance(state, str) else None
        self.headers = headers

    @property
    def is_reserved(self) -> bool:
        """Whether its sender may be at it right now: it waits without having failed, and not for ever."""
        return 0 < self.wait < math.inf and self.attempts == 0

    def body(self) -> Body:
        """The payload, byte for byte as it was written."""
        return Body(self.data, self.content_type, is_json=self.is_json)
