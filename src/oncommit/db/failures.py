"""What a driver's error means to us. Only what we know better than the driver is translated.

Deadlocks, serialization failures, cancelled statements and lost connections stay what the driver made of them: the
user's retry loop around the transaction knows that class.
"""

from __future__ import annotations

from typing import Final

from oncommit.errors import OncommitError, SchemaMissing, SchemaOutdated, TransactionFailed

_MISSING: Final = {"42P01", "3F000"}  # undefined table, undefined schema
_OUTDATED: Final = {"42703", "42883", "42P10"}  # undefined column, undefined function, no matching unique constraint
_ABORTED: Final = "25P02"  # in failed transaction


def migrate_hint(schema: str) -> str:
    """The next step where tables are missing or old."""
    option = "" if schema == "oncommit" else f" --schema {schema}"
    return f"run `oncommit migrate{option}` against this database"


def translate(error: BaseException, schema: str) -> OncommitError | None:
    """Our error for a driver's, or None where the driver's own should fly on."""
    state = sqlstate(error)
    if state in _MISSING:
        return SchemaMissing(f"the tables of oncommit are not in schema {schema!r}: {migrate_hint(schema)}")
    if state in _OUTDATED:
        return SchemaOutdated(f"the tables in schema {schema!r} are older than this code: {migrate_hint(schema)}")
    if state == _ABORTED:
        return TransactionFailed("the transaction failed before this add; roll it back, then try again")
    return None


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an error, also through the wrappers of SQLAlchemy (``orig``) and Django (``__cause__``)."""
    for candidate in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(candidate, "sqlstate", None)
        if isinstance(state, str):
            return state
    return None
