"""Servers with settings of their own that several files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncommit.testing.plugin import not_to_be_had
from oncommit.testing.servers import ServerUnavailable
from oncommit.testing.servers import kafka as kafka_server
from tests.brokers.kafkas import ACCESS, KafkaBench


@pytest.fixture(scope="session")
def kafka_bench() -> Iterator[KafkaBench]:
    try:
        with kafka_server(durable=True, settings=ACCESS, logins={"app": "right"}, proxied=True) as server:
            yield KafkaBench(server)
    except ServerUnavailable as error:
        not_to_be_had(error)
