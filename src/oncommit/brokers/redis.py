"""Redis: entries of Streams, added by a script that stops where one of a key is refused; Pub/Sub for those who ask.

Failure story. A connection answers in order, so what was not answered when it broke, or when the time was up, may have
been taken or not; it is tried again, and may then be there twice. Such a connection is dropped: the next publish must
not read its answers. What the server of a dropped connection finds in its buffer later is a duplicate too. Within a
chunk of messages (redis_wire.py) Redis takes all or nothing as far as crashes go, since a script is one transaction in
its append-only file.

What is acknowledged is in the memory of the server. Whether it is on its disk, ``appendfsync`` says: only with
``always`` before the answer. Whether it is anywhere else, ``replicas`` in the URL says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from oncommit.brokers import redis_wire as wire
from oncommit.brokers.base import Capabilities, Message, Outcome
from oncommit.brokers.redis_answers import Sending, never_takes_scripts, outcome_of, refuses_scripts, text_of
from oncommit.brokers.redis_settings import LARGEST, read_url
from oncommit.cloudevents import REDIS
from oncommit.errors import BrokerError, BrokerUnavailable, ConfigError, PublishFailed

log: Final = logging.getLogger("oncommit.brokers.redis")

CONNECT_TIMEOUT: Final = 5.0
CONNECTIONS: Final = 8
"""At most; a relay uses one."""
_PROBE: Final = wire.command(b"XADD", b"oncommit:probe", b"0-0", b"probe", b"probe")
_PROBE_TAKEN: Final = "must be greater than 0-0"


class RedisBroker:
    """Publishes to the streams of one Redis server, or of the primary of several."""

    def __init__(self, url: str) -> None:
        address, self._settings = read_url(url)
        self._make_pool(address)
        self._address = address
        self._pool: Any = None
        self._takes_scripts = self._settings.scripts
        self._encoder = wire.Encoder(self._settings, self._settings.max_message or LARGEST)
        self.capabilities = Capabilities(
            name="redis",
            binding=REDIS,
            acknowledged_means="in the server's memory; on its disk as appendfsync says, with always before the answer",
            ordered_pipelining=self._settings.scripts,
            deduplicates=False,
            max_message=self._settings.max_message,
        )

    async def open(self) -> None:
        """Connect, log in, and see whether it takes anything."""
        self._takes_scripts = self._settings.scripts
        if self._pool is None:
            self._pool = self._make_pool(self._address)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT), self._connected() as connection:
                await self._look(connection)
                await self._probe(connection)
        except (RedisError, OSError, TimeoutError) as error:
            raise _unreachable(error) from error

    async def close(self) -> None:
        """Disconnect."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await pool.disconnect()

    async def ping(self) -> None:
        """Ask whether it takes anything: it may be a replica by now, or full."""
        if self._pool is None:
            await self.open()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT), self._connected() as connection:
                await self._probe(connection)
        except (RedisError, OSError, TimeoutError) as error:
            raise _unreachable(error) from error

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        """Publish in chunks, all of them in flight at once."""
        sending = Sending(batch, self._encoder)
        if not sending.chains:
            return sending.outcomes
        try:
            async with asyncio.timeout(timeout), self._connected() as connection:
                await self._publish(connection, sending, timeout)
        except TimeoutError:
            self._broke(sending, await self._silent())
        except (RedisError, OSError) as error:
            self._broke(sending, _unreachable(error))
        except BrokerUnavailable as error:
            self._broke(sending, error)
        return sending.outcomes

    def _broke(self, sending: Sending, reason: BrokerError) -> None:
        if self._settings.replicas:  # nobody has said that they have it
            sending.does_not_count(reason)
        sending.broke(reason)

    async def _publish(self, connection: Any, sending: Sending, timeout: float) -> None:
        began = asyncio.get_running_loop().time()
        by_hand = [] if self._takes_scripts else sending.chains
        if self._takes_scripts:
            chunks = list(wire.chunks(sending.chains))
            for chunk in chunks:
                sending.goes(chunk.chains)
                await connection.send_packed_command(chunk.command, check_health=False)
            for chunk in chunks:
                answer = await _read(connection)
                if isinstance(answer, str) and refuses_scripts(answer):
                    self._takes_scripts = self._takes_scripts and not never_takes_scripts(answer)
                    by_hand += chunk.chains
                else:
                    sending.answered(chunk, answer)
        if by_hand:
            await self._publish_in_waves(connection, sending, by_hand)
        if self._settings.replicas and sending.taken:
            left = timeout - (asyncio.get_running_loop().time() - began)
            await self._await_replicas(connection, max(left * 0.8, 0.001))
        if sending.is_down:
            await connection.disconnect(nowait=True)  # the name may lead to another server by now

    async def _publish_in_waves(self, connection: Any, sending: Sending, chains: Sequence[wire.Chain]) -> None:
        """Where scripts are not allowed: the first of each key, then the second of those whose first was taken."""
        place = 0
        while chains := [chain for chain in chains if place < len(chain)]:
            heads = [chain[place] for chain in chains]
            sending.goes([[head] for head in heads])
            await connection.send_packed_command([head.command for head in heads], check_health=False)
            for head in heads:
                answer = await _read(connection)
                sending.one_answered(head, wire.NO_STREAM if answer is None else answer)
            chains = [chain for chain in chains if sending.took(chain[place])]
            place += 1

    async def _await_replicas(self, connection: Any, seconds: float) -> None:
        wanted = self._settings.replicas
        have = await _ask(connection, wire.command(b"WAIT", b"%d" % wanted, b"%d" % max(int(seconds * 1000), 1)))
        if isinstance(have, str):
            raise outcome_of(have, "WAIT")
        if have < wanted:
            raise BrokerUnavailable(f"Redis: {have} of {wanted} replicas have answered that they have it")

    async def _silent(self) -> BrokerError:
        """Why there is no answer: it is gone, which is no event's fault, or it answers others and not this one."""
        try:
            await self.ping()
        except BrokerUnavailable as error:
            return error
        return PublishFailed("Redis gave no answer in time")

    async def _probe(self, connection: Any) -> None:
        """Ask for something that is refused for its id alone, after all else that a refusal could be for."""
        refusal = await _ask(connection, _PROBE)
        if isinstance(refusal, str) and _PROBE_TAKEN not in refusal:
            outcome = outcome_of(refusal, "oncommit:probe")
            if isinstance(outcome, BrokerUnavailable):  # that it may not write to this key says nothing of others
                raise outcome
        if self._settings.replicas:
            await self._await_replicas(connection, 0.5)

    async def _look(self, connection: Any) -> None:
        """Limits and dangers that only the server knows; it need not tell us."""
        answer = await _ask(connection, wire.command(b"CONFIG", b"GET", b"proto-max-bulk-len"))
        if isinstance(answer, list) and len(answer) == 2:  # noqa: PLR2004 - a pair
            limit = min(int(answer[1]), self._settings.max_message or LARGEST)
            self._encoder = wire.Encoder(self._settings, limit)
            self.capabilities = msgspec.structs.replace(self.capabilities, max_message=limit)
        answer = await _ask(connection, wire.command(b"CONFIG", b"GET", b"maxmemory-policy"))
        if isinstance(answer, list) and len(answer) == 2 and bytes(answer[1]).startswith(b"allkeys"):  # noqa: PLR2004
            log.warning(
                "Redis may throw whole streams away when its memory is full (maxmemory-policy %s): set noeviction",
                bytes(answer[1]).decode(errors="replace"),
            )

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """A connection that owes no answers; one that breaks, or is left in the middle, is dropped."""
        pool = self._pool
        if pool is None:
            raise BrokerUnavailable("Redis: not open")
        connection = await pool.get_connection()
        try:
            yield connection
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)

    @staticmethod
    def _make_pool(address: str) -> Any:
        try:
            pool: Any = BlockingConnectionPool.from_url(
                address,
                max_connections=CONNECTIONS,
                timeout=None,
                protocol=2,
                socket_timeout=None,
                socket_connect_timeout=CONNECT_TIMEOUT,
                retry=Retry(NoBackoff(), 0),
                **({} if address.startswith("unix:") else {"socket_keepalive": True}),
            )
            pool.make_connection()
        except TypeError as error:
            unknown = str(error).rpartition("argument ")[2]
            raise ConfigError(f"the Redis URL has a parameter that is none: {unknown}") from None
        except (ValueError, RedisError):
            raise ConfigError("the Redis URL cannot be used; form: redis://user:password@host:6379/0") from None
        return pool


async def _ask(connection: Any, command: bytes) -> Any:
    await connection.send_packed_command(command, check_health=False)
    return await _read(connection)


async def _read(connection: Any) -> Any:
    """The next answer; a refusal as text. One that means the end of the connection is raised."""
    try:
        return await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return text_of(error)


def _unreachable(error: Exception) -> BrokerUnavailable:
    return BrokerUnavailable(f"Redis cannot be reached: {text_of(error) or 'no answer'}")
