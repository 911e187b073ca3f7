"""Where the copy of a dead event goes: to ``<topic>.dlq``. Pure.

Failure story. A copy is an event of its own, delivered like any other. It dies like any other too, and then there is no
second copy: what goes to such a topic has none. An event that killed its relays is not shown to the user's function of
topics, which may be what kills.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from oncommit.checks import MAX_TOPIC
from oncommit.errors import ConfigError
from oncommit.topics import TopicRules

log: Final = logging.getLogger("oncommit.relay")
SUFFIX: Final = ".dlq"


class Routing(msgspec.Struct, frozen=True):
    """What a topic follows from."""

    sink: str
    type: str
    topic: str | None
    aggregate_type: str | None
    aggregate_id: str | None


def sources(topics: Sequence[str], *, wanted: bool) -> list[str | None]:
    """Of each topic, whether there is a copy for it: itself, or nothing."""
    return [topic if wanted and _has_copy(topic) else None for topic in topics]


def _has_copy(topic: str) -> bool:
    if not topic or topic.endswith(SUFFIX):
        return False
    if len((topic + SUFFIX).encode()) > MAX_TOPIC:
        log.error("a dead event gets no copy: %r would be too long a topic", topic + SUFFIX)
        return False
    return True


def topic_of_killer(routing: Routing, rules: TopicRules) -> str:
    """The topic of an event that killed its relays; empty where it is not to be had."""
    if routing.topic is None and rules.function is not None and routing.type not in rules.by_type:
        log.error("a dead event of type %r gets no copy: which topic is its, only a function knows", routing.type)
        return ""
    try:
        return rules.resolve(routing)
    except ConfigError:
        return ""
