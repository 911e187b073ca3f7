"""``oncommit migrate``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from oncommit.cli.options import json_option, settings_options
from oncommit.cli.output import print_json, print_table
from oncommit.config import Settings

if TYPE_CHECKING:
    from oncommit.db.migrate import Status


@click.command("migrate", short_help="Bring the tables in a database up to this version.")
@click.option("--sql", "act", flag_value="sql", help="Print the SQL and touch no database.")
@click.option("--status", "act", flag_value="status", help="Show what was applied and what is missing.")
@click.option("--check", "act", flag_value="check", help="Exit with 4 if this version needs a migration.")
@click.option("--to", type=int, help="Stop at this version. Default: the last.")
@click.option("--since", type=int, help="With --sql: only what comes after this version.")
@settings_options
@json_option
def command(settings: Settings, act: str | None, to: int | None, since: int | None, *, as_json: bool) -> None:
    """Bring the tables in a database up to this version.

    Safe on a live system: one migration is one transaction, waits briefly for its locks and tries again, and several
    migrators at once do no harm. Running it again does nothing. There is no way back, and none is needed: older
    programs work on newer tables.
    """
    if since is not None and act != "sql":
        raise click.UsageError("--since goes with --sql")
    if to is not None and act in ("status", "check"):
        raise click.UsageError(f"--to does not go with --{act}")
    if act == "sql":
        _sql(settings, since or 0, to, as_json=as_json)
    elif act == "status":
        _status(settings, as_json=as_json)
    elif act == "check":
        _check(settings, as_json=as_json)
    else:
        _migrate(settings, to, as_json=as_json)


def _sql(settings: Settings, since: int, to: int | None, *, as_json: bool) -> None:
    from oncommit.db.migration_files import sql, statements

    if as_json:
        print_json(statements(settings.schema, since, to))
    else:
        click.echo(sql(settings.schema, since, to), nl=False)


def _migrate(settings: Settings, to: int | None, *, as_json: bool) -> None:
    from oncommit.db.dsn import open_connection
    from oncommit.db.migrate import Migration, migrate, status

    async def work() -> tuple[tuple[Migration, ...], Status]:
        async with open_connection(settings.require_database(), application="oncommit migrate") as connection:
            return await migrate(connection, settings.schema, to=to), await status(connection, settings.schema)

    done, after = asyncio.run(work())
    if as_json:
        print_json(_as_json(after) | {"applied_now": [migration.version for migration in done]})
        return
    for migration in done:
        click.echo(f"applied {migration.version} {migration.name}")
    click.echo(_sentence(after) if done else f"nothing to do: {_sentence(after)}")


def _status(settings: Settings, *, as_json: bool) -> None:
    from oncommit.db.migrate import status

    found = asyncio.run(status(settings.require_database(), settings.schema))
    if as_json:
        print_json(_as_json(found))
        return
    heads = ["version", "name", "state", "applied_at"]
    print_table([head.upper() for head in heads], [[str(row[head] or "") for head in heads] for row in _rows(found)])
    click.echo(_sentence(found))


def _check(settings: Settings, *, as_json: bool) -> None:
    from oncommit.db.migrate import check

    found = asyncio.run(check(settings.require_database(), settings.schema))
    if as_json:
        print_json(_as_json(found))
    else:
        click.echo(_sentence(found))


def _sentence(found: Status) -> str:
    where = f'schema "{found.schema}" is at version {found.current}'
    if found.conflicts:
        numbers = ", ".join(str(migration.version) for migration in found.conflicts)
        return f"{where}; applied with another text than this package has: {numbers}"
    if found.newer:
        return f"{where}, newer than this code ({found.latest}), which works on it"
    if found.pending:
        return f"{where}; this code needs {found.latest}: run oncommit migrate"
    return f"{where}, as this code needs it"


def _rows(found: Status) -> list[dict[str, str | int | None]]:
    from oncommit.db.migrate import migrations
    from oncommit.ops.event_record import utc_text

    applied = {entry.version: utc_text(entry.applied_at) for entry in found.applied}
    conflicts = {migration.version for migration in found.conflicts}
    known: list[tuple[int, str]] = [(migration.version, migration.name) for migration in migrations()]
    newer = {entry.version for entry in found.newer}

    def state(version: int) -> str:
        if version in conflicts:
            return "conflict"
        if version in newer:
            return "newer"
        return "applied" if version in applied else "pending"

    return [
        {"version": version, "name": name, "state": state(version), "applied_at": applied.get(version)}
        for version, name in known + [(entry.version, entry.name) for entry in found.newer]
    ]


def _as_json(found: Status) -> dict[str, object]:
    return {
        "schema": found.schema,
        "current": found.current,
        "latest": found.latest,
        "needs_migration": bool(found.pending),
        "migrations": _rows(found),
    }
