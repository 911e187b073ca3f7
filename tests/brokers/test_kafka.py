"""The adapter for Kafka in the conformance suite, against a real broker."""

from __future__ import annotations

import pytest

from oncommit.testing.conformance import Conformance
from tests.brokers.kafkas import KafkaBench


@pytest.fixture(scope="module")
def bench(kafka_bench: KafkaBench) -> KafkaBench:
    return kafka_bench


class TestKafka(Conformance):
    lacks = frozenset({"deduplicates", "transactional_batch"})
