"""The settings of all programs as one value, and the list of their definitions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from oncommit.config.addresses import check_database
from oncommit.config.definition import ANY, Definition, Setting, definitions_of, definitions_within
from oncommit.config.kinds import choice, text
from oncommit.config.presets import PRESETS
from oncommit.config.relay import RETRY, RelayProgram, RelaySettings
from oncommit.errors import ConfigError
from oncommit.identifiers import DEFAULT_SCHEMA, DEFAULT_SINK, check_schema
from oncommit.topics import DEFAULT_TEMPLATE, TopicRules

FILE_NAME: Final = "oncommit.toml"
_TEMPLATE: Final = text(lambda template: TopicRules(template=template))
_BARE_TEMPLATE: Final = text(lambda template: TopicRules(without_aggregate=template))
_TOPIC: Final = text(lambda topic: TopicRules(by_type={"any": topic}))


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one sink."""

    broker: Annotated[str | None, Setting("URL of its broker, such as nats://localhost:4222.", text(), secret=True)] = (
        None
    )
    topic: Annotated[str | None, Setting("Template of its topics. Not given: what suits the broker.", _TEMPLATE)] = None
    without_aggregate: Annotated[
        str, Setting("Template for events of no aggregate, where `topic` asks for one.", _BARE_TEMPLATE)
    ] = DEFAULT_TEMPLATE
    topics: Mapping[str, str] = MappingProxyType({})
    """Topics of single types."""

    def __repr__(self) -> str:
        """Without the URL, which may hold a password."""
        return f"SinkSettings(topic={self.topic!r}, topics={dict(self.topics)!r})"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a program. Make it with ``load``."""

    database: Annotated[
        str | None,
        Setting(
            "URL of the PostgreSQL database: postgresql://user:password@host:5432/database. "
            "Without it, libpq's PGHOST, PGDATABASE and so on count where they are set.",
            text(check_database),
            aliases=("DATABASE_URL",),
            secret=True,
        ),
    ] = None
    schema: Annotated[str, Setting("Schema of the tables.", text(check_schema))] = DEFAULT_SCHEMA
    preset: Annotated[
        str | None,
        Setting("A few settings that go together; all that is said elsewhere goes before.", choice(*PRESETS)),
    ] = None
    program: RelayProgram = RelayProgram()
    relay: RelaySettings = RelaySettings()
    sinks: Mapping[str, SinkSettings] = MappingProxyType({})

    def __repr__(self) -> str:
        """Without the database, whose URL may hold a password."""
        return f"Settings(schema={self.schema!r}, relay={self.relay!r}, sinks={dict(self.sinks)!r})"

    def require_database(self) -> str:
        """The database's URL. Raises ``ConfigError`` that names the ways to give one."""
        if self.database is None:
            msg = (
                "no database is given: say --database URL, set ONCOMMIT_DATABASE (or DATABASE_URL) in the environment, "
                f'or write database = "URL" into {FILE_NAME}'
            )
            raise ConfigError(msg)
        return self.database

    def served(self) -> dict[str, SinkSettings]:
        """The sinks that a relay of this program serves. Raises ``ConfigError`` where one has no broker."""
        served = {name: self.sinks.get(name, SinkSettings()) for name in self.program.sinks or self.sinks}
        if not served:
            msg = (
                "no broker is given: say --broker URL (or set ONCOMMIT_BROKER), --sink NAME=URL, "
                f'or write broker = "URL" under [sinks.{DEFAULT_SINK}] into {FILE_NAME}'
            )
            raise ConfigError(msg)
        for name, sink in served.items():
            if not sink.broker:
                msg = (
                    f"the sink {name} has no broker: say --sink {name}=URL, name it in ONCOMMIT_SINKS, "
                    f'or write broker = "URL" under [sinks.{name}] into {FILE_NAME}'
                )
                raise ConfigError(msg)
        return served


@cache
def definitions() -> tuple[Definition, ...]:
    """Every setting there is.

    Example:
        >>> [setting.name for setting in definitions()][:3]
        ['database', 'schema', 'preset']
    """
    retry = RelaySettings().retry
    return (
        *definitions_of(Settings),
        *definitions_of(RelayProgram, ("relay",)),
        *definitions_of(RelaySettings, ("relay",)),
        *definitions_within(RETRY, retry, ("retry",)),
        *(
            msgspec.structs.replace(entry, help=_of_a_type(entry.help), default=None)
            for entry in definitions_within(RETRY, retry, ("retry", ANY))
        ),
        *definitions_of(SinkSettings, ("sinks", ANY)),
        Definition(("sinks", ANY, "topics", ANY), ("topics",), "Topic of the events of a type.", _TOPIC, None),
    )


def _of_a_type(told: str) -> str:
    return (
        f"The same for one type of event, or for all that fit a pattern such as `order.*`: {told[0].lower()}{told[1:]}"
    )
