"""Which lanes are ours: taking, noticing losses, handing back.

Failure story. What is remembered here can be wrong at any moment: the lanes are ours only while the lease is, and every
statement that acts on one checks owner and epoch again. Memory of a lane that was lost is thrown away when that is
noticed; until then it does no harm. Somebody may empty the tables by hand: missing rows are made again, under epochs
that have never been used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from oncommit.relay.lane import Lane
from oncommit.relay.settings import RelaySettings
from oncommit.relay.share import ALL_LANES, Share, fair_share
from oncommit.relay.store import LaneRow, Store, Survey

log: Final = logging.getLogger("oncommit.relay")


class Lanes:
    """The lanes of one sink that this relay owns."""

    def __init__(self, sink: str, settings: RelaySettings) -> None:
        self.sink = sink
        self._settings = settings
        self.owned: dict[int, Lane] = {}
        self.others = 0
        """How many other relays serve this sink."""

    async def tend(self, store: Store, *, can_serve: bool = True) -> None:
        """Look at the tables, and bring them and our memory together.

        A relay that cannot reach its broker leaves its lanes to those that can, should there be any.
        """
        survey = await store.survey(self._settings.lease)
        if survey.lanes < ALL_LANES:
            await store.make_lanes()
        self.others = survey.others
        await self._compare(store, survey)
        share = fair_share(self.owned, survey.others + 1)
        if not can_serve and survey.others:
            share = Share(take=0, take_urgent=0, give_back=tuple(self.owned))
        for number, lane in self.owned.items():
            lane.leaving = number in share.give_back
        await self._give_back(store)
        for urgent, most in ((True, share.take_urgent), (False, share.take)):
            if most:
                await self._remember(store, await store.take_lanes(self._settings.lease, most, urgent=urgent))

    def find(self, number: int, epoch: int) -> Lane | None:
        """The lane, if it is still the one that was meant."""
        lane = self.owned.get(number)
        return lane if lane is not None and lane.epoch == epoch else None

    def seen(self) -> dict[int, tuple[int, int]]:
        """The lanes, and up to where they have been read; another answer than before says that there is work."""
        return {number: (lane.epoch, lane.order.floor) for number, lane in self.owned.items()}

    def drop_all(self) -> None:
        """The lease is lost."""
        if self.owned:
            log.warning("sink %s: the lease was lost, %d lanes are given up", self.sink, len(self.owned))
        self.owned.clear()

    def forget(self) -> None:
        """Nothing is in flight any more, and what was read from the lanes may be stale (S-forget)."""
        for lane in self.owned.values():
            lane.in_flight.clear()
            lane.forget()

    async def give_all_back(self, store: Store) -> None:
        """Before a graceful end, with nothing in flight."""
        for lane in self.owned.values():
            lane.leaving = True
        await self._give_back(store)

    async def _compare(self, store: Store, survey: Survey) -> None:
        for number, lane in list(self.owned.items()):
            now = survey.mine.get(number)
            if now is None or now.epoch != lane.epoch:
                log.warning("sink %s: lane %d was lost", self.sink, number)
                del self.owned[number]
                continue
            lane.settled_to = now.settled_to
            if now.rescan != lane.rescan:
                lane.rescan = now.rescan
                lane.forget()
        # Taken by a statement whose answer was lost, or ours still although we thought our lease was over.
        await self._remember(store, [row for number, row in survey.mine.items() if number not in self.owned])

    async def _give_back(self, store: Store) -> None:
        ready = {number: lane.epoch for number, lane in self.owned.items() if lane.leaving and not lane.in_flight}
        if ready:
            await store.return_lanes(ready)
            for number in ready:
                del self.owned[number]

    async def _remember(self, store: Store, rows: Sequence[LaneRow]) -> None:
        """These are ours now, with what was in flight on them when those before us died.

        They count only once that is known: without it, suspects would go among the others.
        """
        if not rows:
            return
        claims = await store.left_claims([row.lane for row in rows])
        for row in rows:
            lane = Lane(row.lane, row.epoch, row.rescan, row.settled_to, most_blocked=self._settings.most_blocked)
            lane.suspects = [claim for claim in claims if claim.lane == row.lane]
            self.owned[row.lane] = lane
