"""A producer of librdkafka, and those who wait for it.

librdkafka sends and receives in threads of its own and keeps what it has to say until it is asked. It is asked in the
event loop, in turns that grow longer while nothing comes, for as long as anybody waits; so whatever it calls is called
there, and nothing crosses threads.

Failure story. A line is ``broken`` for ever: after a fatal error, since then librdkafka takes nothing more; when
somebody gives up what is in flight, since librdkafka can only drop everything; when the adapter is closed. All that
wait are told. What was on its way through the network at that moment may still arrive.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from oncommit.brokers.kafka_errors import away, is_line, refuses_login
from oncommit.brokers.kafka_settings import Settings
from oncommit.brokers.kafka_written import Written
from oncommit.errors import BrokerUnavailable, ConfigError

log: Final = logging.getLogger("oncommit.brokers.kafka")

SHORTEST: Final = 0.001
LONGEST: Final = 0.02
GROWTH: Final = 1.1
LAST_REPORTS: Final = 0.25
"""Seconds for the reports of what was dropped; what is not heard of counts as failed."""
AGAIN: Final = 10.0
"""Seconds before it asks again for topics that it does not know."""
OLD: Final = 12 * 3600.0
"""Seconds after which a producer gives way to another: brokers forget one that has not written for a day."""
QUESTION: Final = 1.0
"""Seconds for one question about the cluster; it is asked again until time is up."""


class Line:
    """One producer, until it is broken."""

    def __init__(self, settings: Settings) -> None:
        try:
            self.producer = Producer(settings | {"error_cb": self._report, "logger": log})
        except KafkaException as error:
            raise ConfigError(f"Kafka's client does not take a setting: {error.args[0].str()}") from error
        self.broken = False
        self.trouble: KafkaError | None = None
        """What was said last of the connection, until something arrives again."""
        self.alone_since: float | None = None
        """When all brokers were gone; nothing while one may be there."""
        self._waiting: set[asyncio.Event] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST
        self.asking = 0
        """Threads that ask the cluster for itself."""
        self.written = Written()
        self._born = self._asked = asyncio.get_running_loop().time()
        self._dropped = self._shut = False

    # ── Those who wait ───────────────────────────────────────────────────────────────────────────

    def join(self) -> asyncio.Event:
        """From now on this is set whenever something has come."""
        news = asyncio.Event()
        self._waiting.add(news)
        self._pause = SHORTEST
        if self._timer is None:
            self._turn()
        return news

    def leave(self, news: asyncio.Event) -> None:
        """No more. Whoever leaves a broken line last shuts it."""
        self._waiting.discard(news)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.broken:
            self.end()

    def _turn(self) -> None:
        self._timer = None
        if not self.broken:
            self._pause = SHORTEST if self.poll() else min(self._pause * GROWTH, LONGEST)
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._turn)

    @property
    def is_done(self) -> bool:
        """Whether another has to take its place."""
        return self.broken or (not self._waiting and asyncio.get_running_loop().time() > self._born + OLD)

    def poll(self) -> bool:
        """Let the producer say what it has to say; whether that was anything."""
        try:
            anything = bool(self.producer.poll(0))
        except KafkaException as error:  # a fatal one; what it means for each message comes apart
            log.warning("Kafka: %s", error.args[0].str())
            self.broken = anything = True
        if anything:
            self._tell()
        return anything

    def arrived(self) -> None:
        """A broker has answered."""
        self.trouble = self.alone_since = None

    def _tell(self) -> None:
        for news in self._waiting:
            news.set()

    def _report(self, error: KafkaError) -> None:
        if self._shut:
            return
        log.warning("Kafka: %s", error.str())
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - so it is called
            self.alone_since = self.alone_since or asyncio.get_running_loop().time()
        elif is_line(error) and not self.refused:
            self.trouble = error

    # ── Is anybody there? ────────────────────────────────────────────────────────────────────────

    @property
    def refused(self) -> bool:
        """Whether we are told that we may not enter."""
        return self.trouble is not None and refuses_login(self.trouble)

    def why(self) -> str:
        """Why there is no broker, as far as is known."""
        return "Kafka cannot be reached: no answer" if self.trouble is None else away(self.trouble)

    async def ask(self, limit: float) -> None:
        """Ask the cluster for itself. Raises ``BrokerUnavailable``."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while True:
            try:
                counts = await asyncio.to_thread(self._look, max(min(QUESTION, end - loop.time()), 0.05))
            except (KafkaException, RuntimeError) as error:
                if self.broken:
                    raise BrokerUnavailable("Kafka: closed before the answer") from error
                self.poll()
                if self.refused or loop.time() >= end:
                    raise BrokerUnavailable(self.why()) from error
            else:
                self.written.learn(counts)
                self.arrived()
                return

    async def learn(self, topics: set[str]) -> None:
        """See to it that the number of partitions of these topics is known, as far as a quick question goes."""
        now = asyncio.get_running_loop().time()
        if self.written.counts.keys() >= topics or now < self._asked + AGAIN:
            return
        self._asked = now
        with suppress(BrokerUnavailable):
            await self.ask(QUESTION)

    def _look(self, limit: float) -> dict[str, int]:
        self.asking += 1
        try:
            found = self.producer.list_topics(timeout=limit).topics
        finally:
            self.asking -= 1
        return {name: len(topic.partitions) for name, topic in found.items()}

    # ── Its end ──────────────────────────────────────────────────────────────────────────────────

    def end(self) -> None:
        """Drop everything that is in flight, for everybody. The last reports come while somebody still waits."""
        if not self._dropped:
            self.broken = self._dropped = True
            # Dropping what is in flight is itself a fatal error, raised by whichever call comes next.
            with suppress(KafkaException):
                self.producer.purge(blocking=False)
            self._tell()
        if not self._waiting and not self._shut:
            self._shut = True
            # librdkafka's threads may be looking up a name and end only after that; the event loop cannot wait for it.
            threading.Thread(target=_shut, args=(self,), name="oncommit-kafka-end", daemon=True).start()

    async def last_reports(self, is_over: Callable[[], bool]) -> None:
        """Hear what was dropped and what was not, for a moment."""
        self.end()
        loop = asyncio.get_running_loop()
        end = loop.time() + LAST_REPORTS
        while not is_over() and loop.time() < end:
            if not self.poll():
                await asyncio.sleep(SHORTEST)


def _shut(line: Line) -> None:
    if not line.asking:  # else it ends with the thread that is asking
        with suppress(KafkaException, RuntimeError):
            line.producer.close()
