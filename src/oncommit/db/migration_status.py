"""What a schema has, beside what this version of the package brings. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from oncommit.db.migration_files import Migration, latest_version, migrations
from oncommit.errors import MigrationConflict, SchemaMissing, SchemaOutdated
from oncommit.identifiers import DEFAULT_SCHEMA


class Applied(msgspec.Struct, frozen=True):
    """A migration as a database has it on record."""

    version: int
    name: str
    checksum: str
    applied_at: datetime


class Status(msgspec.Struct, frozen=True):
    """What a schema has, beside what this version of the package brings."""

    schema: str
    applied: tuple[Applied, ...]

    @property
    def current(self) -> int:
        """The last version that was applied; 0 where none was."""
        return max((entry.version for entry in self.applied), default=0)

    @property
    def latest(self) -> int:
        """The version that this code needs."""
        return latest_version()

    @property
    def pending(self) -> tuple[Migration, ...]:
        """What is missing here, in order."""
        known = {entry.version for entry in self.applied}
        return tuple(migration for migration in migrations() if migration.version not in known)

    @property
    def conflicts(self) -> tuple[Migration, ...]:
        """Migrations that were applied here with another text."""
        recorded = {entry.version: entry.checksum for entry in self.applied}
        return tuple(
            migration
            for migration in migrations()
            if recorded.get(migration.version, migration.checksum) != migration.checksum
        )

    @property
    def newer(self) -> tuple[Applied, ...]:
        """What a newer version of the package has applied; this one works on it."""
        return tuple(entry for entry in self.applied if entry.version > latest_version())

    def require(self) -> None:
        """Raise unless this code can work on the schema. A newer schema is fine."""
        if self.conflicts:
            names = ", ".join(f"{migration.version} ({migration.name})" for migration in self.conflicts)
            msg = (
                f'migration {names} was applied to schema "{self.schema}" with another text than this package has; '
                "is the right version of oncommit installed, and is it the right database?"
            )
            raise MigrationConflict(msg)
        if not self.applied:
            msg = f'schema "{self.schema}" has no tables of oncommit; run: oncommit migrate{_option(self.schema)}'
            raise SchemaMissing(msg)
        if self.pending:
            msg = (
                f'schema "{self.schema}" is at version {self.current}, this code needs {self.latest}; '
                f"run: oncommit migrate{_option(self.schema)}"
            )
            raise SchemaOutdated(msg)


def _option(schema: str) -> str:
    return "" if schema == DEFAULT_SCHEMA else f" --schema {schema}"
