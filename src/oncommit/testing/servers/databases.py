"""A fresh database per test, copied from a template that is made once per server and run.

Names carry a random run id, so that runs which share an external server don't meet. Failure story: a run that is
killed leaves its databases only on an external server (its own server goes with it); they are called
`oncommit_t_<run>_…` and can be dropped at any time.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

from oncommit.testing.servers.catalog import AnyServer
from oncommit.testing.servers.sql import execute

MakeTemplate = Callable[[str], None]


@dataclass(frozen=True)
class Database:
    """An empty (or migrated) database of one test."""

    dsn: str
    name: str
    server: AnyServer

    def url(self, driver: str) -> str:
        """The DSN as SQLAlchemy spells it: `url("asyncpg")`, `url("psycopg")`."""
        return self.dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


class Databases:
    """Makes and drops databases on one server."""

    def __init__(self, server: AnyServer, make_template: MakeTemplate) -> None:
        self._server = server
        self._make_template = make_template
        self._prefix = f"oncommit_t_{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        self._template = ""
        self._lock = threading.Lock()

    @contextmanager
    def fresh(self) -> Iterator[Database]:
        """A database from the template, dropped at the end, whoever is still connected."""
        database = self.create()
        try:
            yield database
        finally:
            self.drop(database)

    def create(self) -> Database:
        """A database from the template."""
        template = self._ready_template()
        return self._create(f"{self._prefix}_{next(self._numbers)}", template)

    def drop(self, database: Database) -> None:
        """Drop it, whoever is still connected."""
        execute(self._server.dsn, f'DROP DATABASE IF EXISTS "{database.name}" WITH (FORCE)')

    def close(self) -> None:
        """Drop the template. Only worth the time where the server outlives the run."""
        if self._template and self._server.external:
            execute(self._server.dsn, f'DROP DATABASE IF EXISTS "{self._template}" WITH (FORCE)')

    def _ready_template(self) -> str:
        with self._lock:
            if not self._template:
                database = self._create(f"{self._prefix}_template", "template0")
                try:
                    self._make_template(database.dsn)
                except BaseException:
                    self.drop(database)
                    raise
                self._template = database.name
            return self._template

    def _create(self, name: str, template: str) -> Database:
        # Names are ours (hexadecimal digits and numbers): nothing to escape.
        execute(self._server.dsn, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        parts = urlsplit(self._server.dsn)
        dsn = urlunsplit(parts._replace(path="/" + quote(name)))
        return Database(dsn, name, self._server)
