"""Writing events inside the user's transaction."""

from oncommit.outbox.outbox import Outbox

__all__ = ["Outbox"]
