"""NATS JetStream: acknowledged publishes through a window, one at a time for each key; or a flow.

Failure story. The client reconnects by itself and keeps what it could not send yet. So a publish that we gave up after
its time limit may still arrive, late; it is then a duplicate, or the first delivery of an event that nothing of its key
has overtaken, since nothing of a key is sent before the one before it was acknowledged. JetStream drops a second
message with the same id within the stream's duplicate window. What is acknowledged is stored as the server's
``sync_interval`` says: by default it may be in memory alone for two minutes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from nats.aio.client import Client
from nats.errors import AuthorizationError, BadHeaderError, BadSubjectError, MaxPayloadError
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError

from oncommit.brokers.base import Capabilities, Message, Outcome
from oncommit.brokers.nats_plan import WORTH_IT
from oncommit.brokers.nats_publishing import Publishing
from oncommit.brokers.nats_streams import Streams
from oncommit.brokers.nats_window import UNANSWERED, Forbidden, Window
from oncommit.cloudevents import NATS
from oncommit.errors import (
    BrokerError,
    BrokerUnavailable,
    PublishFailed,
    PublishRejected,
    TopicUnavailable,
)

log: Final = logging.getLogger("oncommit.brokers.nats")

CONNECT_TIMEOUT: Final = 5.0
RECONNECT_WAIT: Final = 0.25
WINDOW: Final = 4000
_UNAVAILABLE: Final = 503
_FORBIDDEN: Final = re.compile(r'permissions violation for publish to "([^"]*)"', re.IGNORECASE)
_TOO_LARGE: Final = 10054  # JetStream's code for a message above the stream's limit


class NatsBroker:
    """Publishes to the streams of one NATS server or cluster. The streams are yours: it makes none."""

    def __init__(self, url: str, *, flow_from: int = WORTH_IT) -> None:
        """Make it; ``flow_from`` so many messages it sends a flow, to a stream that allows it."""
        self._url = url
        self._flow_from = flow_from
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        self._window: Window | None = None
        self._streams: Streams | None = None
        self._line = _Line()
        self.capabilities = Capabilities(
            name="nats",
            binding=NATS,
            acknowledged_means="stored by the stream, on as many servers as it has replicas",
            ordered_pipelining=False,
            deduplicates=True,
        )

    async def open(self) -> None:
        """Connect; nothing to do where the client is at it already."""
        if self._client is not None and not self._client.is_closed:
            return
        client, line = Client(), _Line()
        window = Window(client, outcome_of, size=WINDOW)
        connecting = asyncio.create_task(self._connect(client, line, window))
        # The client would go on asking for ever, also a server that has refused it.
        refused = asyncio.create_task(line.refused.wait())
        try:
            await asyncio.wait({connecting, refused}, timeout=CONNECT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise BrokerUnavailable(line.no_way_in("no answer"))
            await connecting
        except (NatsError, OSError) as error:
            raise BrokerUnavailable(line.no_way_in(str(error) or "no answer")) from error
        finally:
            for task in (connecting, refused):
                task.cancel()
            await asyncio.gather(connecting, refused, return_exceptions=True)
        self._client, self._line, self._window, self._jetstream = client, line, window, client.jetstream()
        self._streams = Streams(self._jetstream) if window.takes_commands else None

    async def _connect(self, client: Client, line: _Line, window: Window) -> None:
        line.forbidden = window.forbidden
        await client.connect(
            self._url,
            max_reconnect_attempts=-1,
            connect_timeout=int(CONNECT_TIMEOUT),
            reconnect_time_wait=RECONNECT_WAIT,  # type: ignore[arg-type] # it takes fractions as well
            error_cb=line.report,
            disconnected_cb=line.disconnected,
        )
        await window.open()

    async def close(self) -> None:
        """Disconnect."""
        client, self._client, self._jetstream, self._window = self._client, None, None, None
        streams, self._streams = self._streams, None
        if streams is not None:
            await streams.close()
        if client is not None and not client.is_closed:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await client.close()
            except (NatsError, OSError, TimeoutError) as error:
                log.debug("closing: %s", error)

    async def ping(self) -> None:
        """Ask JetStream for itself."""
        await self.open()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._context().account_info()
        except (NatsError, OSError, TimeoutError) as error:
            raise BrokerUnavailable(f"NATS does not answer: {str(error) or 'no answer'}") from error

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        """Publish; the first of each key at once, the others each behind the one before it."""
        if self._window is None:
            return [BrokerUnavailable("NATS: not open")] * len(batch)
        connection = self._line.lost
        publishing = Publishing(self._window, self._streams, batch, worth_it=self._flow_from)
        work = asyncio.create_task(publishing.run())
        lost = asyncio.create_task(connection.wait())
        try:
            await asyncio.wait({work, lost}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            await publishing.end(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error
        outcomes = publishing.outcomes()
        if any(outcome is UNANSWERED for outcome in outcomes):
            reason = await self._silent(connection)
            outcomes = [reason if outcome is UNANSWERED else outcome for outcome in outcomes]
        return outcomes

    async def _silent(self, connection: asyncio.Event) -> BrokerError:
        """Why there is no answer: it is gone, which is no event's fault, or it answers others and not this one."""
        if self._client is None:
            return BrokerUnavailable("NATS: closed before the answer")
        if connection.is_set():
            return BrokerUnavailable("NATS cannot be reached: the connection was lost before the answer")
        try:
            await self.ping()
        except BrokerUnavailable as error:
            return error
        return PublishFailed("NATS gave no answer in time")

    def _context(self) -> JetStreamContext:
        if self._jetstream is None or self._client is None:
            raise BrokerUnavailable("NATS: not open")
        if not self._client.is_connected:  # the client would keep it, and nobody would know for how long
            raise BrokerUnavailable("NATS cannot be reached: the client is connecting again")
        return self._jetstream


