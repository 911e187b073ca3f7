"""Wake-ups by way of Redis: writers push onto the list ``outbox:wake:{service}``, relays wait for it.

Failure story. An entry wakes whoever takes it, so with several relays it is passed on, as often as there are others:
Redis serves first who has waited longest, and that is another one. A relay that dies with an entry, a Redis that loses
it, an entry that the same relay takes twice: each costs a poll's time and nothing else. The list is short and expires
(writers see to it), so that it does not grow where no relay runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from oncommit.brokers.redis_client import redis_client
from oncommit.identifiers import wake_list

log: Final = logging.getLogger("oncommit.relay")

WAIT: Final = 5
"""Seconds for which Redis is asked to wait at a time: a connection that is dead shows soon."""
_MARGIN: Final = 5.0
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 30.0
_LONGEST: Final = 4096
_MOST_HOPS: Final = 1000


class WakeList:
    """Takes entries from the list of one service."""

    def __init__(self, url: str, service: str, wake: Callable[[str | None], None], others: Callable[[], int]) -> None:
        self.works = False
        """Whether the list can be reached."""
        self._list = wake_list(service)
        self._wake = wake
        self._others = others
        self._client, self._broken = redis_client(url, timeout=WAIT + _MARGIN)

    async def run(self) -> None:
        """Until cancelled."""
        pause = _FIRST_PAUSE
        try:
            while True:
                try:
                    await self._client.ping()
                    self.works = True
                    pause = _FIRST_PAUSE
                    self._wake(None)  # what was pushed before may have been taken by nobody
                    while True:
                        await self._take()
                except self._broken as error:
                    level = logging.WARNING if pause == _FIRST_PAUSE else logging.DEBUG  # once is enough
                    log.log(level, "wake-ups cannot be had from Redis: %s; polling goes on", str(error) or "no answer")
                finally:
                    self._lost()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            await self._client.aclose()

    def _lost(self) -> None:
        if self.works:
            self.works = False
            self._wake(None)  # they may be at rest until a wake-up comes

    async def _take(self) -> None:
        taken = await self._client.blpop(self._list, timeout=WAIT)
        if taken is None:
            return
        entry: bytes = taken[1]
        sinks, hops = read_entry(entry)
        named: list[str | None] = [*sinks]
        for sink in named or [None]:
            self._wake(sink)
        left = self._others() if hops is None else min(hops, self._others())
        if left > 0:
            await self._client.lpush(self._list, write_entry(sinks, left - 1))


def read_entry(entry: bytes) -> tuple[list[str], int | None]:
    """The sinks that an entry names, none for all; and how many relays are still to hear of it, if it says so."""
    if len(entry) > _LONGEST:
        return [], 0
    names, _, hops = entry.decode(errors="replace").partition("\n")
    known = int(hops) if hops.isascii() and hops.isdigit() and len(hops) < 5 else None  # noqa: PLR2004 - digits
    return names.split(), min(known, _MOST_HOPS) if known is not None else None


def write_entry(sinks: list[str], hops: int) -> bytes:
    """An entry that is passed on."""
    return f"{' '.join(sinks)}\n{hops}".encode()
