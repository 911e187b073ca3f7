"""A RabbitMQ of the test's own: messages for it, queues on it, and its administrator's command."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.rabbitmq import RabbitBroker
from oncommit.testing.servers.kinds.rabbitmq import find_rabbitmq, node_name
from oncommit.testing.servers.server import Server

EXCHANGE = "shop"
QUEUE = "orders"
TOPIC = f"{EXCHANGE}/order.placed"


def message(topic: str = TOPIC, key: str | None = None, body: bytes = b"{}", **headers: str) -> Message:
    """One message, with the headers that every event has."""
    id_ = str(uuid4())
    ours = {"message_id": id_, "cloudEvents_id": id_, "cloudEvents_type": "order.placed", "cloudEvents_source": "/shop"}
    return Message(id_, topic, key, {**headers, **ours}, body, "application/json")


def ids(messages: Sequence[Message]) -> list[str]:
    return [one.message_id for one in messages]


def kinds(outcomes: Sequence[Outcome]) -> list[str]:
    """The names of the outcomes' classes; "sent" for a good one."""
    return ["sent" if one is None else type(one).__name__ for one in outcomes]


def rabbitmqctl(server: Server, *words: str) -> str:
    """What an administrator says."""
    env = {
        **os.environ,
        "HOME": str(server.home.folder),
        "ERL_EPMD_PORT": str(server.home.ports["epmd"]),
        "RABBITMQ_CONF_ENV_FILE": str(server.home.folder / "no-such-file"),
    }
    program = str(find_rabbitmq().with_name("rabbitmqctl"))
    command = [program, "--quiet", "--node", node_name(server.home), *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def suspend_queue(server: Server, name: str) -> None:
    """Let a queue answer nobody, as one does that has lost its majority."""
    rabbitmqctl(server, "eval", f"{_process(name)}, sys:suspend(P).")


def resume_queue(server: Server, name: str) -> None:
    """Let it go on."""
    rabbitmqctl(server, "eval", f"{_process(name)}, sys:resume(P).")


def _process(name: str) -> str:
    resource = f'rabbit_misc:r(<<"/">>, queue, <<"{name}">>)'
    return f"{{ok, Q}} = rabbit_amqqueue:lookup({resource}), P = amqqueue:get_pid(Q)"


@dataclass
class Rabbit:
    """Exchanges and queues as a user would make them."""

    url: str
    connection: Any = None
    channel: Any = None
    queues: set[str] = field(default_factory=set)
    exchanges: set[str] = field(default_factory=set)

    async def queue(self, name: str = QUEUE, exchange: str = EXCHANGE, key: str = "#", **arguments: Any) -> Any:
        """A durable queue, bound to a durable topic exchange."""
        where = await self.exchange(exchange)
        queue = await self.channel.declare_queue(name, durable=True, arguments=arguments)
        self.queues.add(name)
        await queue.bind(where, key)
        return queue

    async def exchange(self, name: str = EXCHANGE) -> Any:
        self.exchanges.add(name)
        return await self.channel.declare_exchange(name, "topic", durable=True)

    def forget(self) -> None:
        """Leave what was made."""
        self.queues.clear()
        self.exchanges.clear()

    async def bare(self, name: str) -> Any:
        """A durable queue, bound to nothing of ours."""
        self.queues.add(name)
        return await self.channel.declare_queue(name, durable=True)

    async def arrived(self, queue: Any, count: int, timeout: float = 15) -> list[AbstractIncomingMessage]:
        """So many messages, and a look that there are no more."""
        found: list[AbstractIncomingMessage] = []
        async with asyncio.timeout(timeout):
            while len(found) < count:
                if (one := await queue.get(no_ack=True, fail=False)) is not None:
                    found.append(one)
        assert await self.waiting(queue) == 0
        return found

    async def waiting(self, queue: Any) -> int:
        """How many messages lie in a queue."""
        state = await self.channel.declare_queue(queue.name, passive=True)
        count: int = state.declaration_result.message_count
        return count

    async def counted(self, queue: Any) -> Counter[str]:
        """How often each message arrived."""
        found = await self.arrived(queue, await self.waiting(queue))
        return Counter(one.message_id for one in found)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Rabbit]:
    """A client that cleans up behind itself."""
    rabbit = Rabbit(url)
    rabbit.connection = await aio_pika.connect(url)
    rabbit.channel = await rabbit.connection.channel()
    try:
        yield rabbit
    finally:
        for name in rabbit.queues:
            await rabbit.channel.queue_delete(name)
        for name in rabbit.exchanges:
            await rabbit.channel.exchange_delete(name)
        await rabbit.connection.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RabbitBroker]:
    broker = RabbitBroker(url)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()
