"""Which lanes a relay should have. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

LANES: Final = 64
URGENT_LANES: Final = 8
ALL_LANES: Final = LANES + URGENT_LANES


def is_urgent(lane: int) -> bool:
    """Whether this lane carries events of priority above 5."""
    return lane >= LANES


class Share(msgspec.Struct, frozen=True):
    """What to do about the lanes of one sink."""

    take: int
    """How many more at most of the normal lanes."""
    take_urgent: int
    """And of the urgent ones."""
    give_back: tuple[int, ...]


def fair_share(owned: Collection[int], relays: int) -> Share:
    """With this many living relays, itself included. Normal and urgent lanes are shared each on their own.

    Handing back takes the highest lanes first, so that two relays that rebalance at once agree on nothing and still end
    up fair: who has too many gives, who has too few takes what is free.
    """
    normal = _split(sorted(lane for lane in owned if not is_urgent(lane)), LANES, relays)
    urgent = _split(sorted(lane for lane in owned if is_urgent(lane)), URGENT_LANES, relays)
    return Share(take=normal[0], take_urgent=urgent[0], give_back=(*normal[1], *urgent[1]))


def _split(owned: Sequence[int], lanes: int, relays: int) -> tuple[int, tuple[int, ...]]:
    allowed = -(-lanes // max(relays, 1))
    return max(allowed - len(owned), 0), tuple(owned[allowed:])
