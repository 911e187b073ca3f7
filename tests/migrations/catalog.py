"""What a schema holds, as text. `.venv/bin/python -m tests.migrations.catalog` writes the committed schema.txt anew."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import asyncpg

from oncommit.db.migrate import migrate
from oncommit.testing.servers import postgres

HERE = Path(__file__).parent
SNAPSHOT = HERE / "schema.txt"


async def describe(dsn: str, schema: str = "oncommit") -> str:
    """All of a schema, with its own name written as `oncommit` and without quotes."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SET search_path = ''")
        rows = await connection.fetch((HERE / "catalog.sql").read_text(encoding="utf-8"), schema)
    finally:
        await connection.close()
    text = "\n".join(row["line"].rstrip() for row in rows) + "\n"
    return re.sub(rf'"{schema}"|\b{schema}\b', "oncommit", text)


async def is_whole(dsn: str, schema: str = "oncommit") -> bool:
    """Whether the schema is what the committed snapshot shows. Told by an assertion, for its difference.

    On a difference: was the change meant? Then write the snapshot anew.
    """
    found, wanted = await describe(dsn, schema), SNAPSHOT.read_text(encoding="utf-8")
    if found != wanted:
        # Until version 15, PostgreSQL printed the columns of a view with an alias even where there is one table.
        found, wanted = _without_aliases(found), _without_aliases(wanted)
    assert found == wanted
    return True


def _without_aliases(text: str) -> str:
    return re.sub(r"(?<![\w.])[a-z]\.(?=[a-z])", "", text)


if __name__ == "__main__":
    with postgres(18) as server:
        asyncio.run(migrate(server.dsn))
        SNAPSHOT.write_text(asyncio.run(describe(server.dsn)), encoding="utf-8")
