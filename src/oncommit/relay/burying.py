"""What becomes of events that nobody will try again by itself: they leave, or their key waits for an operator.

Failure story. Under "park_key" three statements follow each other: reservations that have lapsed end, events with a key
are parked, and what is left (events without a key) is buried. A relay that dies between any two leaves events that are
tried again, or parked; each statement can be run again after a lost answer. A parked head is seen by everybody as a row
that is not due, so a successor needs no rule of its own. A row that the table refuses to have changed cannot be parked;
it is buried, and its key goes on.

Copies for ``<topic>.dlq``, where they are wanted, are written with the record, in one statement. What cannot be copied
(the outbox refuses it, or this login may not insert there) is dead without a copy, and the log says so.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final

import asyncpg

from oncommit.relay.lanes import Lanes
from oncommit.relay.outcomes import Verdict
from oncommit.relay.settings import PARK_KEY, RelaySettings
from oncommit.relay.settling import REFUSED
from oncommit.relay.store import Burial, Store

NO_COPY: Final = (*REFUSED, asyncpg.InsufficientPrivilegeError)
log: Final = logging.getLogger("oncommit.relay")


async def bury_or_park(store: Store, burials: Sequence[Burial], settings: RelaySettings) -> None:
    """Write down that these are dead."""
    if settings.on_dead == PARK_KEY:
        for burial in burials:
            await _park(store, burial, copy=settings.dlq_topics)
    await _bury(store, burials, copy=settings.dlq_topics)


async def _bury(store: Store, burials: Sequence[Burial], *, copy: bool) -> None:
    """What the outbox refuses to have copied is found by halves, and is buried without a copy."""
    try:
        await store.bury(burials, copy=copy)
    except NO_COPY as error:
        if not copy:
            raise
        if len(burials) == 1:
            _log_no_copy(burials[0], error)
            await store.bury(burials)
            return
        for half in (burials[: len(burials) // 2], burials[len(burials) // 2 :]):
            await _bury(store, half, copy=True)


async def _park(store: Store, burial: Burial, *, copy: bool) -> None:
    """One by one: there are few, and one that the table refuses (see relay/settling.py) must not stop the others."""
    try:
        await store.unreserve([burial])
        try:
            parked = await store.park([burial], copy=copy)
        except NO_COPY as error:
            if not copy:
                raise
            _log_no_copy(burial, error)
            parked = await store.park([burial])
    except REFUSED as error:
        log.error("the event at %d cannot hold its key back: %s", burial.place, error)  # noqa: TRY400
        return
    if parked:
        log.error(
            "the event at %d of lane %d is a dead letter, and its key waits for an operator: "
            "`oncommit events list --state dead_letter` says why",
            burial.place,
            burial.lane,
        )


def _log_no_copy(burial: Burial, error: Exception) -> None:
    log.error("the dead event at %d gets no copy, since the outbox refuses it: %s", burial.place, error)


def hold_parked_keys(lanes: Lanes, verdict: Verdict, settings: RelaySettings) -> None:
    """Let the lanes know which keys wait from now on, before it is written down (O-outcome)."""
    for row, _ in verdict.burials:
        if settings.parks(row.ordering_key) and (lane := lanes.find(row.lane, row.epoch)):
            lane.order.failed(row, math.inf)
            if lane.order.is_full and math.isinf(lane.order.next_due()):
                log.error(
                    "lane %d stands still: %d of its keys wait for an operator, and it remembers no more "
                    "(most_blocked); replay or discard their dead letters, or raise it",
                    row.lane,
                    len(lane.order.blocked),
                )
