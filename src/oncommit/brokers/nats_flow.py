"""Flows: JetStream's fast batches (server 2.14 and later), where the stream allows them (``allow_batched``).

Messages of a flow are numbered, stored one by one as they come, and acknowledged now and then: "all up to this one".
At the first that is missing or refused the stream ends the flow and says how many it has stored; so a later message is
never accepted without those before it, and a key's messages can fly together. One by one, each answered for itself,
costs five times the work.

Failure story. A flow that ends early (a message too large, a new leader, a stream that allows no flows any more) has
stored the first so many, and nothing behind them; the others go one by one, and each gets an answer of its own. A flow
without an end may have stored more than it said; what was not acknowledged counts as failed, is sent again, and the
stream drops what it knows by its id. A flow that is given up is ended by the server after ten seconds of silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgspec

from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.nats_window import HELD_BACK, UNANSWERED, Window, encode
from oncommit.errors import PublishRejected

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log: Final = logging.getLogger("oncommit.brokers.nats")

EVERY: Final = 500
"""An acknowledgement is asked for so often; the server may give more."""
OUTSTANDING: Final = 2
"""So many acknowledgements may be awaited before the next message goes."""
NOT_ALLOWED: Final = 10205
"""JetStream's code for a stream that allows no flows."""
_ENDED: Final = 10208
"""Its code for a message of a flow that it does not know: one that has ended."""
_BEGIN, _NEXT, _END = 0, 1, 3
_FLUSH_EVERY: Final = 128


class _Refusal(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    type: str = ""
    """Empty where a publish is answered: the flow as a whole, or an error."""
    seq: int = 0
    msgs: int = 0
    batch: str = ""
    count: int = 0
    error: _Refusal | None = None


class Flow:
    """One flow: what was sent, and what the stream said."""

    def __init__(self, window: Window, batch: Sequence[Message], places: Sequence[int], over: asyncio.Event) -> None:
        self.name = uuid4().hex
        self.sent: list[int] = []
        """Places in the batch; the first has the number 1."""
        self.refusal: _Refusal | None = None
        """Why it ended early."""
        self._window = window
        self._batch = batch
        self._places = places
        self._over = over
        self._heard = asyncio.Event()
        self._stored = 0
        self._every = 0
        """How often the server acknowledges; 0 until it has answered the first."""
        self._stopped = False
        """Nothing more is accepted."""
        self._ended = False
        """It is known how many were stored."""

    async def fly(self, outcomes: list[Outcome]) -> list[int]:
        """Send; what has to go one by one comes back. What was acknowledged is noted in any case."""
        stopped: set[str] = set()
        self._window.listen(self.name, self.hear)
        try:
            await self._send_all(outcomes, stopped)
            if self.sent:
                await self._end()
        finally:
            self._window.unlisten(self.name)
            for index in self.sent[: self._stored]:
                outcomes[index] = None
        if not self._ended:
            return []
        if self.refusal is not None:
            log.debug("a flow ended after %d messages: %s", self._stored, self.refusal.description)
        left = set(self.sent[self._stored :])
        for index in left:
            outcomes[index] = HELD_BACK
        return [
            index
            for index in self._places
            if outcomes[index] is HELD_BACK and (index in left or self._batch[index].key not in stopped)
        ]

    def hear(self, answer: Msg) -> None:
        """The stream has said something."""
        try:
            said = msgspec.json.decode(answer.data, type=_Answer)
        except msgspec.DecodeError:
            said = _Answer(error=_Refusal(0, "no stream takes its subject"))
        if said.type == "ack":
            self._stored = max(self._stored, min(said.seq, len(self.sent)))
            self._every = max(said.msgs, 1)
        elif said.batch == self.name and said.error is None:
            self._stored = max(self._stored, min(said.count, len(self.sent)))
            self._stopped = self._ended = True
        else:  # one is missing or refused; how many were stored is said when the flow ends, unless it never began
            self.refusal = self.refusal or said.error
            self._stopped = True
            self._ended |= not self._every or (said.error is not None and said.error.err_code == _ENDED)
        self._heard.set()

    async def _send_all(self, outcomes: list[Outcome], stopped: set[str]) -> None:
        for index in self._places:
            message = self._batch[index]
            if message.key is not None and message.key in stopped:
                continue
            number = len(self.sent) + 1
            reply = self._window.flow_reply(self.name, EVERY, number, _NEXT if self.sent else _BEGIN)
            try:
                command = encode(message, reply, self._window.max_payload)
            except PublishRejected as error:
                outcomes[index] = error
                if message.key is not None:
                    stopped.add(message.key)
                continue
            # In flight from here on: without an answer it has failed, although it may have arrived.
            outcomes[index] = UNANSWERED
            self.sent.append(index)
            await self._window.send(command)
            if number % _FLUSH_EVERY == 0:
                await self._window.flush()
                await asyncio.sleep(0)
            if self._must_wait:
                await self._window.flush()
                await self._listen_while(lambda: self._must_wait)
            if self._stopped or self._over.is_set():
                return

    @property
    def _must_wait(self) -> bool:
        return not self._stopped and len(self.sent) >= self._stored + max(self._every * OUTSTANDING, 1)

    async def _end(self) -> None:
        """End it without a message more. If one is missing, the server notices at the latest now."""
        if not self._ended:
            topic = self._batch[self.sent[0]].topic
            reply = self._window.flow_reply(self.name, EVERY, len(self.sent) + 1, _END)
            await self._window.send(f"PUB {topic} {reply} 0\r\n\r\n".encode())
            await self._window.flush()
            await self._listen_while(lambda: not self._ended)

    async def _listen_while(self, waits: Callable[[], bool]) -> None:
        while waits() and not self._over.is_set():
            self._heard.clear()
            await self._heard.wait()
