"""Publishing to JetStream through a window: many in flight, the next of a key behind the answer to the one before.

nats-py's ``publish_async`` does the same with a future, a semaphore and a token a message, encodes headers one by one,
and leaves unanswered what JetStream refuses. Here one subscription takes all answers, a number says whose they are, and
a message is written in one go: a third of the work. It is handed to the client's own buffer, which is not part of its
public face; where a version of it has no such thing, its ``publish`` is used.

Failure story. Answers that come after their publish was given up belong to nobody and are dropped; what they were for
counts as failed, and is sent again. A connection that breaks takes all answers with it; whoever owns the client then
ends the publish (``NatsBroker``). What waited in the client's buffer may still be sent after it has connected again:
each a duplicate, or a first delivery that nothing of its key has overtaken.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NoStreamResponseError

from oncommit.brokers.base import Message, Outcome
from oncommit.errors import BrokerError, BrokerUnavailable, NotAttempted, PublishFailed, PublishRejected

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

HELD_BACK: Final = NotAttempted("an earlier event of its key was not acknowledged")
UNANSWERED: Final = PublishFailed("NATS gave no answer")

_FLUSH_EVERY: Final = 128
"""Messages: so that the server works on the first while the last are being written."""
_NO_LIMIT: Final = 0
_BAD_SUBJECT: Final = re.compile(r"[\s\x00]").search
_HEADERS: Final = re.compile(r"(?:[!-9;-~]+: [^\r\n\x00]*\r\n)+").fullmatch


class _Refusal(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Said(msgspec.Struct):
    stream: str = ""
    error: _Refusal | None = None


class Forbidden(NatsError):
    """The login may not publish to this subject."""


OutcomeOf = Callable[[Exception, Message], BrokerError]


class Flight:
    """One call of publish: what of its messages may go, and what became of them."""

    def __init__(self, batch: Sequence[Message]) -> None:
        self.batch = batch
        self.outcomes: list[Outcome] = [HELD_BACK] * len(batch)
        self.next = [0] * len(batch)
        """Of each message the one of its key that comes behind it; 0 for none, since the first is behind nobody."""
        self.heads: list[int] = []
        last: dict[str, int] = {}
        for index, message in enumerate(batch):
            if message.key is None or (before := last.get(message.key)) is None:
                self.heads.append(index)
            else:
                self.next[before] = index
            if message.key is not None:
                last[message.key] = index
        self.begun = 0
        """How many keys have had their first message sent, or refused."""
        self.open = 0
        """Messages in flight."""
        self.over = asyncio.Event()
        """All is answered, or the flight is given up: nothing more of it is sent."""


class Window:
    """The answers of one connection, and the flights that wait for them."""

    def __init__(self, client: Client, outcome_of: OutcomeOf, *, size: int) -> None:
        self._client = client
        self._outcome_of = outcome_of
        self._size = size
        self._waiting: dict[int, tuple[Flight, int]] = {}
        self._flows: dict[str, Callable[[Msg], None]] = {}
        self._flow_inbox = ""
        self._number = 0
        self._inbox = ""
        self._raw = callable(getattr(client, "_send_command", None)) and callable(
            getattr(client, "_flush_pending", None)
        )

    async def open(self) -> None:
        """Listen for answers."""
        self._inbox = self._client.new_inbox() + "."
        self._flow_inbox = self._client.new_inbox() + "."
        for subject, answered in ((self._inbox + "*", self._answered), (self._flow_inbox + ">", self._flow_answered)):
            await self._client.subscribe(
                subject, cb=answered, pending_msgs_limit=_NO_LIMIT, pending_bytes_limit=_NO_LIMIT
            )

    @property
    def is_connected(self) -> bool:
        """Whether the client has a connection now; where not, it would keep what it is given."""
        return bool(self._client.is_connected)

    @property
    def max_payload(self) -> int:
        """What the server takes, in bytes, headers included."""
        return int(self._client.max_payload)

    @property
    def takes_commands(self) -> bool:
        """Whether the client lets us write commands of our own."""
        return self._raw

    def flow_reply(self, name: str, every: int, number: int, operation: int) -> str:
        """Where a flow is answered, which is also how it says what a message is to it."""
        return f"{self._flow_inbox}{name}.{every}.fail.{number}.{operation}.$FI"

    def listen(self, name: str, hear: Callable[[Msg], None]) -> None:
        """Hear what is said of this flow."""
        self._flows[name] = hear

    def unlisten(self, name: str) -> None:
        """No more."""
        self._flows.pop(name, None)

    async def send(self, command: bytes) -> None:
        """Hand a command to the client; only where it takes them."""
        await self._client._send_command(command)  # noqa: SLF001 - see the head of this file

    async def flush(self) -> None:
        """Have written what was handed over."""
        if self._raw:
            queue = getattr(self._client, "_flush_queue", None)
            if queue is None or queue.empty():  # else the client's writer has been told already
                await self._client._flush_pending()  # noqa: SLF001 - see the head of this file

    async def fly(self, flight: Flight) -> None:
        """Publish; ends when each message has been answered, refused or held back."""
        try:
            await self._fill(flight)
            if flight.open or flight.begun < len(flight.heads):
                await flight.over.wait()
        finally:
            flight.over.set()
            if flight.open:
                self._waiting = {number: one for number, one in self._waiting.items() if one[0] is not flight}

    async def forbidden(self, subject: str) -> None:
        """We may not publish there. The server says it apart from any message, and gives those no other answer."""
        for number, (flight, index) in list(self._waiting.items()):
            # The client makes small letters of what the server says.
            if flight.batch[index].topic.lower() == subject and number in self._waiting:
                del self._waiting[number]
                await self._landed(flight, index, Forbidden())

    async def _fill(self, flight: Flight) -> None:
        """Send the first messages of keys while there is room."""
        sent = 0
        while flight.begun < len(flight.heads) and flight.open < self._size and not flight.over.is_set():
            index = flight.heads[flight.begun]
            flight.begun += 1
            await self._send(flight, index)
            sent += 1
            if sent % _FLUSH_EVERY == 0:
                await self.flush()
                await asyncio.sleep(0)
        await self.flush()

    async def _send(self, flight: Flight, index: int) -> None:
        message = flight.batch[index]
        if not self._client.is_connected:  # the client would keep it, and nobody would know for how long
            flight.outcomes[index] = BrokerUnavailable("NATS cannot be reached: the client is connecting again")
            return
        self._number += 1
        number = self._number
        reply = f"{self._inbox}{number}"
        try:
            command = encode(message, reply, self._client.max_payload)
            # In flight from here on: without an answer it has failed, although it may have arrived.
            flight.outcomes[index] = UNANSWERED
            flight.open += 1
            self._waiting[number] = (flight, index)
            if self._raw:
                await self.send(command)
            else:
                headers = {**message.headers, "Nats-Msg-Id": message.message_id}
                await self._client.publish(message.topic, message.body, reply, headers)
        except PublishRejected as error:
            flight.outcomes[index] = error
        except (NatsError, OSError) as error:
            if self._waiting.pop(number, None):
                flight.open -= 1
            flight.outcomes[index] = self._outcome_of(error, message)

    async def _answered(self, answer: Msg) -> None:
        waiting = self._waiting.pop(int(answer.subject[len(self._inbox) :]), None)
        if waiting is not None:
            await self._landed(*waiting, problem_of(answer))

    async def _flow_answered(self, answer: Msg) -> None:
        name = answer.subject[len(self._flow_inbox) :].partition(".")[0]
        if (hear := self._flows.get(name)) is not None:
            hear(answer)

    async def _landed(self, flight: Flight, index: int, problem: Exception | None) -> None:
        """One is answered: the next of its key may go, and others in its place."""
        flight.open -= 1
        flight.outcomes[index] = None if problem is None else self._outcome_of(problem, flight.batch[index])
        behind = flight.next[index]
        if behind and problem is None and not flight.over.is_set():
            await self._send(flight, behind)
            await self.flush()
        if flight.begun < len(flight.heads) and flight.open < self._size:
            await self._fill(flight)
        if not flight.open and flight.begun >= len(flight.heads):
            flight.over.set()


def encode(message: Message, reply: str, max_payload: int) -> bytes:
    """One message as the server reads it. Raises ``PublishRejected`` for what it would close the connection over."""
    if not message.topic or _BAD_SUBJECT(message.topic):
        raise PublishRejected(f"NATS cannot carry it: {message.topic!r:.200} is no subject")
    # Ours comes first, and the server takes the first: a user's header of this name changes nothing.
    lines = [f"Nats-Msg-Id: {message.message_id}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in message.headers.items()]
    headers = "".join(lines)
    if headers.count("\n") != len(lines) or not _HEADERS(headers):
        raise PublishRejected("NATS cannot carry it: a header has a line break, or a name that is none")
    head = b"NATS/1.0\r\n" + headers.encode() + b"\r\n"
    size = len(head) + len(message.body)
    if size > max_payload:
        raise PublishRejected(f"{size} bytes with its headers are more than the server's max_payload of {max_payload}")
    command = f"HPUB {message.topic} {reply} {len(head)} {size}\r\n".encode()
    return b"%b%b%b\r\n" % (command, head, message.body)


def problem_of(answer: Msg) -> Exception | None:
    """What JetStream says against it; nothing if it is stored."""
    data = answer.data
    if data.startswith(b'{"stream":') and b'"error"' not in data:
        return None
    if answer.headers and answer.headers.get("Status") == "503":
        return NoStreamResponseError()
    try:
        said = msgspec.json.decode(data, type=_Said)
    except msgspec.DecodeError:
        return NatsError("nats: an answer that is none of JetStream's")
    if said.error is not None:
        return APIError(said.error.code, said.error.description, said.error.err_code)
    return None if said.stream else NatsError("nats: an answer that names no stream")
