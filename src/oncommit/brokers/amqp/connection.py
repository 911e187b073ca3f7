"""A connection to RabbitMQ that publishes: handshake, channels, heartbeats, flow control, goodbye.

Failure story. The connection ends once, in ``_end``: by the broker's word, by EOF, by silence longer than two
heartbeats, by something that is no AMQP, or by us. Every channel and whoever waits hears of it at once; nothing
connects anew here, that is the adapter's decision. While the broker is out of memory or disk it reads nothing from us
and says so (``blocked``); what was written meanwhile lies in buffers, and it may yet take it.

A channel is leased by one publish at a time and given back only when nothing is under way on it; otherwise it is
dropped. Frames for a dropped one are read and forgotten until the broker has said that it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar, cast

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame as Method
from pamqp.header import ProtocolHeader

from oncommit.brokers.amqp.address import Address
from oncommit.brokers.amqp.channel import Channel, Closed, Closure, read_method
from oncommit.brokers.amqp.frames import HEARTBEAT_FRAME, METHOD, Frame, MalformedFrame, take_frames
from oncommit.brokers.amqp.handshake import HEARTBEAT, Limits, agree, introduction

M = TypeVar("M", bound=Method)
log: Final = logging.getLogger("oncommit.brokers.rabbitmq")

GOODBYE_TIMEOUT: Final = 2.0


class Connection(asyncio.Protocol):
    """One connection. Made by ``connect``."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.closure: Closure | None = None
        self.blocked: str | None = None
        """Why the broker takes nothing now, where it said so."""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._channels: dict[int, Channel] = {}
        self._idle: list[Channel] = []
        self._control: asyncio.Queue[Method | Closure] = asyncio.Queue()
        self._writable = asyncio.Event()
        self._gone = asyncio.Event()
        self._heard = self._wrote = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # ── Life ─────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    async def connect(cls, address: Address) -> Connection:
        """Connect and log in. Raises ``Closed`` or ``OSError``; the caller sets the time limit."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, address.host, address.port, ssl=address.ssl_context())
        try:
            await connection.shake_hands(address)
        except BaseException:
            connection.abort("given up before it was ready")
            raise
        return connection

    async def shake_hands(self, address: Address) -> None:
        """Log in, and agree on limits. Raises ``Closed``."""
        self.write(ProtocolHeader().marshal())
        start = await self._expect(commands.Connection.Start)
        self._tell(introduction(start, address))
        self.limits = agree(await self._expect(commands.Connection.Tune), HEARTBEAT)
        limits = self.limits
        self._tell(commands.Connection.TuneOk(limits.channel_max, limits.frame_max, limits.heartbeat))
        self._tell(commands.Connection.Open(address.vhost))
        await self._expect(commands.Connection.OpenOk)
        self._beat()

    async def close(self) -> None:
        """Say goodbye and disconnect."""
        if self.closure is None:
            try:
                async with asyncio.timeout(GOODBYE_TIMEOUT):
                    self._tell(commands.Connection.Close(200, "closed", 0, 0))
                    await self._expect(commands.Connection.CloseOk)
            except (Closed, TimeoutError) as error:
                log.debug("RabbitMQ said no goodbye: %s", error)
        self.abort("closed")
        await self._gone.wait()

    def abort(self, why: str) -> None:
        """End it, without a word. Harmless when it has ended."""
        self._end(Closure(0, why))

    def _end(self, closure: Closure) -> None:
        if self.closure is None:
            self.closure = closure
            for channel in self._channels.values():
                channel.end(closure)
            self._control.put_nowait(closure)
            self._writable.set()
            if self._timer is not None:
                self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _beat(self) -> None:
        """Show that we live, and look whether the broker does."""
        loop = asyncio.get_running_loop()
        now, interval = loop.time(), self.limits.heartbeat
        if now - self._heard > 2 * interval:
            self.abort(f"nothing was heard for {2 * interval} s")
            return
        if now - self._wrote >= interval / 2:
            self.write(HEARTBEAT_FRAME)
        self._timer = loop.call_later(interval / 2, self._beat)

    # ── Channels ─────────────────────────────────────────────────────────────────────────────────

    async def lease(self) -> Channel:
        """A channel with nothing under way on it. Raises ``Closed``."""
        while self._idle:
            if (channel := self._idle.pop()).closure is None:
                channel.news.clear()
                return channel
        if self.closure is not None:
            raise Closed(self.closure)
        number = next((n for n in range(1, self.limits.channel_max + 1) if n not in self._channels), None)
        if number is None:
            raise Closed(Closure(0, f"all {self.limits.channel_max} channels are in use"))
        channel = self._channels[number] = Channel(number)
        try:
            await self.ask(channel, commands.Channel.Open(), commands.Confirm.Select())
        except BaseException:
            self.drop(channel)
            raise
        return channel

    def give_back(self, channel: Channel) -> None:
        """It can be leased again, where nothing is under way on it."""
        if channel.closure is None and not channel.under_way:
            self._idle.append(channel)
        else:
            self.drop(channel)

    def drop(self, channel: Channel) -> None:
        """What is under way on it is given up; the broker forgets it when it has read what we wrote before."""
        if channel.closure is None:
            channel.end(Closure(0, "dropped"))
            self._tell(commands.Channel.Close(200, "dropped", 0, 0), channel.number)

    async def ask(self, channel: Channel, *questions: Method) -> None:
        """Ask on a channel, and wait for the answers. Raises ``Closed``."""
        for question in questions:
            self._tell(question, channel.number)
        for _ in questions:
            await channel.reply()

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────

    def write(self, data: bytes) -> None:
        """Write, or lay into the buffer; nothing where it has ended, which whoever waits is told."""
        if self._transport is not None and not self._transport.is_closing():
            self._wrote = asyncio.get_running_loop().time()
            self._transport.write(data)

    async def writable(self) -> None:
        """Until the buffer takes more, or it has ended."""
        await self._writable.wait()

    def _tell(self, method: Method, channel: int = 0) -> None:
        self.write(pamqp.frame.marshal(method, channel))

    # ── What comes in ────────────────────────────────────────────────────────────────────────────

    async def _expect(self, kind: type[M]) -> M:
        method = await self._control.get()
        if isinstance(method, Closure):
            raise Closed(method)
        if not isinstance(method, kind):
            raise Closed(Closure(0, f"it said {method.name} where {kind.name} was due"))
        return method

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._heard = asyncio.get_running_loop().time()
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._end(Closure(0, str(exc) if exc else "the connection was closed"))
        self._gone.set()

    def pause_writing(self) -> None:
        """Called by asyncio: the buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by asyncio: the buffer has room."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._heard = asyncio.get_running_loop().time()
        self._buffer += data
        try:
            for frame in take_frames(self._buffer, max(self.limits.frame_max, 4096)):
                if frame.channel == 0:
                    self._control_frame(frame)
                elif (channel := self._channels.get(frame.channel)) is not None:
                    method = channel.receive(frame)
                    if method is not None:
                        self._channel_method(channel, method)
        except MalformedFrame as error:
            self.abort(f"what came is no AMQP 0-9-1: {error}")

    def _control_frame(self, frame: Frame) -> None:
        if frame.kind != METHOD:  # a heartbeat
            return
        method = read_method(frame.payload)
        if isinstance(method, commands.Connection.Blocked):
            self.blocked = method.reason or "no reason given"
            log.warning("RabbitMQ takes no messages: %s", self.blocked)
        elif isinstance(method, commands.Connection.Unblocked):
            self.blocked = None
            log.info("RabbitMQ takes messages again")
        elif isinstance(method, commands.Connection.Close):
            self._tell(commands.Connection.CloseOk())
            self._end(Closure(method.reply_code or 0, method.reply_text or "no reason given"))
        else:
            self._control.put_nowait(method)

    def _channel_method(self, channel: Channel, method: Method) -> None:
        if isinstance(method, commands.Channel.Close):
            self._tell(commands.Channel.CloseOk(), channel.number)
            if channel.closure is None:  # else our own goodbye is on its way, and will be answered
                del self._channels[channel.number]
                channel.end(Closure(method.reply_code or 0, method.reply_text or "no reason given"))
        elif isinstance(method, commands.Channel.CloseOk):
            self._channels.pop(channel.number, None)
        elif isinstance(method, commands.Channel.Flow):
            self._tell(commands.Channel.FlowOk(active=bool(method.active)), channel.number)
