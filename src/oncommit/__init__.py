"""What your transaction commits gets delivered."""

from oncommit import errors
from oncommit._version import __version__
from oncommit.errors import OncommitError
from oncommit.message import Event, SupportsEvent
from oncommit.outbox import Optimistic, Outbox
from oncommit.telemetry import caused_by, correlated

__all__ = [
    "Event",
    "OncommitError",
    "Optimistic",
    "Outbox",
    "SupportsEvent",
    "__version__",
    "caused_by",
    "correlated",
    "errors",
]
