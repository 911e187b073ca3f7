"""CloudEvents 1.0, both ways: events to headers and bytes for a broker, and back. Pure.

Binary mode puts the attributes into headers and the payload into the body as it is; structured mode puts everything
into one JSON document. How a broker spells the headers is a ``Binding``, which is data.
"""

from __future__ import annotations

from oncommit.cloudevents.binding import AMQP, BINDINGS, HTTP, KAFKA, NATS, REDIS, STRUCTURED, Binding
from oncommit.cloudevents.headers import MAX_HEADER_BYTES, Headers
from oncommit.cloudevents.incoming import (
    DEFAULT_MAX_BODY,
    Received,
    event_id,
    from_binary,
    from_structured,
    parse,
)
from oncommit.cloudevents.outgoing import Sendable, Wire, to_binary, to_structured

__all__ = [
    "AMQP",
    "BINDINGS",
    "DEFAULT_MAX_BODY",
    "HTTP",
    "KAFKA",
    "MAX_HEADER_BYTES",
    "NATS",
    "REDIS",
    "STRUCTURED",
    "Binding",
    "Headers",
    "Received",
    "Sendable",
    "Wire",
    "event_id",
    "from_binary",
    "from_structured",
    "parse",
    "to_binary",
    "to_structured",
]
