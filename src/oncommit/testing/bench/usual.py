"""The usual outbox, written over asyncpg as projects write it: what our figures are shown beside."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final
from uuid import uuid4

from oncommit import codec
from oncommit.message import Event

_INSERT: Final = """
INSERT INTO bench_usual_outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4, $5)
"""
_INSERT_MANY: Final = """
INSERT INTO bench_usual_outbox (id, aggregate_type, aggregate_id, event_type, payload)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::jsonb[])
"""


def usual_schema() -> str:
    """The table and its indexes."""
    return files("oncommit.testing.bench").joinpath("usual_schema.sql").read_text(encoding="utf-8")


class UsualOutbox:
    """Adds to that table. Takes the same events as ours, so that both sides build the same."""

    async def add(self, connection: Any, *events: Event[Any]) -> None:
        """One INSERT."""
        rows = [_row(event) for event in events]
        if len(rows) == 1:
            await connection.execute(_INSERT, *rows[0])
        else:
            await connection.execute(_INSERT_MANY, *[list(column) for column in zip(*rows, strict=True)])


def _row(event: Event[Any]) -> tuple[Any, ...]:
    kind, identity = event.aggregate or ("none", "none")
    return uuid4(), kind, str(identity), event.type, codec.encode(event.payload).decode()
