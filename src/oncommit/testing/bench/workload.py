"""The fixed workload that all benchmarks share. Decided once; a figure that gets better must not owe it to this file.

The business transaction: BEGIN, one INSERT, one UPDATE by key, COMMIT. The event: a JSON payload of 300 bytes about one
of 10 000 accounts, with the account as its aggregate, so that it has an ordering key.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from oncommit.message import Event

ACCOUNTS: Final = 10_000
WRITERS: Final = 16
BATCH: Final = 10_000
PAYLOAD_BYTES: Final = 300
SEED: Final = 20_260

# All names without a schema: each connection has the benchmark's schema, and no other, on its search path. The room
# left in the pages lets updates stay beside their row (HOT), as in any table that is updated this often.
BUSINESS_TABLES: Final = """
CREATE TABLE bench_account (
    id integer PRIMARY KEY,
    balance bigint NOT NULL,
    changed_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE bench_order (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account integer NOT NULL,
    cents bigint NOT NULL,
    note text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
"""
FILL_ACCOUNTS: Final = "INSERT INTO bench_account SELECT n, 0, now() FROM generate_series(0, $1::integer - 1) AS n"

INSERT_ORDER: Final = "INSERT INTO bench_order (account, cents, note) VALUES ($1, $2, $3)"
UPDATE_ACCOUNT: Final = "UPDATE bench_account SET balance = balance + $2, changed_at = now() WHERE id = $1"

_NOTE: Final = (
    "leave it with the neighbours on the ground floor, please, the bell is broken; thank you and until then, cheers"
)


class Order(msgspec.Struct, frozen=True):
    """One unit of business: what the transaction writes, and what its event tells."""

    number: int
    account: int
    cents: int
    note: str

    def payload(self) -> dict[str, Any]:
        """As JSON, 300 bytes exactly."""
        return {
            "order": f"{self.number:012d}",
            "account": f"{self.account:08d}",
            "cents": f"{self.cents:06d}",
            "currency": "EUR",
            "lines": [
                {"sku": "A-1001", "quantity": 2, "price": "4.95"},
                {"sku": "B-2002", "quantity": 1, "price": "10.00"},
            ],
            "note": self.note,
        }

    def event(self) -> Event[dict[str, Any]]:
        """The event that an application would add beside these rows."""
        return Event("order.placed", aggregate=("account", self.account), payload=self.payload())


def orders(keys: Iterator[int]) -> Iterator[Order]:
    """Orders without end, for the accounts that come."""
    for number in itertools.count(1):
        yield Order(number, next(keys), 100 + number % 9_000, _NOTE)


def uniform(seed: int = SEED, count: int = ACCOUNTS) -> Iterator[int]:
    """Each of 10 000 keys as likely as any other: the usual case, hardly any contention."""
    return _draw(random.Random(seed), lambda source: int(source.random() * count))


def zipf(seed: int = SEED, count: int = ACCOUNTS) -> Iterator[int]:
    """A few keys get most: rank r in proportion to 1/r."""
    weights = list(itertools.accumulate(1 / rank for rank in range(1, count + 1)))
    keys = range(count)
    return _draw(random.Random(seed), lambda source: source.choices(keys, cum_weights=weights)[0])


def one_key() -> Iterator[int]:
    """All the same key: the worst case for anything that keeps order."""
    return itertools.repeat(0)


def unique() -> Iterator[int]:
    """Never the same key twice."""
    return itertools.count()


def _draw(source: random.Random, take: Callable[[random.Random], int]) -> Iterator[int]:
    while True:
        yield take(source)
