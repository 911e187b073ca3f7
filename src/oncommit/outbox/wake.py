"""How relays hear of a commit: through the database, through a list in Redis, or from within the transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from oncommit.brokers.redis_client import redis_client
from oncommit.db import pools
from oncommit.db.address import normalise_dsn
from oncommit.db.calls import Call, Work
from oncommit.db.sql import query
from oncommit.errors import ConfigError
from oncommit.identifiers import DEFAULT_SCHEMA, check_service, wake_channel, wake_list
from oncommit.outbox.home import LoopHome, ThreadHome
from oncommit.outbox.waker import LIMIT, Waker

_LONGEST_PAYLOAD: Final = 7999
_KEPT: Final = 10
"""Entries in the list where no relay takes them."""
_KEPT_FOR: Final = 60


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """How the relays hear of a commit. Without any of these, through the pool that is ``after_commit``."""

    through: Any = None
    """A pool, an engine or a DSN to notify through; one apart from the application's keeps out of its way."""
    redis: str | None = None
    """URL of a Redis: push onto its list ``outbox:wake:{service}`` instead."""
    service: str = DEFAULT_SCHEMA
    in_transaction: bool = False
    """Notify in the transaction itself. Heard with every kind of connection; commits stand in line for it."""
    every: float = 0.002
    """Seconds between two words, at least."""

    def __post_init__(self) -> None:
        check_service(self.service)
        if not self.every > 0:
            raise ConfigError(f"every must be above zero, not {self.every!r}")
        if sum((self.through is not None, self.redis is not None, self.in_transaction)) > 1:
            raise ConfigError("a Wake goes through a pool, through Redis, or in the transaction: give one of them")
        if self.through is not None and not pools.is_pool(self.through):
            raise ConfigError(
                f"through must be a pool, an engine or a DSN to notify through, not a {type(self.through).__name__}"
            )

    def __repr__(self) -> str:
        """Without DSN and URL, which may hold passwords."""
        return f"Wake(service={self.service!r}, in_transaction={self.in_transaction}, every={self.every!r})"


class _Notifying:
    """Says it by NOTIFY, in a transaction of its own."""

    def __init__(self, pool: Any, schema: str) -> None:
        self._runner = pools.runner_for(pool)
        self._schema = schema

    async def say(self, sinks: frozenset[str]) -> None:
        """One statement."""
        await self._runner.run(lambda: _work(sinks, self._schema), self._schema, timeout=LIMIT)

    async def close(self) -> None:
        """The application's pool stays open."""
        await self._runner.close()


class _Pushing:
    """Says it by LPUSH onto a short list, which lasts no longer than a poll's time anyway."""

    def __init__(self, url: str, service: str) -> None:
        self._list = wake_list(service)
        self._client, _ = redis_client(url, timeout=LIMIT)

    async def say(self, sinks: frozenset[str]) -> None:
        """One trip."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.lpush(self._list, payload_of(sinks)).ltrim(self._list, 0, _KEPT - 1).expire(self._list, _KEPT_FOR)
        await pipeline.execute()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()


def waker_for(wake: Wake | bool, after_commit: Any, schema: str) -> Waker | None:  # noqa: FBT001 - on, off, or how
    """What tells the relays, where there is a way to."""
    how = Wake() if wake is True else wake
    if how is False or how.in_transaction:
        return None
    if how.redis is not None:
        url, service = how.redis, how.service
        redis_client(url, timeout=LIMIT)  # what is wrong with the URL is said here, not behind a commit
        return Waker(lambda: _Pushing(url, service), ThreadHome(), every=how.every)
    pool = how.through if how.through is not None else after_commit
    if pool is None or not pools.is_pool(pool):
        return None
    if isinstance(pool, str):
        normalise_dsn(pool)
    home = LoopHome() if pools.belongs_to_a_loop(pool) else ThreadHome()
    return Waker(lambda: _Notifying(pool, schema), home, every=how.every)


def in_transaction(sinks: Iterable[str], schema: str) -> Call:
    """The statement that tells of a transaction from within."""
    return Call(query("outbox/notify", schema), [wake_channel(schema), payload_of(frozenset(sinks))], returns=False)


def payload_of(sinks: frozenset[str]) -> str:
    """The sinks by name; nothing, which stands for all, where they are too many."""
    payload = " ".join(sorted(sinks))
    return payload if len(payload) <= _LONGEST_PAYLOAD else ""


def _work(sinks: frozenset[str], schema: str) -> Work[None]:
    yield in_transaction(sinks, schema)
