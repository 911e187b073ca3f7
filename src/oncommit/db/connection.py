"""From the user's own connection or session to the driver that serves it.

Recognised by the names of the classes it descends from, so that no driver is imported which the application does not
use. The result says whether it is awaited; ``run`` and ``check`` live in ``db/drivers``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from oncommit.errors import UnsupportedConnection

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    AsyncpgHandle = asyncpg.Connection | PoolConnectionProxy


class AsyncHandle(Protocol):
    """psycopg's AsyncConnection, SQLAlchemy's AsyncSession and AsyncConnection: their commit is awaited."""

    def commit(self) -> Coroutine[Any, Any, None]:
        """What tells it from its blocking twin."""


class SyncHandle(Protocol):
    """psycopg's Connection, SQLAlchemy's Session and Connection, Django's connection: their commit blocks."""

    def commit(self) -> None:
        """What tells it from its asyncio twin."""


class DjangoHandle(Protocol):
    """``django.db.connection``: a proxy, of which a checker sees only that it passes everything on."""

    def __contains__(self, key: str, /) -> bool:
        """As Django's proxy has it."""

    def __getattr__(self, name: str, /) -> Any:
        """Whatever the connection behind it has."""


class Driver(msgspec.Struct, frozen=True):
    """How to serve one kind of connection or session."""

    name: str
    is_async: bool
    run: Callable[..., Any]
    check: Callable[[Any], None] | None = None
    on_commit: Callable[..., None] | None = None
    awaits: Callable[[Any], bool] | None = None
    """Whether a commit that looks blocking can wait for something async."""
    tells: Callable[[Any], bool] | None = None
    """Whether it surely knows of its commit; without it, it does where there is ``on_commit``."""


class _Known(msgspec.Struct, frozen=True):
    module: str
    is_async: bool = False
    run: str = "run"
    check: bool = True
    hooks: bool = False


_KNOWN: Final[dict[tuple[str, str], _Known]] = {
    ("asyncpg", "Connection"): _Known("asyncpg", is_async=True),
    ("asyncpg", "PoolConnectionProxy"): _Known("asyncpg", is_async=True),
    ("psycopg", "Connection"): _Known("psycopg"),
    ("psycopg", "AsyncConnection"): _Known("psycopg", is_async=True, run="run_async"),
    ("sqlalchemy", "Connection"): _Known("sqlalchemy", check=False),
    ("sqlalchemy", "Session"): _Known("sqlalchemy", check=False, hooks=True),
    ("sqlalchemy", "scoped_session"): _Known("sqlalchemy", check=False, hooks=True),
    ("sqlalchemy", "AsyncConnection"): _Known("sqlalchemy", is_async=True, run="run_async", check=False),
    ("sqlalchemy", "AsyncSession"): _Known("sqlalchemy", is_async=True, run="run_async", check=False, hooks=True),
    ("sqlalchemy", "async_scoped_session"): _Known(
        "sqlalchemy", is_async=True, run="run_async", check=False, hooks=True
    ),
    ("django", "BaseDatabaseWrapper"): _Known("django", hooks=True),
    ("django", "ConnectionProxy"): _Known("django", hooks=True),
}

_SUPPORTED: Final = (
    "an asyncpg connection, a psycopg 3 connection (sync or async), a SQLAlchemy Session, AsyncSession, Connection or "
    "AsyncConnection, or django.db.connection"
)


def driver_for(handle: object) -> Driver:
    """The driver that serves this kind of object. Raises ``UnsupportedConnection``, which says what to pass."""
    for cls in type(handle).__mro__:
        known = _KNOWN.get((cls.__module__.partition(".")[0], cls.__name__))
        if known:
            return _load(known)
    msg = f"{_kind(handle)} is no connection: pass {_SUPPORTED}{_advice(handle)}"
    raise UnsupportedConnection(msg)


def _load(known: _Known) -> Driver:
    module = import_module(f"oncommit.db.drivers.{known.module}")
    return Driver(
        name=known.module,
        is_async=known.is_async,
        run=getattr(module, known.run),
        check=module.check if known.check else None,
        on_commit=module.on_commit if known.hooks else None,
        awaits=getattr(module, "awaits", None) if known.hooks else None,
        tells=getattr(module, "tells", None) if known.hooks else None,
    )


def _kind(handle: object) -> str:
    cls = handle if isinstance(handle, type) else type(handle)
    kind = f"{cls.__module__}.{cls.__qualname__}"
    return f"the class {kind}" if isinstance(handle, type) else f"a {kind}"


def _advice(handle: object) -> str:
    """The usual slips, by name."""
    cls = handle if isinstance(handle, type) else type(handle)
    name = cls.__name__.lower()
    if "pool" in name:
        return ". A pool has no transaction: use `async with outbox.transaction(pool) as tx:`"
    if "cursor" in name:
        return ". Pass the cursor's connection"
    if "engine" in name or "sessionmaker" in name:
        return ". Open a session or connection from it first"
    if cls.__module__.startswith("psycopg2"):
        return ". psycopg 2 is not supported: psycopg 3 is its successor"
    return ""
