"""What became of events is written down also where the tables refuse a part of it: one odd row must not stop the rest.

Failure story.

- Today's partition of the archive is missing, though they are made a week ahead (no relay ran for a week, somebody
  dropped it). PostgreSQL refuses the whole settle; the partition is made and the settle tried again. Where it cannot be
  made (rights, a lock, a detached table of its name), events are settled without a copy in the archive, and the log
  says so for each batch, because what is not archived can neither be listed nor replayed.
- Some row is one that the tables would never have taken, had its writer not vouched for it by giving its lane: then the
  archive refuses it (too long for an index, say), or the outbox refuses to have it changed. It is found by halves. What
  was sent leaves without a copy; what has failed is a dead letter, since its attempts cannot be counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import asyncpg

from oncommit.relay.outcomes import error_text
from oncommit.relay.store import Burial, Failure, Store

log: Final = logging.getLogger("oncommit.relay")

Sent = Sequence[tuple[int, int, float]]
REFUSED: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.GeneratedAlwaysError,
)
"""The row's fault, and not that of the moment."""


async def settle(store: Store, epochs: dict[int, int], sent: Sent, *, batch: int, archive: bool) -> int:
    """Settle a batch; how many rows went."""
    try:
        return (await store.settle(epochs, sent, batch=batch, archive=archive))[0]
    except asyncpg.CheckViolationError as error:
        log.warning("the archive takes no events of today, its partition is made now: %s", error)
    except REFUSED:
        return await _by_halves(store, epochs, sent, batch)
    try:
        await store.make_partition()
        return (await store.settle(epochs, sent, batch=batch, archive=archive))[0]
    except asyncpg.PostgresError as error:
        log.error(  # noqa: TRY400 - the cause is said, where it was raised says nothing
            "%d events are settled without a copy in the archive, since today's partition is missing and cannot be "
            "made: %s. Run `SELECT oncommit.make_archive_partition(current_date)` as the owner of the schema.",
            len(sent),
            error,
        )
    return (await store.settle(epochs, sent, batch=batch, archive=False))[0]


async def _by_halves(store: Store, epochs: dict[int, int], sent: Sent, batch: int) -> int:
    """Settle what the archive takes with a copy, and the others without."""
    if len(sent) == 1:
        log.error("the event at %d is settled without a copy in the archive, which refuses it", sent[0][1])
        return (await store.settle(epochs, sent, batch=batch, archive=False))[0]
    gone = 0
    for half in (sent[: len(sent) // 2], sent[len(sent) // 2 :]):
        try:
            gone += (await store.settle(epochs, half, batch=batch, archive=True))[0]
        except REFUSED:
            gone += await _by_halves(store, epochs, half, batch)
    return gone


async def fail(store: Store, failures: Sequence[Failure]) -> None:
    """Write down what is to be tried again; what cannot be, is dead."""
    try:
        await store.fail(failures)
    except REFUSED as error:
        if len(failures) == 1:
            lane, epoch, place, *_ = failures[0]
            log.error("the event at %d is a dead letter: that it failed cannot be written: %s", place, error)  # noqa: TRY400
            await store.bury([Burial(lane, epoch, place, "permanent", type(error).__name__, error_text(error))])
            return
        for half in (failures[: len(failures) // 2], failures[len(failures) // 2 :]):
            await fail(store, half)
