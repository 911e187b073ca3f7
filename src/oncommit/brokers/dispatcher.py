"""From rows to the broker and back to outcomes. The seam for metrics and traces: see ``watch.py``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from oncommit.brokers.base import Broker, Message, Outcome
from oncommit.brokers.circuit import Circuit
from oncommit.brokers.row import FetchedRow
from oncommit.brokers.watch import Watch, say
from oncommit.cloudevents import to_binary
from oncommit.errors import BrokerError, NotAttempted, OncommitError, PublishFailed, PublishRejected, TopicUnavailable
from oncommit.retry import Backoff
from oncommit.topics import TopicRules

Published = tuple[FetchedRow, str, Outcome]


class Publisher(Protocol):
    """What a relay asks of whoever takes its rows."""

    async def publish(self, rows: Sequence[FetchedRow], *, timeout: float) -> list[Published]:
        """Publish these rows; one entry a row, in the same order. Raises nothing."""

    def topic_wait(self, topic: str) -> float:
        """Seconds until this topic is tried again."""


class Dispatcher:
    """Publishes for one sink."""

    def __init__(
        self,
        broker: Broker,
        rules: TopicRules,
        *,
        source: str,
        backoff: Backoff,
        uniform: Callable[[float, float], float],
        watch: Watch | None = None,
    ) -> None:
        self._broker = broker
        self._rules = rules
        self._source = source
        self._backoff = backoff
        self._uniform = uniform
        self._watch = watch
        self._topics: dict[str, Circuit] = {}

    async def publish(self, rows: Sequence[FetchedRow], *, timeout: float) -> list[Published]:
        """Publish these rows, which stand in the order of their lanes; one entry a row, in the same order."""
        begun = time.perf_counter()
        published = await self._publish(rows, timeout)
        if self._watch is not None:
            self._watch.published(published, time.perf_counter() - begun)
        return published

    async def _publish(self, rows: Sequence[FetchedRow], timeout: float) -> list[Published]:
        now = time.monotonic()
        results: list[Published | None] = [None] * len(rows)
        messages: list[Message] = []
        places: list[int] = []
        stopped: set[str] = set()
        for index, row in enumerate(rows):
            topic = ""
            message: Message | None = None
            problem: BrokerError | None
            if row.ordering_key is not None and row.ordering_key in stopped:
                problem = NotAttempted("an earlier event of its key did not go")
            else:
                topic, message, problem = self._message(row, now)
            if message is None:
                results[index] = (row, topic, problem)
                if row.ordering_key is not None:
                    stopped.add(row.ordering_key)
            else:
                messages.append(message)
                places.append(index)
        if messages:
            for index, message, outcome in zip(places, messages, await self._ask(messages, timeout), strict=True):
                results[index] = (rows[index], message.topic, outcome)
                self._note(message.topic, outcome)
        return [result for result in results if result is not None]

    async def _ask(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:
        """What the broker says. An adapter raises nothing; one that does all the same must not stop the sink."""
        try:
            outcomes = await self._broker.publish(messages, timeout=timeout)
        except BrokerError as error:
            return [error] * len(messages)
        except Exception as error:  # noqa: BLE001 - said in the log, and an outcome of each
            say(logging.ERROR, "the adapter %s failed", self._broker.capabilities.name, exc_info=True)
            return [PublishFailed(f"the adapter failed: {error!r}")] * len(messages)
        if len(outcomes) != len(messages):
            problem = f"the adapter gave {len(outcomes)} outcomes for {len(messages)} messages"
            return [PublishFailed(problem)] * len(messages)
        return outcomes

    def topic_wait(self, topic: str) -> float:
        """Seconds until this topic is tried again."""
        circuit = self._topics.get(topic)
        return circuit.wait(time.monotonic()) if circuit else 0.0

    def _message(self, row: FetchedRow, now: float) -> tuple[str, Message | None, BrokerError | None]:
        if row.problem is not None:
            return "", None, PublishRejected(row.problem)
        try:
            topic = self._rules.resolve(row)
            circuit = self._topics.get(topic)
            if circuit is not None and circuit.wait(now) > 0:
                return topic, None, TopicUnavailable(circuit.cause or "the topic's circuit is open")
            wire = to_binary(row, source=self._source, time=row.created_at, binding=self._broker.capabilities.binding)
        except OncommitError as error:
            return "", None, PublishRejected(str(error))
        except Exception as error:  # noqa: BLE001 - said in the log, and its outcome
            say(logging.ERROR, "event %s cannot be made a message", row.id, exc_info=True)
            return "", None, PublishFailed(f"it cannot be made a message: {error!r}")
        message = Message(str(row.id), topic, row.ordering_key, wire.headers, wire.body, wire.content_type)
        return topic, message, None

    def _note(self, topic: str, outcome: Outcome) -> None:
        """Open and close the topic's circuit."""
        if isinstance(outcome, TopicUnavailable):
            circuit = self._topics.setdefault(topic, Circuit(self._backoff, self._uniform))
            if circuit.wait(time.monotonic()) <= 0:  # one failure a batch, however many rows
                circuit.failed(time.monotonic(), str(outcome))
        elif outcome is None and topic in self._topics:
            del self._topics[topic]
