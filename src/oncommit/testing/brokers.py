"""Brokers in memory, for tests: one that records what it took, and can be told to fail.

They keep the contract of every adapter: one outcome a message, in order; of a key nothing is taken after one that was
not. Failure story: they do what the test tells them, a hang included (``hold``); cancelled, they have taken nothing of
what was held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from oncommit.brokers.base import Capabilities, Message, Outcome
from oncommit.cloudevents import NATS
from oncommit.errors import BrokerUnavailable, NotAttempted, PublishFailed

Judge = Callable[[Message], Outcome]
_CAPABILITIES: Final = Capabilities(
    name="recording",
    binding=NATS,
    acknowledged_means="noted down in memory",
    ordered_pipelining=False,
    deduplicates=False,
)


class RecordingBroker:
    """Takes everything, and remembers it in ``messages``, in the order in which it was taken."""

    def __init__(self) -> None:
        self.capabilities = _CAPABILITIES
        self.messages: list[Message] = []
        self.batches: list[int] = []
        """How many messages each publish was asked for."""
        self.publishing = asyncio.Event()
        """Set when a publish begins."""
        self._open = asyncio.Event()
        self._open.set()
        self._arrived = asyncio.Condition()

    @property
    def ids(self) -> list[str]:
        """The ids of the messages taken."""
        return [message.message_id for message in self.messages]

    def hold(self) -> None:
        """Take nothing until ``release``: publishes hang."""
        self._open.clear()

    def release(self) -> None:
        """Go on."""
        self._open.set()

    async def wait_for(self, count: int, *, timeout: float = 15.0) -> list[Message]:
        """Until it has taken so many messages."""
        async with asyncio.timeout(timeout), self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= count)
        return list(self.messages)

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def ping(self) -> None:
        """It is always there."""

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        """Take the batch."""
        self.batches.append(len(batch))
        self.publishing.set()
        try:
            async with asyncio.timeout(timeout):
                await self._open.wait()
        except TimeoutError:
            return [PublishFailed("held for longer than the time limit")] * len(batch)
        outcomes: list[Outcome] = []
        stopped: set[str] = set()
        for message in batch:
            if message.key is not None and message.key in stopped:
                outcomes.append(NotAttempted("an earlier event of its key was not taken"))
                continue
            outcome = self._judge(message)
            outcomes.append(outcome)
            if outcome is None:
                self.messages.append(message)
            elif message.key is not None:
                stopped.add(message.key)
        async with self._arrived:
            self._arrived.notify_all()
        return outcomes

    def _judge(self, message: Message) -> Outcome:  # noqa: ARG002 - for those that look
        return None


class FailingBroker(RecordingBroker):
    """Asks ``judge`` about each message, who answers with an outcome. Can be ``down`` altogether."""

    def __init__(self, judge: Judge | None = None) -> None:
        super().__init__()
        self.judge = judge
        self.down = False
        self.refused: list[str] = []
        """The ids of the messages that were not taken, once for each time."""
        self.asked = asyncio.Event()
        """Set whenever it was asked while down."""

    async def open(self) -> None:
        """Raises while it is down."""
        await self.ping()

    async def ping(self) -> None:
        """Raises while it is down."""
        if self.down:
            self.asked.set()
            raise BrokerUnavailable("the broker is down: the test says so")

    def _judge(self, message: Message) -> Outcome:
        outcome: Outcome = BrokerUnavailable("the broker is down: the test says so") if self.down else None
        if outcome is None and self.judge is not None:
            outcome = self.judge(message)
        if self.down:
            self.asked.set()
        if outcome is not None:
            self.refused.append(message.message_id)
        return outcome
