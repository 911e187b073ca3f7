"""The statements of one add, as work that any driver can run.

Failure story. All of it happens in the caller's transaction, which may end at any of these statements by an error, a
lost connection or a killed process: then nothing of it was ever visible, event or business row. A lost answer to COMMIT
leaves the caller not knowing; he tries again with the same event, whose id is then looked for where events end up.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import msgspec

from oncommit import ids
from oncommit.db.calls import Call, Work
from oncommit.db.failures import migrate_hint
from oncommit.db.sql import query
from oncommit.errors import SchemaMissing, SchemaOutdated
from oncommit.outbox.rows import COLUMNS, DATA, OWN, PAYLOAD, PLAIN, SHARED, UNUSUAL, USUAL, Prepared

# What PostgreSQL sets aside for each connection by default (max_locks_per_transaction). A call with 10,000 locks could
# use up the table of locks that all transactions of the server share.
MOST_KEY_LOCKS: Final = 64


def ensure_tables(schema: str) -> Work[None]:
    """Ask once whether the tables are there and new enough, before a statement could abort the transaction."""
    ((there, missing),) = yield Call(query("outbox/shape", schema), [list(COLUMNS)])
    if not there:
        msg = f"the tables of oncommit are not in schema {schema!r}: {migrate_hint(schema)}"
        raise SchemaMissing(msg)
    if missing:
        msg = f"{schema}.outbox has no {', '.join(missing)}, so it is older than this code: {migrate_hint(schema)}"
        raise SchemaOutdated(msg)


def add(
    prepared: Prepared, schema: str, *, strict_order: bool, reserving: Reserving | None = None
) -> Work[tuple[UUID, ...]]:
    """Write the events; the result are the ids that are new to this database, in the order of the call.

    Where the caller would send them behind the commit, they are reserved for him if that can be; ``reserving`` then
    says which were.
    """
    if not prepared.rows:
        return ()
    if strict_order and (keys := order_keys(prepared)):
        yield lock(keys, schema)
    known = offer(prepared)
    if reserving is not None and may_be_reserved(prepared, known):
        written = yield reserve(prepared, reserving.limit, schema)
        reserving.ids = [as_uuid(event_id) for event_id, reserved in written if reserved]
        new = {as_uuid(event_id): False for event_id, _ in written}
    elif not known and not any(prepared.times):
        yield insert_fresh(prepared, schema)
        return tuple([event.id for event in prepared.events])
    else:
        written = yield insert(prepared, schema)
        new = {as_uuid(event_id): bool(delayed) for event_id, delayed in written}
    suspects = [event_id for event_id in new if event_id in known]
    if suspects:
        live = [event_id for event_id in suspects if not new[event_id]]
        delayed = [event_id for event_id in suspects if new[event_id]]
        returned = yield Call(query("outbox/take_back", schema), [live, delayed])
        for (event_id,) in returned:
            del new[as_uuid(event_id)]
        if reserving is not None:
            reserving.ids = [event_id for event_id in reserving.ids if event_id in new]
    return tuple([event.id for event in prepared.events if event.id in new])


class Reserving(msgspec.Struct):
    """The wish to have events reserved, and what came of it."""

    limit: float
    size: int
    """Of the payloads, in bytes, about."""
    ids: list[UUID] = []


def may_be_reserved(prepared: Prepared, known: frozenset[UUID]) -> bool:
    """Whether these may be sent behind the commit, as far as they themselves go.

    Delayed ones are not: their time decides. Nor several of which the database may know one: where that one is left
    out, since another transaction has just written it, those behind it in its key would be sent before it (O-known).
    """
    return not any(prepared.times) and (not known or len(prepared.rows) == 1)


def reserve(prepared: Prepared, limit: float, schema: str) -> Call:
    """The one statement for events that may be sent behind the commit: says which are new, and which were reserved."""
    if len(prepared.rows) == 1:
        return Call(query("optimistic/reserve_one", schema), [*prepared.rows[0], limit])
    return Call(query("optimistic/reserve_many", schema), [*columns(prepared), limit])


def size(prepared: Prepared) -> int:
    """Of the payloads, in bytes, about: a character is taken for one."""
    return sum([len(row[PAYLOAD] or row[DATA] or b"") for row in prepared.rows])


def may_reserve(schema: str) -> Work[bool]:
    """Ask once whether this role may look at what a reservation depends on."""
    ((allowed,),) = yield Call(query("optimistic/allowed", schema))
    return bool(allowed)


def insert_fresh(prepared: Prepared, schema: str) -> Call:
    """The one statement for events that are due at once and cannot have been seen before; nothing to ask back."""
    if len(prepared.rows) == 1:
        row = prepared.rows[0]
        if UNUSUAL(row) == USUAL:
            return Call(query("outbox/add_plain", schema), PLAIN(row), returns=False)
        return Call(query("outbox/add_one", schema), row, returns=False)
    rows = columns(prepared)
    if all(alike(rows[index]) for index in SHARED) and rows[DATA][0] is None and alike(rows[DATA]):
        parameters = [rows[index] for index in OWN] + [rows[index][0] for index in SHARED]
        return Call(query("outbox/add_alike", schema), parameters, returns=False)
    return Call(query("outbox/add_many", schema), rows, returns=False)


def insert(prepared: Prepared, schema: str) -> Call:
    """The one statement for all others; it says which are new, and which of them wait for their time."""
    if any(prepared.times):
        return Call(query("outbox/add_timed", schema), [*columns(prepared), list(prepared.times)])
    return Call(query("outbox/add_known", schema), columns(prepared))


def columns(prepared: Prepared) -> list[list[Any]]:
    """The rows as one list for each column."""
    return [list(column) for column in zip(*prepared.rows, strict=True)]


def alike(column: list[Any]) -> bool:
    """Whether all its values are the same."""
    return column.count(column[0]) == len(column)


def offer(prepared: Prepared) -> frozenset[UUID]:
    """The ids that the database may have seen before; from now on all of them.

    Asked last, not when the call was prepared: an asyncio call may be awaited long after it was made, when another has
    added the same event meanwhile and a relay has delivered it.
    """
    known = frozenset([event.id for event in prepared.events if ids.may_be_known(event.id)])
    for event in prepared.events:
        ids.mark_offered(event.id)
    return known


def lock(keys: list[str], schema: str) -> Call:
    """Wait for the writers of these keys; where there are many, for all writers of any."""
    if len(keys) > MOST_KEY_LOCKS:
        return Call(query("outbox/lock_all_keys", schema))
    return Call(query("outbox/lock_keys", schema), [keys])


def order_keys(prepared: Prepared) -> list[str]:
    """The keys whose writers have to wait for each other, each with its sink."""
    return sorted({f"{event.sink}:{key}" for event in prepared.events if (key := event.ordering_key) is not None})


def as_uuid(value: Any) -> UUID:
    """An id as the driver gave it; an application may have set a codec of its own for uuid."""
    return value if isinstance(value, UUID) else UUID(str(value))
