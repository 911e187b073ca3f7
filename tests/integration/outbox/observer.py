"""Looks at the database from outside, on a connection of its own, and sees what is committed."""

from __future__ import annotations

from typing import Any, Self
from uuid import UUID

import psycopg

LIVE = "SELECT event_id FROM oncommit.outbox ORDER BY id"
# One statement, so one snapshot: rows and events of the same moment.
BOTH = """
    SELECT
        ARRAY(SELECT o.event_id FROM orders o WHERE o.tag = %(tag)s),
        ARRAY(SELECT b.event_id FROM oncommit.outbox b WHERE b.aggregate_type = %(tag)s ORDER BY b.id),
        ARRAY(SELECT b.aggregate_id FROM oncommit.outbox b WHERE b.aggregate_type = %(tag)s ORDER BY b.id)
"""


class Observer:
    """Reads in autocommit; kills connections on request."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.connection.close()

    def rows(self, sql: str, *values: Any) -> list[Any]:
        cursor = self.connection.execute(sql, values)
        return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *values: Any) -> Any:
        return self.rows(sql, *values)[0][0]

    def live(self) -> list[UUID]:
        """The ids of the events in the outbox, in their order."""
        return [event_id for (event_id,) in self.rows(LIVE)]

    def orders(self) -> set[UUID]:
        return {event_id for (event_id,) in self.rows("SELECT event_id FROM orders")}

    def tagged(self, tag: str) -> tuple[list[UUID], list[tuple[str, UUID]]]:
        """The business rows of one example, and its events with their keys, in order."""
        cursor = self.connection.execute(BOTH, {"tag": tag})
        row = cursor.fetchone()
        assert row is not None
        rows, events, keys = row
        return rows, list(zip(keys, events, strict=True))

    def others(self, pid: int) -> list[int]:
        """The processes of this database that serve neither us nor the writer with this one."""
        return [
            other
            for (other,) in self.rows(
                """
                SELECT pid FROM pg_catalog.pg_stat_activity
                WHERE datname = current_database() AND backend_type = 'client backend'
                  AND pid NOT IN (%s, pg_catalog.pg_backend_pid())
                """,
                pid,
            )
        ]

    def kill(self, pid: int) -> None:
        """End a connection from the server's side, and wait until its process is gone."""
        self.rows("SELECT pg_catalog.pg_terminate_backend(%s, 10000)", pid)
        assert not self.value("SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE pid = %s", pid)
