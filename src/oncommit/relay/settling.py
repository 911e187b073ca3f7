"""Settling goes on without today's partition of the archive: the archive must never stop delivery.

Failure story. Partitions are made a week ahead. Where today's is missing after all (no relay ran for a week, somebody
dropped it), PostgreSQL refuses the whole settle. Then the partition is made and the settle tried again. Where it cannot
be made (rights, a lock, a detached table of its name), events are settled without a copy in the archive, and the log
says so for each batch, because what is not archived can neither be listed nor replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import asyncpg

from oncommit.relay.store import Store

log: Final = logging.getLogger("oncommit.relay")


async def settle(
    store: Store, epochs: dict[int, int], sent: Sequence[tuple[int, int, float]], *, batch: int, archive: bool
) -> int:
    """Settle a batch; how many rows went."""
    try:
        return (await store.settle(epochs, sent, batch=batch, archive=archive))[0]
    except asyncpg.CheckViolationError as error:
        log.warning("the archive takes no events of today, its partition is made now: %s", error)
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
