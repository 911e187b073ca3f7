"""What was in flight when the owner of a lane died: tried apart from all else, to find the event that kills.

Failure story. Trying them may kill us too. Then our own claim, of at most half as many rows, tells our successor more
than those before it did; so claims of suspects come first, the smallest before all, and at last there is one of a
single event, which is charged. Where the connection breaks, the broker goes away, or the lease is lost, nobody is
charged: we, or our successor, go on from what the claims say, and a claim that has charged its event does so only once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from oncommit.relay.lane import Lane
from oncommit.relay.store import LeftClaim

WHOLE: Final = 1000


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
