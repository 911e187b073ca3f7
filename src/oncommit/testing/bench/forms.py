"""The ways an application may talk to PostgreSQL, by name: what `--driver` chooses from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from typing import Final, TypeAlias

from oncommit.testing.bench.loads import Adds, AsyncTransaction, Round, Transaction, run_tasks, run_threads
from oncommit.testing.bench.place import Place
from oncommit.testing.bench.workload import SEED, WRITERS, orders, uniform

Run: TypeAlias = Callable[[Adds | None, float], Round]
"""A round: what to add events with (None: without), and for how many seconds."""

OpenTasks: TypeAlias = Callable[[Place, int], AbstractAsyncContextManager[Sequence[AsyncTransaction]]]
OpenThreads: TypeAlias = Callable[[Place, int], AbstractContextManager[Sequence[Transaction]]]


@contextmanager
def tasks(open_writers: OpenTasks, place: Place) -> Iterator[Run]:
    """Rounds of asyncio tasks, all in one event loop with its connections."""
    keys = [orders(uniform(SEED + number)) for number in range(WRITERS)]
    with asyncio.Runner() as runner:
        opened = open_writers(place, WRITERS)
        writers = runner.run(opened.__aenter__())
        try:
            yield lambda adds, seconds: runner.run(run_tasks(writers, keys, adds, seconds))
        finally:
            runner.run(opened.__aexit__(None, None, None))


@contextmanager
def threads(open_writers: OpenThreads, place: Place) -> Iterator[Run]:
    """Rounds of threads, which stay for all rounds."""
    keys = [orders(uniform(SEED + number)) for number in range(WRITERS)]
    with open_writers(place, WRITERS) as writers, ThreadPoolExecutor(WRITERS) as pool:
        yield lambda adds, seconds: run_threads(pool, writers, keys, adds, seconds)


def _asyncpg(place: Place) -> AbstractContextManager[Run]:
    from oncommit.testing.bench.drivers.asyncpg import writers

    return tasks(writers, place)


def _psycopg(place: Place) -> AbstractContextManager[Run]:
    from oncommit.testing.bench.drivers.psycopg import writers

    return threads(writers, place)


def _psycopg_async(place: Place) -> AbstractContextManager[Run]:
    from oncommit.testing.bench.drivers.psycopg import writers_async

    return tasks(writers_async, place)


def _alchemy_async(dialect: str, face: str, place: Place) -> AbstractContextManager[Run]:
    from oncommit.testing.bench.drivers.sqlalchemy import writers_async

    return tasks(partial(writers_async, dialect=dialect, face=face), place)  # type: ignore[arg-type]  # from FORMS


def _alchemy(face: str, place: Place) -> AbstractContextManager[Run]:
    from oncommit.testing.bench.drivers.sqlalchemy import writers

    return threads(partial(writers, face=face), place)  # type: ignore[arg-type]  # from FORMS


def _django(place: Place) -> AbstractContextManager[Run]:
    from oncommit.testing.bench.drivers.django import writers

    return threads(writers, place)


FORMS: Final[dict[str, Callable[[Place], AbstractContextManager[Run]]]] = {
    "asyncpg": _asyncpg,
    "psycopg": _psycopg,
    "psycopg-async": _psycopg_async,
    "sqlalchemy-asyncsession-asyncpg": partial(_alchemy_async, "asyncpg", "session"),
    "sqlalchemy-asyncconnection-asyncpg": partial(_alchemy_async, "asyncpg", "connection"),
    "sqlalchemy-asyncsession-psycopg": partial(_alchemy_async, "psycopg", "session"),
    "sqlalchemy-asyncconnection-psycopg": partial(_alchemy_async, "psycopg", "connection"),
    "sqlalchemy-session-psycopg": partial(_alchemy, "session"),
    "sqlalchemy-connection-psycopg": partial(_alchemy, "connection"),
    "django-psycopg": _django,
}
