"""A stream with file storage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import nats
from nats.js.api import ConsumerConfig, StorageType
from nats.js.client import JetStreamContext

from oncommit.testing.bench.relay.timeline import Arrival


class NatsHome:
    """One stream, one subject."""

    storage = "one stream with file storage, fast batches allowed"

    def __init__(self, url: str, subject: str) -> None:
        self._url = url
        self._subject = subject
        self._name = "oncommit_" + subject.replace(".", "_")

    async def make(self) -> None:
        """Add the stream, as the guide to brokers says."""
        async with self._jetstream() as jetstream:
            await jetstream.add_stream(
                name=self._name, subjects=[self._subject], storage=StorageType.FILE, allow_batched=True
            )

    async def empty(self) -> None:
        """Purge it."""
        async with self._jetstream() as jetstream:
            await jetstream.purge_stream(self._name)

    async def arrived(self) -> Arrival:
        """Messages in the stream, with the times at which it took them."""
        async with self._jetstream() as jetstream:
            state = (await jetstream.stream_info(self._name)).state
            if not state.messages:
                return Arrival(0)
            first, last = [await self._time(jetstream, place) for place in (state.first_seq, state.last_seq)]
        return Arrival(state.messages, first, last)

    async def times(self) -> dict[str, float]:
        """When each message was stored, by its id."""
        found: dict[str, float] = {}
        async with self._jetstream() as jetstream:
            count = (await jetstream.stream_info(self._name)).state.messages
            headers_only = ConsumerConfig(headers_only=True)
            reader = await jetstream.subscribe(self._subject, ordered_consumer=True, config=headers_only)
            for _ in range(count):
                message = await reader.next_msg(timeout=30)
                found[(message.headers or {})["message_id"]] = message.metadata.timestamp.timestamp()
            await reader.unsubscribe()
        return found

    async def remove(self) -> None:
        """Delete it."""
        async with self._jetstream() as jetstream:
            await jetstream.delete_stream(self._name)

    async def _time(self, jetstream: JetStreamContext, place: int) -> float | None:
        time = (await jetstream.get_msg(self._name, place)).time
        return time.timestamp() if isinstance(time, datetime) else None

    @asynccontextmanager
    async def _jetstream(self) -> AsyncIterator[JetStreamContext]:
        client = await nats.connect(self._url)
        try:
            yield client.jetstream(timeout=30)
        finally:
            await client.close()


def make_home(url: str, topic: str) -> NatsHome:
    """A place for this topic."""
    return NatsHome(url, topic)
