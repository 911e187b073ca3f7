"""Whether a checker knows what to await. Checked by pyright (strict); nobody runs it.

Not awaiting an asyncio ``add`` is an error too: `reportUnusedCoroutine` sees coroutines only, so the type of the result
is what catches it, wherever the ids are used.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeArgument=false, reportUnknownParameterType=false
# The drivers leave parts of themselves untyped; what is asserted here is ours.

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, assert_type
from uuid import UUID

import asyncpg
import psycopg
import psycopg_pool
import sqlalchemy
from asyncpg.pool import PoolConnectionProxy
from django.db import connection as django_connection  # pyright: ignore[reportMissingTypeStubs]
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from oncommit import Event, Outbox
from oncommit.testing.outbox import added, assert_added

Ids = tuple[UUID, ...]

outbox = Outbox()
event = Event("order.placed")


class Shipment:
    def to_event(self) -> Event[None]:
        return event


def blocking(
    psycopg_connection: psycopg.Connection,
    dict_connection: psycopg.Connection[dict[str, Any]],
    session: Session,
    connection: sqlalchemy.Connection,
    scoped: scoped_session[Session],
) -> None:
    assert_type(outbox.add(psycopg_connection, event), Ids)
    assert_type(outbox.add(dict_connection, event), Ids)
    assert_type(outbox.add(session, event, Shipment(), strict_order=True), Ids)
    assert_type(outbox.add(connection, event), Ids)
    assert_type(outbox.add(scoped, event), Ids)
    assert_type(added(session), list[Event[Any]])
    assert_type(assert_added(psycopg_connection, type="order.placed"), list[Event[Any]])


async def asyncio(
    psycopg_connection: psycopg.AsyncConnection,
    session: AsyncSession,
    connection: AsyncConnection,
    scoped: async_scoped_session[AsyncSession],
    asyncpg_connection: asyncpg.Connection,
    proxy: PoolConnectionProxy,
) -> None:
    assert_type(outbox.add(psycopg_connection, event), Awaitable[Ids])
    assert_type(outbox.add(session, event), Awaitable[Ids])
    assert_type(outbox.add(connection, event), Awaitable[Ids])
    assert_type(outbox.add(scoped, event), Awaitable[Ids])
    assert_type(outbox.add(asyncpg_connection, event), Awaitable[Ids])
    assert_type(outbox.add(proxy, event), Awaitable[Ids])
    assert_type(await outbox.add(session, event, Shipment()), Ids)
    assert_type(await added(asyncpg_connection), list[Event[Any]])
    assert_type(await assert_added(session, count=None), list[Event[Any]])


def django() -> None:
    # Django ships no types, and its connection is a proxy; to mypy it is just Any.
    assert_type(outbox.add(django_connection, event), Ids)
    assert_type(added(django_connection), list[Event[Any]])


async def in_a_pool(pool: asyncpg.Pool) -> None:
    async with pool.acquire() as connection, connection.transaction():
        assert_type(await outbox.add(connection, event), Ids)


async def transactions(
    asyncpg_pool: asyncpg.Pool,
    pool: psycopg_pool.ConnectionPool,
    async_pool: psycopg_pool.AsyncConnectionPool,
    engine: sqlalchemy.Engine,
    async_engine: AsyncEngine,
) -> None:
    async with outbox.transaction(asyncpg_pool) as tx:
        assert_type(await outbox.add(tx, event), Ids)
    with outbox.transaction(pool) as tx:
        assert_type(outbox.add(tx, event), Ids)
    async with outbox.transaction(async_pool) as tx:
        assert_type(await outbox.add(tx, event), Ids)
    with outbox.transaction(engine) as tx:
        assert_type(outbox.add(tx, event), Ids)
    async with outbox.transaction(async_engine) as tx:
        assert_type(await outbox.add(tx, event), Ids)


def wrong(session: Session, async_session: AsyncSession, engine: sqlalchemy.Engine, pool: asyncpg.Pool) -> None:
    outbox.add(session, "order.placed")  # pyright: ignore[reportCallIssue, reportArgumentType]
    outbox.add(engine, event)  # pyright: ignore[reportCallIssue, reportArgumentType]
    outbox.add(pool, event)  # pyright: ignore[reportCallIssue, reportArgumentType]
    outbox.add(None, event)  # pyright: ignore[reportCallIssue, reportArgumentType]
    ids: Ids = outbox.add(async_session, event)  # pyright: ignore[reportAssignmentType]
    _ = ids
