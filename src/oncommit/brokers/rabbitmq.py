"""RabbitMQ: persistent, mandatory, confirmed; an exchange and a routing key, ``exchange/routing.key``, are a topic.

Failure story. What is confirmed is on the disk of a durable queue, or on those of a quorum queue's majority. An answer
that did not come (time limit, lost connection, cancellation) counts as a failure, though RabbitMQ may have taken the
message; the channel is dropped, so that what comes late is mistaken for nothing. A lost connection is made anew by the
next publish or ping. A message that no queue wanted comes back, and is never taken for sent.

A queue that refuses (full, with ``reject-publish``) or is not to be had concerns its topic, not the event: no attempt
is spent, the topic is tried again. When RabbitMQ is low on memory or disk it reads nothing from us: what is under way
fails at its time limit, and until RabbitMQ says that it goes on again nothing more is sent. The connection is kept
meanwhile: each new one would fill another buffer with the same messages, which RabbitMQ takes in the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from pamqp import commands

from oncommit.brokers.amqp.address import parse_address
from oncommit.brokers.amqp.channel import Closed
from oncommit.brokers.amqp.connection import Connection
from oncommit.brokers.base import Capabilities, Message, Outcome
from oncommit.brokers.rabbitmq_batch import Known, Sending
from oncommit.cloudevents import AMQP
from oncommit.errors import BrokerError, BrokerUnavailable, PublishFailed

log: Final = logging.getLogger("oncommit.brokers.rabbitmq")

CONNECT_TIMEOUT: Final = 5.0
PING_TIMEOUT: Final = 2.0


class RabbitBroker:
    """Publishes to the exchanges of one RabbitMQ. Exchanges, queues and bindings are yours: it makes none."""

    def __init__(self, url: str) -> None:
        self._address = parse_address(url)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._is_open = False
        self._known = Known()
        self.capabilities = Capabilities(
            name="rabbitmq",
            binding=AMQP,
            acknowledged_means="stored by every queue that it was routed to, on disk where the queue is durable",
            ordered_pipelining=False,
            deduplicates=False,
        )

    def __repr__(self) -> str:
        return f"RabbitBroker({self._address!r})"

    async def open(self) -> None:
        """Connect and log in, where it is not done."""
        await self._connected()
        self._is_open = True

    async def close(self) -> None:
        """Say goodbye, and disconnect."""
        self._is_open = False
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def ping(self) -> None:
        """Ask it something that it answers to everybody."""
        connection = await self._connected()
        if connection.blocked is not None:
            raise BrokerUnavailable(f"RabbitMQ takes no messages now: {connection.blocked}")
        try:
            async with asyncio.timeout(PING_TIMEOUT):
                channel = await connection.lease()
                try:
                    await connection.ask(channel, commands.Basic.Qos())
                except BaseException:
                    connection.drop(channel)
                    raise
                connection.give_back(channel)
        except (Closed, TimeoutError) as error:
            connection.abort("it does not answer")
            raise BrokerUnavailable(f"RabbitMQ does not answer: {str(error) or 'silence'}") from error

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        """Publish; the first of each key at once, the others each behind the one before it."""
        sending = Sending(batch)
        try:
            async with asyncio.timeout(timeout):
                if not self._is_open:
                    raise BrokerUnavailable("RabbitMQ: not open")
                connection = await self._connected()
                if connection.blocked is not None:
                    raise BrokerUnavailable(f"RabbitMQ takes no messages now: {connection.blocked}")
                await sending.run(connection, self._known)
        except BrokerUnavailable as error:
            sending.give_up(error)
        except Closed as error:
            sending.give_up(BrokerUnavailable(f"RabbitMQ cannot be reached: {error}"))
        except TimeoutError:
            sending.give_up(await self._silent())
        return sending.outcomes

    async def _silent(self) -> BrokerError:
        """Why there is no answer: it is gone, which is no event's fault, or it answers others and not this one."""
        try:
            await self.ping()
        except BrokerUnavailable as error:
            return error
        return PublishFailed("RabbitMQ gave no answer in time")

    async def _connected(self) -> Connection:
        """The connection, made anew where it was lost. Raises ``BrokerUnavailable``."""
        async with self._connecting:
            if self._connection is not None and self._connection.closure is None:
                return self._connection
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    self._connection = await Connection.connect(self._address)
            except Closed as error:
                raise BrokerUnavailable(f"RabbitMQ does not let us in: {error}") from error
            except (OSError, TimeoutError) as error:
                raise BrokerUnavailable(f"RabbitMQ cannot be reached: {str(error) or 'no answer'}") from error
            self._known = Known()
            return self._connection
