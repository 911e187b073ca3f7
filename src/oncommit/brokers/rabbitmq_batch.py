"""One batch on its way to RabbitMQ: who goes when, and what the answers mean.

Order. A message goes when the one before it of its key was confirmed. Sending them together would not do: the first may
come back for want of a queue, or be refused by a full one, and the second find a place a moment later.

Failure story. RabbitMQ answers a publish that it cannot allow (no such exchange, no right, too large) by closing the
channel, and with it all that was under way there: what lay before the culprit may have been taken, what lay behind was
thrown away, and nobody says which was which. So whatever may be a culprit goes alone, on a second channel: the first of
an exchange since the connection was made, what is larger than anything before, what belongs to a topic that was refused
lately, and all that was under way when the first channel was closed. Who is alone when that one closes is the culprit.
The others go again, so a bystander can arrive twice (three times, where an exchange comes and goes), never out of turn:
nothing of its key was sent behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from oncommit.brokers.amqp.channel import Channel, Closed, Closure, Returned
from oncommit.brokers.amqp.connection import Connection
from oncommit.brokers.amqp.frames import Target, publish_frames, target_of
from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.rabbitmq_errors import NOT_FOUND, REFUSED, came_back, closed_for, refused
from oncommit.errors import BrokerError, BrokerUnavailable, NotAttempted, PublishFailed, PublishRejected

SLICE: Final = 64 * 1024
"""Bytes that are written before the answers are looked at again."""
MOST_SUSPECTS: Final = 1000
SURELY_FITS: Final = 64 * 1024
"""Bytes of a body that hardly any RabbitMQ is told to refuse."""

_HELD: Final = NotAttempted("an earlier event of its key was not confirmed")
_UNSENT: Final = NotAttempted("there was no time left to send it")
_UNANSWERED: Final = PublishFailed("RabbitMQ gave no answer in time")


class Known(msgspec.Struct):
    """What is known of exchanges and topics since the connection was made."""

    exchanges: set[str] = msgspec.field(default_factory=set)
    """Those that took something."""
    refused: set[Target] = msgspec.field(default_factory=set)
    """Topics that were refused lately, on exchanges that take others."""
    fits: int = SURELY_FITS
    """Bytes of the largest body that was taken."""


class Sending:
    """A batch under way; for one run."""

    def __init__(self, batch: Sequence[Message]) -> None:
        self.outcomes: list[Outcome] = [_HELD] * len(batch)
        self._batch = batch
        self._targets = [target_of(message) for message in batch]
        self._ready: list[int] = []
        self._careful: deque[int] = deque()
        self._alone: set[int] = set()
        self._closures = 0
        self._known = Known()
        self._unavailable: dict[str | Target, BrokerError] = {}
        """Exchanges and topics that this batch found closed."""
        self._returned: dict[int, str] = {}
        self._by_id: dict[str, list[int]] = {}
        self._news = asyncio.Event()
        self._many: Channel | None = None
        self._single: Channel | None = None
        self._next = [-1] * len(batch)
        self._heads: list[int] = []
        last: dict[str, int] = {}
        for index, message in enumerate(batch):
            before = -1 if message.key is None else last.get(message.key, -1)
            if before < 0:
                self._heads.append(index)
            else:
                self._next[before] = index
            if message.key is not None:
                last[message.key] = index

    async def run(self, connection: Connection, known: Known) -> None:
        """Send all of it, and wait for the answers. Raises ``Closed`` where the connection ends."""
        self._known = known
        heads, self._heads = self._heads, []
        for index in heads:
            self._admit(index)
        try:
            while True:
                await self._send_careful(connection)
                await self._send_ready(connection)
                if not self._waits() and not self._news.is_set():
                    return
                await self._news.wait()
                self._take_in(connection)
                if connection.closure is not None:
                    raise Closed(connection.closure)
        finally:
            self._take_in(connection)
            for channel in (self._many, self._single):
                if channel is not None:
                    connection.give_back(channel)

    def give_up(self, reason: BrokerError) -> None:
        """No further answers will come: ``reason`` is what to say of those who wait for one."""
        unsent = reason if isinstance(reason, BrokerUnavailable) else _UNSENT
        for index in [*self._heads, *self._ready, *self._careful]:
            if self.outcomes[index] is _HELD:  # one that goes again was sent before
                self.outcomes[index] = unsent
        self.outcomes = [reason if outcome is _UNANSWERED else outcome for outcome in self.outcomes]

    # ── Who goes ─────────────────────────────────────────────────────────────────────────────────

    def _admit(self, index: int) -> None:
        """Its turn has come."""
        target = self._targets[index]
        problem = self._unavailable.get(target.exchange) or self._unavailable.get(target)
        if problem is not None:
            self.outcomes[index] = problem
        elif self._may_be_culprit(index):
            self._careful.append(index)
        else:
            self._ready.append(index)

    def _may_be_culprit(self, index: int) -> bool:
        target = self._targets[index]
        known = self._known
        return (
            target.exchange not in known.exchanges
            or len(self._batch[index].body) > known.fits
            or index in self._alone
            or target in known.refused
        )

    def _waits(self) -> bool:
        """Whether an answer is due."""
        return any(channel is not None and channel.under_way for channel in (self._many, self._single))

    async def _send_ready(self, connection: Connection) -> None:
        """Send what may go together, a slice at a time, while the answers come in."""
        if not self._ready:
            return
        if self._many is None:
            self._many = await self._lease(connection)
        channel = self._many
        while self._ready and channel.closure is None:
            slice_: list[bytes] = []
            size = sent = 0
            for index in self._ready:
                sent += 1
                if frames := self._frames(connection, channel, index):
                    slice_.append(frames)
                    size += len(frames)
                    if size >= SLICE:
                        break
            del self._ready[:sent]
            connection.write(b"".join(slice_))
            if self._ready:
                await connection.writable()
                await asyncio.sleep(0)
                self._take_in(connection)  # those behind what was taken go with the next slice

    async def _send_careful(self, connection: Connection) -> None:
        """Send the next that has to go alone, once the one before it has its answer."""
        while self._careful and (self._single is None or not self._single.under_way):
            index = self._careful.popleft()
            target = self._targets[index]
            if not self._may_be_culprit(index) or target.exchange in self._unavailable or target in self._unavailable:
                self._admit(index)
                continue
            if self._single is None:
                self._careful.appendleft(index)
                self._single = await self._lease(connection)
                self._careful.popleft()
            if self._single.closure is not None:  # just now: first it is taken in
                self._careful.appendleft(index)
                return
            if frames := self._frames(connection, self._single, index):
                connection.write(frames)

    async def _lease(self, connection: Connection) -> Channel:
        channel = await connection.lease()
        channel.news = self._news
        return channel

    def _frames(self, connection: Connection, channel: Channel, index: int) -> bytes:
        """Its frames, to be written at once; nothing where AMQP cannot carry it."""
        try:
            frames = publish_frames(
                channel.number, self._targets[index], self._batch[index], connection.limits.frame_max
            )
        except PublishRejected as error:
            self.outcomes[index] = error
            return b""
        channel.sends(index)
        # Under way from here on: without an answer it has failed, although it may have arrived.
        self.outcomes[index] = _UNANSWERED
        return frames

    # ── What the answers mean ────────────────────────────────────────────────────────────────────

    def _take_in(self, connection: Connection) -> None:
        self._news.clear()
        for channel in (self._many, self._single):
            if channel is None:
                continue
            for returned in channel.returned:  # first, since their acknowledgements follow
                self._came_back(connection, returned)
            for index in channel.taken:
                self._was_taken(index, alone=channel is self._single)
            for index in channel.refused:
                self.outcomes[index] = refused(self._batch[index])
            channel.returned.clear()
            channel.taken.clear()
            channel.refused.clear()
            if channel.closure is not None and connection.closure is None:
                self._was_closed(channel, channel.closure)

    def _came_back(self, connection: Connection, returned: Returned) -> None:
        """No queue wanted it. Its acknowledgement, which comes next, does not say so."""
        if not self._by_id:
            for index, message in enumerate(self._batch):
                self._by_id.setdefault(message.message_id, []).append(index)
        mine = [
            index
            for index in self._by_id.get(returned.message_id or "", ())
            if self.outcomes[index] is _UNANSWERED and self._targets[index] == returned.target
        ]
        if not mine:
            connection.abort("a message came back that was not sent")
        for index in mine:
            self._returned[index] = returned.text

    def _was_taken(self, index: int, *, alone: bool) -> None:
        target = self._targets[index]
        if alone:  # so its exchange is there, and its topic allowed
            self._known.exchanges.add(target.exchange)
            self._known.refused.discard(target)
            self._known.fits = max(self._known.fits, len(self._batch[index].body))
        if index in self._returned:
            self.outcomes[index] = came_back(self._batch[index], self._returned.pop(index))
            return
        self.outcomes[index] = None
        if (follower := self._next[index]) >= 0:
            self._admit(follower)

    def _was_closed(self, channel: Channel, closure: Closure) -> None:
        under_way = list(channel.under_way.values())
        channel.under_way.clear()
        for index in under_way:
            self._returned.pop(index, None)  # it goes again, or is blamed for something else
        if channel is self._single:
            self._single = None
            for index in under_way:
                self._blame(index, closure)
            return
        self._many = None
        again, self._ready = [*under_way, *self._ready], []
        self._closures += 1
        if closure.code == NOT_FOUND:
            self._known.exchanges.clear()
        if closure.code != NOT_FOUND or self._closures > 1:  # an exchange may come and go all the time
            self._alone.update(under_way)
        for index in again:
            self._admit(index)

    def _blame(self, index: int, closure: Closure) -> None:
        """It was alone on the channel that was closed. What else goes there needs not be tried any more."""
        target = self._targets[index]
        error = self.outcomes[index] = closed_for(self._batch[index], closure)
        if closure.code == NOT_FOUND:
            self._unavailable[target.exchange] = error
        elif closure.code == REFUSED:
            self._unavailable[target] = error
            if len(self._known.refused) < MOST_SUSPECTS:
                self._known.refused.add(target)
