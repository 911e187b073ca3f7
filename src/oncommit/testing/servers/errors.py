"""What can go wrong with a test server."""

from __future__ import annotations

from oncommit.errors import OncommitError


class ServerError(OncommitError):
    """A test server did not do what it was told; the message has the tail of its log."""


class ServerUnavailable(ServerError):
    """This machine lacks the program; the message says what to install or which variable to set."""


class NotReady(OncommitError):
    """The server gives no answer, or not yet the right one."""
