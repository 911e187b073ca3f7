"""The snippets of the guide for Alembic and Django, each in a project of its own, as users would run them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oncommit.db.migrate import check, latest_version, migrate, status
from oncommit.testing.servers import Database
from tests.migrations.catalog import is_whole

GUIDE = Path(__file__).parents[2] / "docs/guides/migrations.md"
BLOCK = re.compile(r'^```python [^\n]*title="(?P<title>[^"]+)"\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL)

SYNC_ENV = """
from alembic import context
from sqlalchemy import create_engine, pool

url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"})
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
"""
ASYNC_ENV = """
import asyncio
from alembic import context
from sqlalchemy import pool
from sqlalchemy.ext.asyncio import create_async_engine

def work(connection):
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()

async def main():
    engine = create_async_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=pool.NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(work)
    await engine.dispose()

asyncio.run(main())
"""
DJANGO_SETTINGS = """
from urllib.parse import urlsplit
import os
parts = urlsplit(os.environ["SHOP_DATABASE"])
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "HOST": parts.hostname, "PORT": parts.port,
                         "USER": parts.username, "NAME": parts.path.strip("/")}}
INSTALLED_APPS = ["shop"]
USE_TZ = True
SECRET_KEY = "of no use"
"""


def snippet(title: str) -> str:
    (code,) = [block["code"] for block in BLOCK.finditer(GUIDE.read_text(encoding="utf-8")) if block["title"] == title]
    return code


def current(title: str) -> str:
    """The snippet up to the last version, so that one test tells when the guide is behind, and not all of them."""
    return re.sub(r"\bto=\d+", f"to={latest_version()}", snippet(title))


def program(folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def alembic(tmp_path: Path) -> Path:
    """An Alembic project with the guide's revision; the test adds env.py and the URL."""
    title = "versions/0001_oncommit.py"
    (tmp_path / "versions").mkdir()
    (tmp_path / title).write_text(current(title))
    return tmp_path


def configure(project: Path, env: str, url: str) -> None:
    (project / "env.py").write_text(env)
    (project / "alembic.ini").write_text(
        f"[alembic]\nscript_location = .\nsqlalchemy.url = {url}\npath_separator = os\n"
    )


def assert_whole(dsn: str) -> None:
    asyncio.run(check(dsn))
    assert asyncio.run(is_whole(dsn))


def test_the_guide_goes_to_the_last_version() -> None:
    versions = {int(version) for title in ("versions/0001_oncommit.py", "shop/migrations/0001_oncommit.py")
                for version in re.findall(r"\bto=(\d+)\)", snippet(title))}  # fmt: skip
    assert versions == {latest_version()}, f"let the snippets of {GUIDE.name} say to={latest_version()}"


@pytest.mark.parametrize(("driver", "env"), [("psycopg", SYNC_ENV), ("asyncpg", ASYNC_ENV)], ids=["psycopg", "asyncpg"])
def test_alembic(alembic: Path, bare: Database, driver: str, env: str) -> None:
    configure(alembic, env, bare.url(driver))
    program(alembic, "-m", "alembic", "upgrade", "head")
    assert_whole(bare.dsn)
    program(alembic, "-m", "alembic", "downgrade", "base")
    assert asyncio.run(status(bare.dsn)).applied == ()
    asyncio.run(migrate(bare.dsn, to=3))  # somebody was here first
    program(alembic, "-m", "alembic", "upgrade", "head")
    assert_whole(bare.dsn)


def test_alembic_that_prints_sql(alembic: Path, bare: Database) -> None:
    configure(alembic, SYNC_ENV, bare.url("psycopg"))
    printed = program(alembic, "-m", "alembic", "upgrade", "head", "--sql")
    subprocess.run(["psql", "-Xq", "-v", "ON_ERROR_STOP=1", bare.dsn], input=printed, text=True, check=True, timeout=60)
    assert_whole(bare.dsn)


def test_django(tmp_path: Path, bare: Database) -> None:
    title = "shop/migrations/0001_oncommit.py"
    (tmp_path / "shop/migrations").mkdir(parents=True)
    for package in ("shop", "shop/migrations"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / title).write_text(current(title))
    (tmp_path / "settings.py").write_text(DJANGO_SETTINGS)
    shop = {"DJANGO_SETTINGS_MODULE": "settings", "SHOP_DATABASE": bare.dsn, "PYTHONPATH": str(tmp_path)}
    program(tmp_path, "-m", "django", "migrate", **shop)
    assert_whole(bare.dsn)
    program(tmp_path, "-m", "django", "migrate", "shop", "zero", **shop)
    assert asyncio.run(status(bare.dsn)).applied == ()
    asyncio.run(migrate(bare.dsn, to=3))
    program(tmp_path, "-m", "django", "migrate", **shop)
    assert_whole(bare.dsn)
