"""Looks at the database from outside, on a connection of its own, and sees what is committed."""

from __future__ import annotations

import time
from collections.abc import Callable
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
DELIVER = """
    WITH gone AS (DELETE FROM oncommit.outbox RETURNING *)
    INSERT INTO oncommit.outbox_archive (
        id, created_at, sent_at, event_id, attempts, crashes, schema_version, priority, lane, sink, event_type,
        aggregate_type, aggregate_id, key, content_type, headers, payload, data)
    SELECT
        id, created_at, oncommit.now(), event_id, attempts + 1, crashes, schema_version, priority, lane, sink,
        event_type, aggregate_type, aggregate_id, key, content_type, headers, payload, data
    FROM gone
"""
BURY = """
    WITH gone AS (DELETE FROM oncommit.outbox RETURNING *)
    INSERT INTO oncommit.dead_letter (source, origin, message_id, event_id, event_type, reason, expires_at)
    SELECT 'outbox', sink, event_id::text, event_id, event_type, 'exhausted', 'infinity' FROM gone
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

    def wait_until_blocked(self, pid: int, *, until: Callable[[], bool] = lambda: False) -> None:
        """Until that process waits for a lock; fails where it ends instead."""
        deadline = time.monotonic() + 20
        while not self.value("SELECT cardinality(pg_catalog.pg_blocking_pids(%s)) > 0", pid):
            assert not until(), "it did not have to wait"
            assert time.monotonic() < deadline, "it does not wait for a lock"
            time.sleep(0.005)

    def deliver(self) -> None:
        """What a relay does with all live events: one statement, from outbox to archive."""
        self.rows(DELIVER)

    def bury(self) -> None:
        """All live events to the dead letters, in one statement."""
        self.rows(BURY)

    def kill(self, pid: int) -> None:
        """End a connection from the server's side, and wait until its process is gone."""
        self.rows("SELECT pg_catalog.pg_terminate_backend(%s, 10000)", pid)
        assert not self.value("SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE pid = %s", pid)
