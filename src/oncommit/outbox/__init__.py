"""Writing events inside the user's transaction."""

from oncommit.outbox.optimistic import Optimistic
from oncommit.outbox.outbox import Outbox

__all__ = ["Optimistic", "Outbox"]
