"""The statements of the guide on plain SQL, run by psql, make the same rows as Outbox.add."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from oncommit import Event, Outbox
from oncommit.testing.servers import Database

GUIDE = Path(__file__).parents[3] / "docs/guides/plain-sql.md"
MINIMAL, FULL, DELAYED = re.findall(r"^```sql\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
FULL_ID = UUID("019a9d2f-6f0a-7cc3-8a5e-0d5a3f6b1c22")
# The same events in Python.
AS_EVENTS: dict[str, Event[Any]] = {
    MINIMAL: Event("order.placed", aggregate=("order", "42"), payload={"item": "tea", "total": "9.90"}),
    FULL: Event(
        "order.placed", id=FULL_ID, aggregate=("order", "42"), key="customer-7", topic="shop.orders", sink="main",
        priority=6, payload={"item": "tea"}, content_type="application/json", headers={"tenant": "blue"},
        schema_version=2, correlation_id="checkout-9", causation_id="click-1",
        saga_id=UUID("019a9d2f-6f0a-7cc3-8a5e-0d5a3f6b1c23"), max_attempts=3,
    ),
    DELAYED: Event(
        "order.reminded", aggregate=("order", "42"), payload={}, not_before=datetime.now(UTC) + timedelta(days=1)
    ),
}  # fmt: skip
NAMES = {MINIMAL: "minimal", FULL: "full", DELAYED: "delayed"}


@pytest.fixture
async def connection(any_database: Database) -> AsyncIterator[asyncpg.Connection]:
    connected = await asyncpg.connect(any_database.dsn)
    yield connected
    await connected.close()


def psql(dsn: str, text: str) -> None:
    command = ["psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", dsn]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=60)


def listed(dsn: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "oncommit", "events", "list", "--json", "--payload", "--database", dsn]
    done = subprocess.run(command, text=True, check=True, capture_output=True, timeout=60)
    events: list[dict[str, Any]] = json.loads(done.stdout)
    return events


async def take_row(connection: asyncpg.Connection, table: str) -> dict[str, Any]:
    """The only row, without what is generated for each event, and gone from the table."""
    (row,) = await connection.fetch(f"DELETE FROM oncommit.{table} RETURNING *")
    values = {name: value for name, value in row.items() if name not in ("id", "created_at")}
    values |= {name: json.loads(values[name]) for name in ("payload", "headers")}
    if values["event_id"] != FULL_ID:
        assert values.pop("event_id").version == 7
    if (moment := values.get("not_before")) is not None:
        values["not_before"] = round((moment - datetime.now(UTC)) / timedelta(days=1), 1)
    return values


@pytest.mark.parametrize("statement", [MINIMAL, FULL, DELAYED], ids=NAMES.__getitem__)
async def test_equal_to_outbox_add(connection: asyncpg.Connection, any_database: Database, statement: str) -> None:
    table = "outbox_delayed" if statement == DELAYED else "outbox"
    psql(any_database.dsn, statement)
    by_sql = await take_row(connection, table)
    async with connection.transaction():
        await Outbox().add(connection, AS_EVENTS[statement])
    assert by_sql == await take_row(connection, table)


def test_the_command_line_shows_what_psql_wrote(any_database: Database) -> None:
    for statement in (MINIMAL, FULL, DELAYED):
        psql(any_database.dsn, statement)
    delayed, full, minimal = listed(any_database.dsn)
    assert (minimal["state"], minimal["event_type"], minimal["aggregate"]) == ("pending", "order.placed", "order/42")
    assert 0 <= minimal["lane"] < 64
    assert minimal["payload"] == {"item": "tea", "total": "9.90"}
    assert (full["event_id"], full["key"], full["state"]) == (str(FULL_ID), "customer-7", "pending")
    assert 64 <= full["lane"] < 72
    assert full["headers"] == {"tenant": "blue"}
    assert (delayed["state"], delayed["lane"]) == ("pending", None)
    psql(any_database.dsn, FULL)  # said twice, written once
    assert len(listed(any_database.dsn)) == 3
