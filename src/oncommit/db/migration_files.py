"""The numbered SQL files of the package, and each as one statement that any tool can run.

A migration becomes a single ``DO`` block: it takes the migrators' lock, looks whether it was applied here already, runs
the file's text as it stands, and records it. So it is atomic even where a tool commits after every statement, harmless
when it runs twice or at the same time as another, and nobody has to split SQL at semicolons: drivers that take one
statement at a time (asyncpg under Alembic) run the same text as psql and as ``oncommit migrate`` itself.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from oncommit.db.sql import in_schema
from oncommit.errors import ConfigError
from oncommit.identifiers import DEFAULT_SCHEMA, check_schema

_FILE_NAME: Final = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.sql")

# Only what this package makes itself goes into the holes: a number, a name of its own files, a hash and their text.
_STATEMENT: Final = """\
DO $migration$
DECLARE
    recorded text;
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('oncommit:migrate', 0));
    IF pg_catalog.to_regclass('oncommit.migration') IS NOT NULL THEN
        SELECT m.checksum INTO recorded FROM oncommit.migration AS m WHERE m.version = {version};
    END IF;
    IF recorded = '{checksum}' THEN
        RETURN;
    ELSIF recorded IS NOT NULL THEN
        RAISE EXCEPTION 'migration {version} was applied here with another text'
            USING HINT = 'Two different versions of the package; oncommit migrate --status tells more.';
    END IF;

    EXECUTE $text$
{text}
$text$;

    INSERT INTO oncommit.migration (version, name, checksum)
    VALUES ({version}, '{name}', '{checksum}');
END
$migration$"""


class Migration(msgspec.Struct, frozen=True):
    """One numbered file: ``0002_outbox.sql`` is version 2, "outbox"."""

    version: int
    name: str
    text: str
    checksum: str

    def statement(self, schema: str = DEFAULT_SCHEMA) -> str:
        """The migration as one SQL statement for that schema, without a semicolon at its end."""
        filled = _STATEMENT.format(version=self.version, name=self.name, checksum=self.checksum, text=self.text.strip())
        return in_schema(filled, schema)


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations of this version of the package, in order.

    Example:
        >>> [migration.name for migration in migrations()][:2]
        ['ground', 'outbox']
    """
    found = []
    for file in files("oncommit.db").joinpath("migrations").iterdir():
        if match := _FILE_NAME.fullmatch(file.name):
            text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
            checksum = hashlib.sha256(text.encode()).hexdigest()
            found.append(Migration(int(match["version"]), match["name"], text, checksum))
    return tuple(sorted(found, key=lambda migration: migration.version))


def latest_version() -> int:
    """The version that this code needs in the database: that of its last migration. Reads no database."""
    return migrations()[-1].version


def statements(schema: str = DEFAULT_SCHEMA, since: int = 0, to: int | None = None) -> list[str]:
    """The migrations after version ``since`` up to ``to``, each as one statement: for Alembic, Django and any driver.

    Each takes a lock, skips itself where it was applied already, and records itself.

    Example:
        >>> statements(since=2)[0].startswith("DO $migration$")
        True

    Raises:
        ConfigError: The schema name cannot be used, or there is no such version.
    """
    check_schema(schema)
    check_version(since)
    last = check_version(latest_version() if to is None else to)
    return [migration.statement(schema) for migration in migrations() if since < migration.version <= last]


def sql(schema: str = DEFAULT_SCHEMA, since: int = 0, to: int | None = None) -> str:
    """The migrations after version ``since`` up to ``to`` as one text: for psql, Flyway and readers.

    Example:
        >>> sql(to=2).splitlines()[0]
        '-- oncommit: migrations 1 to 2 for the schema "oncommit".'

    Raises:
        ConfigError: The schema name cannot be used, or there is no such version.
    """
    blocks = statements(schema, since, to)
    if not blocks:
        return f'-- oncommit: nothing after migration {since} for the schema "{schema}".\n'
    head = (
        f'-- oncommit: migrations {since + 1} to {since + len(blocks)} for the schema "{schema}".\n'
        "-- Each block is one migration, whole or not at all; running it again does nothing.\n"
    )
    return head + "".join(f"\n{block};\n" for block in blocks)


def check_version(version: int) -> int:
    """The version, if 0 or a migration of this package. Raises ``ConfigError`` otherwise."""
    if not 0 <= version <= latest_version():
        msg = f"there is no migration {version}: this version of oncommit has 1 to {latest_version()}"
        raise ConfigError(msg)
    return version
