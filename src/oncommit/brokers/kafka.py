"""Kafka: an idempotent producer without gaps, and everything of a batch in flight together.

What the promise of order rests on: messages of a key go to one partition, and of a partition the broker takes nothing
behind something that it has not taken (``enable.gapless.guarantee``; kafka_written.py has the exception). Where a key
changes its topic, what follows waits for the acknowledgement. Nothing times out on its own, which would leave gaps; the
adapter gives up everything at once.

Failure story.

- A broker is gone or silent: librdkafka tries again until our time limit, each message is written once all the same.
  Then everything in flight is dropped, and the producer with it. What had been sent may still arrive: always the next
  messages of a key in their order, so a first delivery of what is tried again anyway, or a duplicate.
- Some are acknowledged and then nothing comes for a while: a partition without a leader, or with too few replicas. The
  others of the sink shall not wait for it for the whole time limit, so it is given up as well.
- A broker refuses a message, or only a batch with many good ones in it: the producer is at its end (that is what "no
  gaps" means). Those without acknowledgement are tried again in the same call, each on its own and each behind the one
  before it of its key, so that one that is refused then is refused alone.
- All who publish at once share a producer, and so its end: each tries again what is left of his own, within his own
  time limit. What was in flight for him may then arrive twice.
- The number of a topic's partitions grows while messages are in flight: keys move, and then nobody keeps their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from oncommit.brokers.base import Capabilities, Message, Outcome
from oncommit.brokers.kafka_errors import cause_of, ends_all, error_of, size_of
from oncommit.brokers.kafka_flight import Flight
from oncommit.brokers.kafka_line import Line
from oncommit.brokers.kafka_settings import careful, settings_of
from oncommit.cloudevents import KAFKA
from oncommit.errors import BrokerError, BrokerUnavailable, PublishRejected, TopicUnavailable

CONNECT_TIMEOUT: Final = 5.0
PATIENCE: Final = 3.0
"""Seconds without any broker, after which what is in flight is given up."""
STALL: Final = 15.0
"""Seconds without any news, after some of a batch were acknowledged: one partition must not hold up all others."""
LAST_QUESTION: Final = 2.0
"""Seconds to find out why there was no answer."""
HEADERS_AT_MOST: Final = 128 * 1024
STRETCH: Final = 500
"""Messages handed over before others in the event loop get their turn."""

NOT_OPEN: Final = BrokerUnavailable("Kafka: not open")
_BROKEN: Final = BrokerUnavailable("Kafka: the producer has ended")
_LATE: Final = BrokerUnavailable("Kafka gave no answer in time")


class KafkaBroker:
    """Publishes to the topics of one Kafka cluster. The topics are yours: it makes none."""

    def __init__(self, url: str, *, settings: Mapping[str, Any] | None = None) -> None:
        self._settings = settings_of(url, settings)
        self._largest: int = self._settings["message.max.bytes"]
        self._line: Line | None = None
        self._opening = asyncio.Lock()
        self.capabilities = Capabilities(
            name="kafka",
            binding=KAFKA,
            acknowledged_means="written by all in-sync replicas of the partition, to their page cache",
            ordered_pipelining=True,
            deduplicates=False,
            max_message=self._largest,
        )

    def __repr__(self) -> str:
        return f"KafkaBroker({self._settings['bootstrap.servers']!r})"

    async def open(self) -> None:
        """Connect; nothing to do where it is connected."""
        async with self._opening:
            if self._line is not None:
                return
            line = Line(self._settings)
            try:
                await line.ask(CONNECT_TIMEOUT)
            except BaseException:
                line.end()
                raise
            self._line = line

    async def close(self) -> None:
        """Give up what is in flight, and disconnect."""
        line, self._line = self._line, None
        if line is not None:
            line.end()

    async def ping(self) -> None:
        """Ask the cluster for itself."""
        await self.open()
        await self._sound().ask(CONNECT_TIMEOUT)

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        """Publish everything at once; what is left by a refusal once more, one by one."""
        if self._line is None:
            return [NOT_OPEN] * len(batch)
        end = asyncio.get_running_loop().time() + timeout
        line = self._sound()
        topics = {message.topic for message in batch}
        await line.learn(topics)
        flight = Flight(batch, range(len(batch)), topics, line.written)
        reason = await self._fly(flight, line, end)
        if flight.is_good:
            return flight.outcomes
        outcomes, doubtful = flight.sort_out(cause_of)
        if doubtful and reason in (None, _BROKEN):
            flight, reason = await self._one_by_one(batch, doubtful, end)
            certain, left = flight.sort_out(error_of)
            for index in doubtful:
                outcomes[index] = certain[index]
            doubtful = left
        for index in doubtful:
            outcomes[index] = _late(batch[index]) if reason is _LATE else reason
        return outcomes

    async def _one_by_one(
        self, batch: Sequence[Message], indexes: Sequence[int], end: float
    ) -> tuple[Flight, BrokerError | None]:
        """Try these by a producer of their own, where each message stands for itself."""
        flight = Flight(batch, indexes, {batch[index].topic for index in indexes}, None)
        if self._line is None:
            return flight, NOT_OPEN
        line = Line(careful(self._settings))
        try:
            return flight, await self._fly(flight, line, end)
        finally:
            line.end()

    async def _fly(self, flight: Flight, line: Line, end: float) -> BrokerError | None:
        """Until all of it is answered, or why it was given up. Nothing of it is in flight afterwards."""
        news = line.join()
        try:
            reason = await self._follow(flight, line, news, end)
            if not flight.is_over:
                await line.last_reports(lambda: not flight.open)
        finally:
            if not flight.is_over:
                line.end()
            line.leave(news)
        return await self._silent() if reason is _LATE else reason

    async def _follow(self, flight: Flight, line: Line, news: asyncio.Event, end: float) -> BrokerError | None:
        """Hand over what may go and wait for news of it, until there is no more to wait for."""
        stalled = end
        while True:
            if not line.broken:
                await self._hand_over(flight, line)
            if flight.is_over:
                return None
            if line.broken:
                return _BROKEN if self._line is not None else NOT_OPEN
            open_before = flight.open
            news.clear()
            if (reason := await self._wait(news, line, stalled)) is not None:
                return reason
            if flight.open < open_before:
                line.arrived()
                stalled = min(end, asyncio.get_running_loop().time() + STALL)

    async def _hand_over(self, flight: Flight, line: Line) -> None:
        """Give the producer what may go, as far as it has room."""
        while flight.ready and not line.broken and self._hand_some(flight, line):
            line.poll()
            await asyncio.sleep(0)

    def _hand_some(self, flight: Flight, line: Line) -> bool:
        """A stretch of it; false where the producer has no room."""
        produce: Any = line.producer.produce  # typed for what headers can be at most
        batch, ready, stopped, landed = flight.batch, flight.ready, flight.stopped, flight.landed
        small = self._largest - HEADERS_AT_MOST
        for _ in range(min(STRETCH, len(ready))):
            index = ready.popleft()
            message = batch[index]
            if stopped and message.key in stopped:
                continue
            # No payload is a tombstone, which is not the same as an empty one.
            body = None if message.content_type is None else message.body
            try:
                if body and len(body) > small:
                    self._weigh(message)
                produce(message.topic, body, message.key, headers=message.headers, on_delivery=partial(landed, index))
            except BufferError:
                ready.appendleft(index)
                return False
            except (BrokerError, KafkaException, TypeError, ValueError) as error:
                flight.refused(index, _refusal(error, message))
            else:
                flight.open += 1
        return True

    def _weigh(self, message: Message) -> None:
        """Headers count as well. The broker would refuse it, and with it all that is in flight."""
        if (size := size_of(message)) > self._largest:
            raise PublishRejected(f"{size} bytes with its headers are more than the limit of {self._largest}")

    async def _wait(self, news: asyncio.Event, line: Line, end: float) -> BrokerError | None:
        """Until something has come; or why nothing will."""
        now = asyncio.get_running_loop().time()
        if line.refused:
            return BrokerUnavailable(line.why())
        limit = end
        if line.alone_since is not None:
            limit = min(end, line.alone_since + PATIENCE)
        try:
            async with asyncio.timeout_at(max(limit, now)):
                await news.wait()
        except TimeoutError:
            return _LATE if limit == end else await self._alone(line)
        return None

    async def _alone(self, line: Line) -> BrokerError | None:
        """All brokers were gone for a while; perhaps one is back, and has not yet had time to answer."""
        try:
            await line.ask(LAST_QUESTION)
        except BrokerUnavailable as error:
            return error
        return None

    async def _silent(self) -> BrokerError:
        """Time is up. It is the cluster, or it answers others and not these."""
        try:
            await self._sound().ask(LAST_QUESTION)
        except BrokerUnavailable as error:
            return error
        return _LATE

    def _sound(self) -> Line:
        """The line; a new one where it is broken."""
        if self._line is None:
            raise BrokerUnavailable("Kafka: not open")
        if self._line.is_done:
            self._line.end()
            self._line = Line(self._settings)
        return self._line


def _refusal(error: Exception, message: Message) -> Any:
    """What the client says before it takes a message."""
    if isinstance(error, KafkaException):
        return error.args[0] if ends_all(error.args[0]) else error_of(error.args[0], message)
    return error if isinstance(error, BrokerError) else PublishRejected(f"Kafka cannot carry it: {error}")


def _late(message: Message) -> BrokerError:
    """No message is to blame for this: Kafka refuses what it does not like, and says so."""
    return TopicUnavailable(
        f"the topic {message.topic!r} gave no answer in time: does each partition have a leader and enough replicas?"
    )
