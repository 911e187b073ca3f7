"""Which streams take the messages of a topic as a flow: learnt by asking, beside the publishing, and asked again.

Failure story. Until it is known, and wherever it cannot be (the login may not ask, the server is older, nobody
answers), messages go one by one. A stream that has changed its mind refuses the flow, and is asked again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from nats.errors import Error as NatsError

if TYPE_CHECKING:
    from nats.js.client import JetStreamContext

log: Final = logging.getLogger("oncommit.brokers.nats")

ASK_AGAIN: Final = 60.0
ASK_AGAIN_AFTER_ERROR: Final = 600.0
_TIMEOUT: Final = 2.0
_MOST_TOPICS: Final = 10_000


class Streams:
    """Of one connection."""

    def __init__(self, jetstream: JetStreamContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._jetstream = jetstream
        self._clock = clock
        self._known: dict[str, tuple[str | None, float]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def stream_of(self, topic: str) -> str | None:
        """The stream, if it is known to allow flows; asks beside, now and every minute."""
        stream, until = self._known.get(topic, (None, 0.0))
        if self._clock() >= until and topic not in self._asking and len(self._known) < _MOST_TOPICS:
            self._asking[topic] = asyncio.create_task(self._ask(topic))
        return stream

    def refused(self, topics: Iterable[str]) -> None:
        """Their stream allows no flows any more."""
        self._known.update(dict.fromkeys(topics, (None, self._clock() + ASK_AGAIN)))

    async def settled(self) -> None:
        """Wait until nothing is being asked."""
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def close(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()
        await self.settled()

    async def _ask(self, topic: str) -> None:
        stream, wait = None, ASK_AGAIN
        try:
            async with asyncio.timeout(_TIMEOUT):
                name = await self._jetstream.find_stream_name_by_subject(topic)
                info = await self._jetstream.stream_info(name)
            # Clients that know of no such thing leave it out.
            stream = name if getattr(info.config, "allow_batched", None) is True else None
        except (NatsError, OSError, TimeoutError, ValueError) as error:
            log.debug("whether the stream of %s takes flows is not known: %s", topic, error)
            wait = ASK_AGAIN_AFTER_ERROR
        self._known[topic] = (stream, self._clock() + wait)
        self._asking.pop(topic, None)
