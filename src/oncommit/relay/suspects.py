"""What was in flight when the owner of a lane died: tried apart from all else, to find the event that kills.

Failure story. Trying them may kill us too. Then our own claim, of at most half as many rows, tells our successor more
than those before it did; so claims of suspects come first, the smallest before all, and at last there is one of a
single event, which is charged. Where the connection breaks, the broker goes away, or the lease is lost, nobody is
charged: we, or our successor, go on from what the claims say, and a claim that has charged its event does so only once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from oncommit.brokers.circuit import Circuit
from oncommit.brokers.dispatcher import Published
from oncommit.brokers.row import FetchedRow
from oncommit.relay.burying import bury_or_park
from oncommit.relay.dead_topics import topic_of_killer
from oncommit.relay.lane import Lane
from oncommit.relay.reader import Reader
from oncommit.relay.settings import RelaySettings
from oncommit.relay.settling import REFUSED
from oncommit.relay.store import Burial, LeftClaim, Store
from oncommit.relay.writing import Writing
from oncommit.topics import TopicRules

log: Final = logging.getLogger("oncommit.relay")
WHOLE: Final = 1000


class Suspects:
    """Tries the suspects of one sink."""

    def __init__(
        self,
        writing: Writing,
        circuit: Circuit,
        settings: RelaySettings,
        *,
        rules: TopicRules,
        publish: Callable[[list[FetchedRow]], Awaitable[list[Published]]],
        clock: Callable[[], float],
    ) -> None:
        self._writing = writing
        self._circuit = circuit
        self._settings = settings
        self._rules = rules
        self._publish = publish
        self._clock = clock

    async def try_lane(self, lane: Lane, reader: Reader, store: Store) -> None:
        """Try what was in flight when this lane's owner died, apart from all else of this sink (C-alone).

        The caller has nothing in flight.
        """
        lane.suspects = in_turn(lane.suspects)
        for claim in lane.suspects:
            if claim.alone and claim.rows == 1:
                await self._charge(lane, claim.first, store)
        late = set(await store.holders())
        while (stretch := next_stretch(lane)) is not None:
            last, most, alone = stretch
            batch = await reader.read_some(lane, last, most, alone=alone)
            if late and (left := late - set(await store.holders())):
                # They may have brought what belongs before something that was read (S-whole). Who has begun since has
                # drawn higher ids than those of the suspects.
                late -= left
                await store.unclaim(batch.number)
                lane.forget()
                continue
            rows = lane.order.admit(lane.fresh(batch.rows), self._clock()).go
            lane.takes_off(row.place for row in rows)
            self._writing.take(batch.number, await self._publish(rows) if rows else [])
            await self._writing.write_all(store)
            if self._circuit.is_open:  # not the events' fault; go on when the broker is back
                return
        await store.drop_claims({lane.lane: lane.epoch})
        lane.forget()

    async def _charge(self, lane: Lane, place: int, store: Store) -> None:
        try:
            crashes = await store.charge_crash(lane.lane, lane.epoch, place)
        except REFUSED:  # a row that cannot be charged must not be tried for ever
            crashes = self._settings.crash_limit
        if crashes >= self._settings.crash_limit:
            reason = f"alone in flight when its relay died, {crashes} times"
            routing = await store.routing(lane.lane, place)
            topic = topic_of_killer(routing, self._rules) if routing and self._settings.dlq_topics else ""
            burial = Burial(lane.lane, lane.epoch, place, "crashed", "RelayCrashed", reason, topic)
            await bury_or_park(store, [burial], self._settings)
            self._writing.watch.died([routing.type] if routing else [])
            log.error("the event at %d of lane %d is a dead letter: %s", place, lane.lane, reason)


def in_turn(claims: Iterable[LeftClaim]) -> list[LeftClaim]:
    """The order in which to try them. Claims of suspects with nothing beside them say the most, the smallest of all."""
    return sorted(claims, key=lambda claim: (not claim.alone, claim.rows if claim.alone else 0, claim.first))


def next_stretch(lane: Lane) -> tuple[int, int, bool] | None:
    """What to read next in this lane: up to which row, how many, and whether they are suspects; nothing when done.

    A lane is read from zero also here. What lies below the suspects was not in flight, but only who has read it knows
    which keys have to wait, and the suspects behind those of their own key (O-block).
    """
    while lane.suspects:
        claim = lane.suspects[0]
        if lane.order.floor < claim.first - 1:
            return claim.first - 1, WHOLE, False
        if lane.order.floor < claim.last:
            return claim.last, max(claim.rows // 2, 1), True
        lane.suspects.pop(0)
    return None