def outcome_of(error: Exception, message: Message) -> BrokerError:
    """What an error of the client says about a message."""
    if isinstance(error, NoStreamResponseError):
        return TopicUnavailable(f"no stream takes the subject {message.topic!r}: create one that does")
    if isinstance(error, Forbidden):
        return TopicUnavailable(f"this login may not publish to the subject {message.topic!r}: allow it on the server")
    if isinstance(error, MaxPayloadError):
        return PublishRejected(f"{len(message.body)} bytes are more than the server's max_payload allows")
    if isinstance(error, BadSubjectError | BadHeaderError):
        return PublishRejected(f"NATS cannot carry it: {error}")
    if isinstance(error, APIError):
        return _refused(error, message)
    return BrokerUnavailable(f"NATS cannot be reached: {error}")


def _refused(error: APIError, message: Message) -> BrokerError:
    if error.err_code == _TOO_LARGE:
        return PublishRejected(f"{len(message.body)} bytes are more than the stream's max_msg_size allows")
    if error.code == _UNAVAILABLE:  # the stream is full, or has no leader: no event's fault
        return TopicUnavailable(f"the stream takes nothing now: {error.description} ({error.err_code})")
    return PublishFailed(f"JetStream refused it: {error.description} ({error.err_code})")


class _Line:
    """What a client tells of its connection when nobody has asked."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        """Set when the connection is lost; the one after it has another."""
        self.refused = asyncio.Event()
        """Set when the login was refused."""
        self.forbidden: Callable[[str], Awaitable[None]] | None = None

    async def disconnected(self) -> None:
        """Answers to what is in flight will not come any more, also when the client connects again."""
        self.lost.set()
        self.lost = asyncio.Event()

    async def report(self, error: Exception) -> None:
        """Something is wrong."""
        log.warning("NATS: %s", error)
        if isinstance(error, AuthorizationError) or "authorization violation" in str(error).lower():
            self.refused.set()
        if (found := _FORBIDDEN.search(str(error))) is not None and self.forbidden is not None:
            await self.forbidden(found[1].lower())

    def no_way_in(self, reason: str) -> str:
        """Why it could not connect."""
        if self.refused.is_set():
            return "NATS refuses the login: check user and password, token or credentials in the URL"
        return f"NATS cannot be reached: {reason}"
