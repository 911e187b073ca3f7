"""Atomic batches of JetStream (server 2.12 and later), where the stream allows them; which do is learnt by asking.

Failure story. A batch that is refused, for whatever reason (a message too large, an id that the stream knows already, a
stream that allows no batches any more), was not stored at all: its messages go one by one, and each gets an answer of
its own. A batch without an answer may have been stored; all of it counts as failed, is sent again, and is then refused
for the ids that are known, goes one by one, and the stream drops what it has. The next batch of a group is sent only
after the one before, without the keys that failed there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec
from nats.errors import Error as NatsError

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats_plan import chunks
from oncommit.brokers.nats_window import HELD_BACK, UNANSWERED, Window, encode, problem_of
from oncommit.errors import PublishRejected

if TYPE_CHECKING:
    from nats.js.client import JetStreamContext

log: Final = logging.getLogger("oncommit.brokers.nats")

ASK_AGAIN: Final = 60.0
ASK_AGAIN_AFTER_ERROR: Final = 600.0
_ASK_TIMEOUT: Final = 2.0
_MOST_TOPICS: Final = 10_000
_NOT_ALLOWED: Final = 10174  # JetStream's code for a stream that takes no atomic batches

Singly = Callable[[list[int]], Awaitable[None]]


class Streams:
    """Which stream takes the messages of a topic, where it takes them in atomic batches."""

    def __init__(self, jetstream: JetStreamContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._jetstream = jetstream
        self._clock = clock
        self._known: dict[str, tuple[str | None, float]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def stream_of(self, topic: str) -> str | None:
        """The stream, if it is known; asks for it beside, now and every minute."""
        stream, until = self._known.get(topic, (None, 0.0))
        if self._clock() >= until and topic not in self._asking and len(self._known) < _MOST_TOPICS:
            self._asking[topic] = asyncio.create_task(self._ask(topic))
        return stream

    def forget(self, topics: set[str]) -> None:
        """Their stream has refused a batch; they go one by one until it is asked again."""
        until = self._clock() + ASK_AGAIN
        self._known.update(dict.fromkeys(topics, (None, until)))

    async def close(self) -> None:
        """Ask no more."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, topic: str) -> None:
        stream, wait = None, ASK_AGAIN
        try:
            async with asyncio.timeout(_ASK_TIMEOUT):
                name = await self._jetstream.find_stream_name_by_subject(topic)
                info = await self._jetstream.stream_info(name)
            if getattr(info.config, "allow_atomic", None) is True:  # the client before 2.12 knows of no such thing
                stream = name
        except (NatsError, OSError, TimeoutError, ValueError) as error:
            log.debug("whether the stream of %s takes atomic batches is not known: %s", topic, error)
            wait = ASK_AGAIN_AFTER_ERROR
        self._known[topic] = (stream, self._clock() + wait)
        self._asking.pop(topic, None)


class _Stored(msgspec.Struct):
    batch: str = ""
    count: int = 0


class Group(msgspec.Struct):
    """Messages that go as atomic batches, one after the other."""

    window: Window
    streams: Streams
    batch: Sequence[Message]
    places: Sequence[int]
    outcomes: list[Outcome]
    over: asyncio.Event
    """All is given up."""
    singly: Singly
    """Sends messages one by one, and sees to their outcomes."""
    stopped: set[str] = msgspec.field(default_factory=set)
    """Keys of which a message has failed."""

    async def fly(self) -> None:
        """Send all of it."""
        for chunk in chunks(self.batch, self.places):
            if self.over.is_set():
                return
            name = uuid4().hex
            going, commands = self._encode(name, chunk)
            if len(going) > 1 and self.window.is_connected and await self._store(name, going, commands):
                continue
            if going and not self.over.is_set():
                await self.singly(going)
            self.stopped |= {
                key
                for index in going
                if self.outcomes[index] is not None and (key := self.batch[index].key) is not None
            }

    def _encode(self, name: str, chunk: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Those that can go, as the server reads them; the others stop their keys."""
        going: list[int] = []
        commands: list[bytes] = []
        for index in chunk:
            message = self.batch[index]
            if message.key is not None and message.key in self.stopped:
                continue
            lines = [f"Nats-Batch-Id: {name}\r\n", f"Nats-Batch-Sequence: {len(going) + 1}\r\n"]
            try:
                commands.append(encode(message, "", self.window.max_payload, lines))
                going.append(index)
            except PublishRejected as error:
                self.outcomes[index] = error
                if message.key is not None:
                    self.stopped.add(message.key)
        return going, commands

    async def _store(self, name: str, going: Sequence[int], commands: list[bytes]) -> bool:
        """Send one batch; whether it was stored. If not, nothing of it was."""
        lines = [
            f"Nats-Batch-Id: {name}\r\n",
            f"Nats-Batch-Sequence: {len(going)}\r\n",
            "Nats-Batch-Commit: 1\r\n",
        ]
        reply = self.window.new_reply()
        try:
            commands[-1] = encode(self.batch[going[-1]], reply, self.window.max_payload, lines)
        except PublishRejected:  # too large only with this line more
            return False
        for index in going:  # in flight from here on: without an answer they have failed
            self.outcomes[index] = UNANSWERED
        answer = await self.window.ask(reply, commands)
        problem = problem_of(answer)
        if problem is None:
            stored = msgspec.json.decode(answer.data, type=_Stored)
            if (stored.batch, stored.count) == (name, len(going)):
                for index in going:
                    self.outcomes[index] = None
                return True
            log.warning("a stream has taken an atomic batch for single messages; they are sent again one by one")
        if problem is None or getattr(problem, "err_code", None) == _NOT_ALLOWED:
            self.streams.forget({self.batch[index].topic for index in going})
        log.debug("an atomic batch of %d messages goes one by one: %s", len(going), problem)
        for index in going:
            self.outcomes[index] = HELD_BACK
        return False
