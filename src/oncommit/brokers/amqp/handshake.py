"""The first words on a connection: who we are, and what both agree on. Decides, and does no I/O."""

from __future__ import annotations

from typing import Final

import msgspec
from pamqp import commands
from pamqp.base import Frame as Method
from pamqp.common import FieldTable

from oncommit._version import __version__
from oncommit.brokers.amqp.address import Address
from oncommit.brokers.amqp.channel import Closed, Closure

HEARTBEAT: Final = 15
_LARGEST_FRAME: Final = 1024 * 1024
_MOST_CHANNELS: Final = 2047
_CAPABILITIES: Final[FieldTable] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "publisher_confirms": True,
}


class Limits(msgspec.Struct):
    """What was agreed with the broker."""

    frame_max: int = 131_072
    channel_max: int = _MOST_CHANNELS
    heartbeat: int = HEARTBEAT


def introduction(start: commands.Connection.Start, address: Address) -> Method:
    """The answer to its greeting. Raises ``Closed`` where it offers no login that we know."""
    mechanism, response = address.credentials()
    if mechanism not in (start.mechanisms or "").split():
        raise Closed(Closure(403, f"it offers no login by {mechanism}, only {start.mechanisms}"))
    properties: FieldTable = {
        "product": "oncommit",
        "version": __version__,
        "connection_name": "oncommit",
        "capabilities": _CAPABILITIES,
    }
    return commands.Connection.StartOk(properties, mechanism, response, "en_US")


def agree(tune: commands.Connection.Tune, heartbeat: int) -> Limits:
    """The smaller of what it and we can do; to it, 0 means anything."""
    return Limits(
        frame_max=min(tune.frame_max or _LARGEST_FRAME, _LARGEST_FRAME),
        channel_max=min(tune.channel_max or _MOST_CHANNELS, _MOST_CHANNELS),
        heartbeat=min(tune.heartbeat or heartbeat, heartbeat),
    )
