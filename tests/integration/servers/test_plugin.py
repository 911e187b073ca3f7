"""The pytest plugin as a user of the library meets it: in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncommit.testing.servers import AnyServer
from oncommit.testing.servers.sql import fetch_value

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(text: str, expect: int = 0, **environment: str) -> str:
        (tmp_path / "test_user.py").write_text(text)
        env = {name: value for name, value in os.environ.items() if name != "CI"} | environment
        quiet = ["-q", "-p", "no:cacheprovider", "-W", "error", "-o", "asyncio_default_fixture_loop_scope=function"]
        command = [sys.executable, "-m", "pytest", *quiet, str(tmp_path)]
        result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=90)
        assert result.returncode == expect, result.stdout + result.stderr
        return result.stdout

    return run


def test_a_run_without_servers_says_nothing_of_them(run: Run) -> None:
    assert "oncommit" not in run("def test_it(): pass")


def test_the_plugin_imports_nothing_heavy() -> None:
    check = (
        "import sys, oncommit.testing.plugin; "
        "heavy = [m for m in ('asyncpg', 'psycopg', 'sqlalchemy', 'oncommit.testing.servers') if m in sys.modules]; "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_fresh_migrated_database_for_each_test_and_a_report(run: Run) -> None:
    told = run("""
from oncommit.testing.servers.sql import execute, fetch_value

SEEN = []

def test_one(oncommit_database):
    assert fetch_value(oncommit_database.dsn, "select to_regclass('oncommit.outbox')::text")
    execute(oncommit_database.dsn, "create table mine (n int)")
    SEEN.append(oncommit_database.name)

def test_two(oncommit_database):
    assert fetch_value(oncommit_database.dsn, "select to_regclass('mine')") is None
    assert oncommit_database.name not in SEEN
    left = "select count(*) from pg_database where datname = $1"
    assert fetch_value(oncommit_database.server.dsn, left, SEEN[0]) == 0
""")
    assert "oncommit servers" in told
    assert "PostgreSQL 18." in told
    assert "skipped: nothing" in told


def test_the_user_fills_the_template_and_picks_the_version(run: Run, postgres: AnyServer) -> None:
    text = """
import pytest
from oncommit.testing.servers.sql import execute, fetch_value

@pytest.fixture(scope="session")
def oncommit_make_template():
    return lambda dsn: execute(dsn, "create table shop (n int)")

@pytest.mark.parametrize("oncommit_postgres", [18], indirect=True)
def test_it(oncommit_database):
    assert fetch_value(oncommit_database.dsn, "select to_regclass('shop')::text") == "shop"
"""
    told = run(text, ONCOMMIT_TEST_POSTGRES18_DSN=postgres.dsn)
    assert "postgres18" in told


MISSING = """
def test_it(oncommit_redis): pass
def test_again(oncommit_redis): pass
"""


def test_a_missing_server_skips_and_is_listed(run: Run, tmp_path: Path) -> None:
    told = run(MISSING, PATH=str(tmp_path), ONCOMMIT_TEST_REDIS_URL="")
    assert "2 skipped" in told
    assert "apt-get install redis-server" in told
    assert "skipped: redis" in told


def test_in_ci_a_missing_server_fails(run: Run, tmp_path: Path) -> None:
    told = run(MISSING, expect=1, PATH=str(tmp_path), ONCOMMIT_TEST_REDIS_URL="", CI="true")
    assert "2 errors" in told
    assert "CI=true" in told


def test_logs_are_kept_when_a_test_fails(run: Run, tmp_path: Path) -> None:
    told = run("def test_it(oncommit_nats): assert not oncommit_nats.url", expect=1)
    kept = Path(told.partition("log kept: ")[2].splitlines()[0])
    assert kept.is_relative_to(tmp_path)
    assert "Server is ready" in kept.read_text()


def test_on_an_external_server_nothing_is_left(run: Run, tmp_path: Path, postgres: AnyServer) -> None:
    told = run(
        """
import pytest
from oncommit.testing.servers import ServerError
from oncommit.testing.servers.sql import fetch_value

def test_it(oncommit_database):
    assert oncommit_database.server.external
    with pytest.raises(ServerError, match="ONCOMMIT_TEST_POSTGRES18_DSN"):
        oncommit_database.server.kill()
    with open("prefix", "w") as file:
        file.write(oncommit_database.name.rpartition("_")[0])
""",
        ONCOMMIT_TEST_POSTGRES18_DSN=postgres.dsn,
    )
    assert "given by ONCOMMIT_TEST_POSTGRES18_DSN" in told
    prefix = (tmp_path / "prefix").read_text()
    left = "select count(*) from pg_database where starts_with(datname, $1)"
    assert fetch_value(postgres.dsn, left, prefix) == 0
