"""A channel in confirm mode, as RabbitMQ's answers see it: what is under way, what was taken, refused, sent back.

It does no I/O: frames come in, and ``news`` is set. The one who leases it reads the lists and empties them. A channel
that was closed, by whomever, is never used again: numbers of messages would no longer fit.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame as Method
from pamqp.header import ContentHeader

from oncommit.brokers.amqp.frames import (
    ACK,
    BODY,
    HEADER,
    METHOD,
    NACK,
    RETURN,
    Frame,
    MalformedFrame,
    Target,
    body_size,
    read_answer,
)

_END: Final = b"\xce"


class Closure(NamedTuple):
    """Why a channel or connection ended."""

    code: int
    """RabbitMQ's reason; 0 where it said nothing."""
    text: str


class Closed(Exception):
    """It has ended."""

    def __init__(self, closure: Closure) -> None:
        self.closure = closure
        super().__init__(closure.text)


class Returned(NamedTuple):
    """A message that no queue wanted; its acknowledgement follows."""

    message_id: str | None
    target: Target
    text: str


class Channel:
    """One channel; for one user at a time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.under_way: dict[int, int] = {}
        """By their numbers on this channel: the messages without an answer, named as their sender likes."""
        self.taken: list[int] = []
        self.refused: list[int] = []
        self.returned: list[Returned] = []
        self.closure: Closure | None = None
        self.news = asyncio.Event()
        self._sent = 0
        self._settled = 0
        self._replies: asyncio.Queue[Method | Closure] = asyncio.Queue()
        self._returning: Method | None = None
        self._body_left = 0

    def sends(self, name: int) -> None:
        """The next message goes. The broker counts as we do, from 1."""
        self._sent += 1
        self.under_way[self._sent] = name

    async def reply(self) -> Method:
        """The answer to a question. Raises ``Closed``."""
        if self.closure is not None:
            raise Closed(self.closure)
        reply = await self._replies.get()
        if isinstance(reply, Closure):
            raise Closed(reply)
        return reply

    def end(self, closure: Closure) -> None:
        """It is closed: nothing more will come."""
        if self.closure is None:
            self.closure = closure
            self._replies.put_nowait(closure)
            self.news.set()

    def receive(self, frame: Frame) -> Method | None:
        """Take a frame in; what is about the channel itself is the connection's affair and comes back."""
        kind, _, payload = frame
        if kind == METHOD:
            index = payload[:4]
            if index == ACK:
                self._answer(self.taken, payload)
            elif index == NACK:
                self._answer(self.refused, payload)
            else:
                return self._other(payload)
        elif kind == HEADER:
            self._return_header(frame)
        elif kind == BODY:
            self._body_left -= len(payload)
            if self._body_left < 0:
                raise MalformedFrame("more body than was announced")
        return None

    def _answer(self, answered: list[int], payload: bytes) -> None:
        tag, multiple = read_answer(payload)
        if not multiple:
            if (name := self.under_way.pop(tag, None)) is not None:
                answered.append(name)
        else:
            last = min(tag, self._sent)
            for number in range(self._settled + 1, last + 1):
                if (name := self.under_way.pop(number, None)) is not None:
                    answered += (name,)
            self._settled = max(self._settled, last)
        self.news.set()

    def _other(self, payload: bytes) -> Method | None:
        method = read_method(payload)
        if payload[:4] == RETURN:
            self._returning = method
        elif isinstance(method, commands.Channel.Close | commands.Channel.CloseOk | commands.Channel.Flow):
            return method
        else:
            self._replies.put_nowait(method)
        return None

    def _return_header(self, frame: Frame) -> None:
        """The properties of a message sent back; its body follows, and is of no interest."""
        method, self._returning = self._returning, None
        if not isinstance(method, commands.Basic.Return):
            raise MalformedFrame("a content header of nothing")
        self._body_left = body_size(frame.payload)
        header = ContentHeader()
        try:
            header.unmarshal(frame.payload)
        except Exception as error:
            raise MalformedFrame("a content header that cannot be read") from error
        target = Target(method.exchange or "", method.routing_key or "")
        self.returned.append(Returned(header.properties.message_id, target, method.reply_text or ""))


def read_method(payload: bytes) -> Method:
    """Any method, by pamqp."""
    try:
        _, _, method = pamqp.frame.unmarshal(b"\x01\x00\x00" + len(payload).to_bytes(4, "big") + payload + _END)
    except Exception as error:
        raise MalformedFrame("a method that cannot be read") from error
    if not isinstance(method, Method):
        raise MalformedFrame("no method")
    return method
