"""A client of Redis for wake-ups, imported where somebody asks for one."""

from __future__ import annotations

from typing import Any

from oncommit.errors import ConfigError, MissingDependency


def redis_client(url: str, *, timeout: float) -> tuple[Any, tuple[type[Exception], ...]]:
    """A client, and the errors that say it cannot reach its server. Raises ``ConfigError``, ``MissingDependency``."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
    except ModuleNotFoundError as error:
        msg = "wake-ups by way of Redis need the package 'redis'; run: pip install 'oncommit[redis]'"
        raise MissingDependency(msg) from error
    try:
        client: Any = Redis.from_url(
            url, protocol=2, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0)
        )
        client.connection_pool.make_connection()
    except (ValueError, TypeError, RedisError):
        raise ConfigError("the URL of the Redis for wake-ups cannot be used; form: redis://host:6379/0") from None
    return client, (RedisError, OSError, TimeoutError)
