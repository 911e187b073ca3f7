"""Which lanes are ours: taking, noticing losses, handing back.

Failure story. What is remembered here can be wrong at any moment: the lanes are ours only while the lease is, and every
statement that acts on one checks owner and epoch again. Memory of a lane that was lost is thrown away when that is
noticed; until then it does no harm. Somebody may empty the tables by hand: missing rows are made again, under epochs
that have never been used.
"""

from __future__ import annotations

import logging
from typing import Final

from oncommit.relay.lane import Lane
from oncommit.relay.settings import RelaySettings
from oncommit.relay.share import ALL_LANES, fair_share
from oncommit.relay.store import LaneRow, Store, Survey

log: Final = logging.getLogger("oncommit.relay")


class Lanes:
    """The lanes of one sink that this relay owns."""

    def __init__(self, sink: str, settings: RelaySettings) -> None:
        self._sink = sink
        self._settings = settings
        self.owned: dict[int, Lane] = {}

    async def tend(self, store: Store) -> None:
        """Look at the tables, and bring them and our memory together."""
        survey = await store.survey(self._settings.lease)
        if survey.lanes < ALL_LANES:
            await store.make_lanes()
        self._compare(survey)
        share = fair_share(self.owned, survey.relays)
        for number, lane in self.owned.items():
            lane.leaving = number in share.give_back
        await self._give_back(store)
        if share.take:
            await self._take(store, share.take)

    def find(self, number: int, epoch: int) -> Lane | None:
        """The lane, if it is still the one that was meant."""
        lane = self.owned.get(number)
        return lane if lane is not None and lane.epoch == epoch else None

    def drop_all(self) -> None:
        """The lease is lost."""
        if self.owned:
            log.warning("sink %s: the lease was lost, %d lanes are given up", self._sink, len(self.owned))
        self.owned.clear()

    def forget(self) -> None:
        """The connection was lost: what was read from the lanes may be stale (S-forget)."""
        for lane in self.owned.values():
            lane.order.forget()

    def ground_all(self) -> None:
        """Nothing is in flight any more."""
        for lane in self.owned.values():
            lane.in_flight.clear()

    async def give_all_back(self, store: Store) -> None:
        """Before a graceful end, with nothing in flight."""
        for lane in self.owned.values():
            lane.leaving = True
        await self._give_back(store)

    def _compare(self, survey: Survey) -> None:
        for number, lane in list(self.owned.items()):
            now = survey.mine.get(number)
            if now is None or now.epoch != lane.epoch:
                log.warning("sink %s: lane %d was lost", self._sink, number)
                del self.owned[number]
            elif now.rescan != lane.rescan:
                lane.rescan = now.rescan
                lane.order.forget()
        for number, row in survey.mine.items():
            if number not in self.owned:  # taken by a statement whose answer was lost
                self._remember(row)

    async def _give_back(self, store: Store) -> None:
        ready = {number: lane.epoch for number, lane in self.owned.items() if lane.leaving and not lane.in_flight}
        if ready:
            await store.return_lanes(ready)
            for number in ready:
                del self.owned[number]

    async def _take(self, store: Store, most: int) -> None:
        taken = await store.take_lanes(self._settings.lease, most)
        for row in taken:
            self._remember(row)
        if taken:
            for claim in await store.left_claims([row.lane for row in taken]):
                self.owned[claim.lane].suspects.append(claim)

    def _remember(self, row: LaneRow) -> None:
        self.owned[row.lane] = Lane(row.lane, row.epoch, row.rescan, most_blocked=self._settings.most_blocked)
