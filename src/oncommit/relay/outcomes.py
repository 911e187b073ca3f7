"""What follows from the outcomes of a batch. Pure: rows and outcomes in, what to write and to remember out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from oncommit.brokers.base import Outcome
from oncommit.brokers.row import FetchedRow
from oncommit.errors import BrokerUnavailable, NotAttempted, PublishRejected, TopicUnavailable
from oncommit.relay.store import Burial, Failure
from oncommit.retry import RetryPolicy

MAX_ERROR = 2000


class Verdict(msgspec.Struct):
    """A batch after its publish."""

    sent: list[FetchedRow]
    failures: list[tuple[FetchedRow, Failure]]
    burials: list[tuple[FetchedRow, Burial]]
    waiting: list[FetchedRow]
    """Not tried, behind one of their key that was not acknowledged."""
    topics: dict[str, list[FetchedRow]]
    """Of topics that cannot be reached."""
    unavailable: list[FetchedRow]
    """Nothing to do with the events: the broker cannot be reached."""
    cause: str = ""


def judge(
    rows: Iterable[tuple[FetchedRow, str, Outcome]],
    policy: Callable[[str], RetryPolicy],
    uniform: Callable[[float, float], float],
) -> Verdict:
    """Sort rows, each with its topic and outcome, by what has to happen to them."""
    verdict = Verdict([], [], [], [], {}, [])
    for row, topic, outcome in rows:
        if outcome is None:
            verdict.sent.append(row)
        elif isinstance(outcome, NotAttempted):
            verdict.waiting.append(row)
        elif isinstance(outcome, BrokerUnavailable):
            verdict.unavailable.append(row)
            verdict.cause = str(outcome)
        elif isinstance(outcome, TopicUnavailable):
            verdict.topics.setdefault(topic, []).append(row)
            verdict.cause = verdict.cause or str(outcome)
        elif isinstance(outcome, PublishRejected):
            verdict.burials.append((row, burial(row, topic, "permanent", outcome)))
        else:
            rules = policy(row.type)
            if row.attempts + 1 >= (row.max_attempts or rules.max_attempts):
                verdict.burials.append((row, burial(row, topic, "exhausted", outcome)))
            else:
                delay = rules.backoff.delay(row.attempts + 1, uniform)
                verdict.failures.append(
                    (row, Failure(row.lane, row.epoch, row.place, row.attempts, delay, error_text(outcome)))
                )
    return verdict


def burial(row: FetchedRow, topic: str, reason: str, error: Exception) -> Burial:
    """The record of a dead event."""
    return Burial(row.lane, row.epoch, row.place, reason, type(error).__name__, error_text(error), topic)


def error_text(error: Exception) -> str:
    """What is written down of an error: bounded, and without what PostgreSQL text cannot hold."""
    return str(error)[:MAX_ERROR].encode("utf-8", "replace").decode().replace("\0", "�")
