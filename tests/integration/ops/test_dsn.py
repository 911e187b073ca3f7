"""Opening a database by its DSN: the forms it takes, and what is told when it cannot be reached."""

from __future__ import annotations

import socket
import traceback
from urllib.parse import urlsplit

import pytest

from oncommit.db.address import describe_dsn, normalise_dsn
from oncommit.db.dsn import open_connection
from oncommit.errors import ConfigError, DatabaseUnreachable, OncommitError
from oncommit.testing.servers import AnyServer, Database

SECRET = "geheim"


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ("postgresql://a:b@h:1/d", "postgresql://a:b@h:1/d"),
        ("postgres://a@h/d", "postgresql://a@h/d"),
        ("postgresql+asyncpg://a@h/d?ssl=require", "postgresql://a@h/d?sslmode=require"),
        ("postgresql+psycopg://a@h/d", "postgresql://a@h/d"),
        ("postgresql+asyncpg://a@h/d?prepared_statement_cache_size=0", "postgresql://a@h/d"),
        ("postgresql://", "postgresql://"),
        ("postgresql:///d?host=/run/pg", "postgresql:///d?host=%2Frun%2Fpg"),
        (
            "postgresql://h1:1,h2:2/d?target_session_attrs=primary",
            "postgresql://h1:1,h2:2/d?target_session_attrs=primary",
        ),
        ("postgresql://a:p%40ss@h/d?connect_timeout=3", "postgresql://a:p%40ss@h/d"),
    ],
)
def test_forms(given: str, understood: str) -> None:
    assert normalise_dsn(given) == understood


@pytest.mark.parametrize(
    "given",
    [
        "",
        "h",
        f"host=h password={SECRET}",
        f"mysql://a:{SECRET}@h/d",
        f"postgresql://[{SECRET}",
        f"postgresql://h?{SECRET}",
    ],
)
def test_what_is_none(given: str) -> None:
    with pytest.raises(ConfigError) as refused:
        normalise_dsn(given)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (f"postgresql://a:{SECRET}@h:1/d", "h:1/d as a"),
        (f"postgresql:///d?host=/run/pg&password={SECRET}", "/run/pg/d"),
        (f"postgresql://a:{SECRET}@h:nan/d", "the given database"),
        ("postgresql://", "the default host"),
    ],
)
def test_what_is_told_of_one(given: str, told: str) -> None:
    assert describe_dsn(given) == told


async def test_every_form_connects(database: Database) -> None:
    for dsn in (database.dsn, database.url("asyncpg"), database.url("psycopg") + "?connect_timeout=5"):
        async with open_connection(dsn, application="a test") as connection:
            assert await connection.fetchval("SELECT current_database()") == database.name
            assert await connection.fetchval("SHOW application_name") == "a test"


async def test_from_the_environment_of_libpq(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = urlsplit(database.dsn)
    for name, value in {"HOST": parts.hostname, "PORT": str(parts.port), "USER": parts.username,
                        "DATABASE": database.name}.items():  # fmt: skip
        monkeypatch.setenv(f"PG{name}", value or "")
    async with open_connection("postgresql://") as connection:
        assert await connection.fetchval("SELECT current_database()") == database.name


async def reach(dsn: str, *, timeout: float = 5) -> OncommitError:
    """The error, after a look that it gives no secret away, not even in its trace."""
    with pytest.raises(OncommitError) as refused:
        async with open_connection(dsn, timeout=timeout):
            pass
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    return refused.value


async def test_nobody_listens() -> None:
    error = await reach(f"postgresql://a:{SECRET}@127.0.0.1:1/d")
    assert isinstance(error, DatabaseUnreachable)
    assert "127.0.0.1:1/d as a" in str(error)


async def test_no_such_host() -> None:
    assert isinstance(await reach(f"postgresql://a:{SECRET}@no-such-host.invalid/d"), DatabaseUnreachable)


async def test_silence_has_an_end() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        error = await reach(
            f"postgresql://a:{SECRET}@127.0.0.1:{silent.getsockname()[1]}/d?sslmode=disable", timeout=0.3
        )
    assert isinstance(error, DatabaseUnreachable)
    assert "did not answer within 0.3 s" in str(error)


async def test_no_such_database_and_no_such_role(postgres: AnyServer) -> None:
    parts = urlsplit(postgres.dsn)
    missing = await reach(f"postgresql://{parts.username}:{SECRET}@{parts.hostname}:{parts.port}/none")
    assert "create the database first" in str(missing)
    refused = await reach(f"postgresql://nobody_here:{SECRET}@{parts.hostname}:{parts.port}/postgres")
    assert "check user and password" in str(refused)
    assert isinstance(missing, DatabaseUnreachable)
    assert isinstance(refused, DatabaseUnreachable)


@pytest.mark.parametrize("tail", [f"h:{SECRET}/d", "h/d?sslmode=perhaps", f"a:{SECRET}@h:1:2/d"])
async def test_urls_that_only_the_driver_finds_wrong(tail: str) -> None:
    assert isinstance(await reach(f"postgresql://{tail}"), ConfigError)
