"""A shop whose orders leave through the outbox, with the relay inside the web application.

    uvicorn shop:app

DATABASE_URL is the shop's database (`oncommit migrate` has run on it), NATS_URL the broker, where a stream takes the
subjects `events.>`. `oncommit run shop:relay` runs the relay as a process of its own instead.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import asyncpg
from fastapi import FastAPI, Request
from pydantic import BaseModel

from oncommit import Event, Outbox
from oncommit.brokers.registry import make_broker
from oncommit.relay.relay import Relay

DATABASE_URL = os.environ["DATABASE_URL"]
NATS_URL = os.environ["NATS_URL"]

outbox = Outbox()
relay = Relay(DATABASE_URL, {"main": make_broker(NATS_URL)})


class NewOrder(BaseModel):
    customer: str
    total: int


class Order(NewOrder):
    id: UUID


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The pool and the relay live as long as the application; the relay drains before the pool is closed."""
    async with asyncpg.create_pool(DATABASE_URL, min_size=1, max_size=5) as pool:
        await pool.execute(
            'CREATE TABLE IF NOT EXISTS "order" (id uuid PRIMARY KEY, customer text NOT NULL, total integer NOT NULL)'
        )
        await relay.check()  # fails at the start where the tables are missing, and not with the first event
        app.state.pool = pool
        async with relay:
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(new: NewOrder, request: Request) -> Order:
    """The order and its event are committed together, or neither is."""
    order = Order(id=uuid4(), **new.model_dump())
    pool: asyncpg.Pool = request.app.state.pool
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute('INSERT INTO "order" VALUES ($1, $2, $3)', order.id, order.customer, order.total)
        await outbox.add(connection, Event("order.placed", aggregate=("order", order.id), payload=order))
    relay.wake()  # it need not wait for its next look
    return order
