"""All cases in one class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncommit.testing.conformance.arrival import Arrival
from oncommit.testing.conformance.bench import Bench
from oncommit.testing.conformance.life import Life
from oncommit.testing.conformance.lines import Lines
from oncommit.testing.conformance.order import Order
from oncommit.testing.conformance.outages import Outages
from oncommit.testing.conformance.promises import Promises
from oncommit.testing.conformance.refusals import Refusals


@pytest.mark.asyncio
class Conformance(Outages, Lines, Life, Promises, Refusals, Order, Arrival):
    """Everything an adapter has to do. Subclass it beside a fixture ``bench`` of the module's scope.

    The bases run from the last to the first: what is simple comes before what hurts.
    """

    @pytest.fixture(autouse=True)
    def _standing(self, bench: Bench) -> Iterator[None]:
        """A case that fails leaves the server to the next one as it should be."""
        yield
        bench.server.resume()
        if not bench.server.alive():
            bench.server.start()
