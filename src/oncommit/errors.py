"""The errors of oncommit: one tree, each with the cause and the next step in its message.

    OncommitError
    ├── ConfigError                  a setting that cannot be: schema name, limits, sinks            (also ValueError)
    ├── InvalidEvent                 an event that must not be written; names event and field     (also ValueError)
    │   ├── PayloadError             the payload cannot become bytes: unserialisable, NaN, NUL, too large
    │   ├── DuplicateEvent           one id twice in one call
    │   └── UnknownSink              a sink that this Outbox was not told of
    ├── WriteRefused                 the connection or session cannot take the event now
    │   ├── UnsupportedConnection    an object that is no connection or session we know            (also TypeError)
    │   ├── NotInTransaction         true autocommit: nothing to commit the event with
    │   ├── TransactionFailed        the transaction was already aborted or rolled back
    │   └── ConnectionClosed         closed before the add
    ├── SchemaError                  the tables in the database are not what this code needs
    │   ├── SchemaMissing            never migrated
    │   ├── SchemaOutdated           migrated by older code
    │   └── MigrationConflict        a migration that was applied here reads otherwise now
    ├── DatabaseUnreachable          no answer from PostgreSQL, or the login was refused          (also ConnectionError)
    ├── CloudEventError              bytes from outside that are no CloudEvent we can read          (also ValueError)
    ├── BrokerError                  why a message was not acknowledged
    │   ├── BrokerUnavailable        no broker, or no way in; nothing to do with the message
    │   ├── TopicUnavailable         this topic is missing, forbidden or leads nowhere
    │   ├── PublishRejected          the broker will never take this message
    │   ├── PublishFailed            not acknowledged this time
    │   └── NotAttempted             held back behind an earlier message of its key
    ├── IllegalMove                  a change of state that the table of moves does not have
    ├── NotFound                     no such event                                                (also LookupError)
    └── MissingDependency            an optional package is needed for this                        (also ImportError)

What the user's own transaction raises inside ``add`` (a deadlock, a serialization failure, a lost connection) is *not*
wrapped: retry loops around a transaction know the driver's class and must keep seeing it.
"""

from __future__ import annotations


class OncommitError(Exception):
    """Root of everything that oncommit raises on purpose."""


class ConfigError(OncommitError, ValueError):
    """A setting that cannot be used; the message names it and says what would do."""


class InvalidEvent(OncommitError, ValueError):
    """An event that must not be written. Nothing has reached the database."""

    def __init__(self, field: str, problem: str, *, event: str | None = None) -> None:
        self.field = field
        self.problem = problem
        self.event = event
        where = f"event {event}, field {field!r}" if event else f"field {field!r}"
        super().__init__(f"{where}: {problem}")

    def __reduce__(self) -> tuple[object, ...]:
        """Made again from its parts, so that it survives the way out of a worker process."""
        return _rebuild, (type(self), self.field, self.problem, self.event)


def _rebuild(kind: type[InvalidEvent], field: str, problem: str, event: str | None) -> InvalidEvent:
    return kind(field, problem, event=event)


class PayloadError(InvalidEvent):
    """A payload that cannot become bytes, or too many of them."""


class DuplicateEvent(InvalidEvent):
    """The same event id twice in one call."""


class UnknownSink(InvalidEvent):
    """A sink that the Outbox was not told of, so that no relay would ever serve it."""


class WriteRefused(OncommitError):
    """The connection or session cannot take an event now. Nothing has reached the database."""


class UnsupportedConnection(WriteRefused, TypeError):
    """The object is no connection or session that oncommit knows."""


class NotInTransaction(WriteRefused):
    """There is no transaction that the event could commit with."""


class TransactionFailed(WriteRefused):
    """The transaction is aborted or over; only a rollback is left."""


class ConnectionClosed(WriteRefused):
    """The connection or session was closed before."""


class SchemaError(OncommitError):
    """The tables in the database are not what this code needs."""


class SchemaMissing(SchemaError):
    """The tables are not there."""


class SchemaOutdated(SchemaError):
    """The tables are older than this code."""


class MigrationConflict(SchemaError):
    """A migration that was applied to this database reads otherwise in this package."""


class DatabaseUnreachable(OncommitError, ConnectionError):
    """PostgreSQL did not answer, or did not let us in."""


class CloudEventError(OncommitError, ValueError):
    """Headers and bytes that cannot be read as a CloudEvent."""


class BrokerError(OncommitError):
    """Why a message was not acknowledged by the broker."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached, or lets nobody in: nothing to do with the message, and no attempt is spent."""


class TopicUnavailable(BrokerError):
    """This topic is missing, forbidden or has no queue bound to it; other topics may be fine."""


class PublishRejected(BrokerError):
    """The broker will never take this message: too large, malformed. Trying again is of no use."""


class PublishFailed(BrokerError):
    """It was not acknowledged this time: refused for now, timed out, or the answer was lost."""


class NotAttempted(BrokerError):
    """Held back, because an earlier message of its key was not acknowledged."""


class IllegalMove(OncommitError):
    """A change of state that the table of moves does not have, or whose guard said no."""


class NotFound(OncommitError, LookupError):
    """No event with that id: never added, rolled back, or expired."""


class MissingDependency(OncommitError, ImportError):
    """An optional package is needed for this; the message names the extra to install."""
