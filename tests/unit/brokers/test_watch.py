"""What is told of a batch, and that telling it decides nothing."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oncommit.brokers import tracing
from oncommit.brokers.base import Message, Outcome
from oncommit.brokers.dispatcher import Dispatcher
from oncommit.brokers.row import FetchedRow
from oncommit.brokers.watch import Watch
from oncommit.errors import BrokerUnavailable, PublishFailed, PublishRejected, TopicUnavailable
from oncommit.metrics import Metrics
from oncommit.retry import Backoff
from oncommit.testing.brokers import FailingBroker, RecordingBroker
from oncommit.topics import default_rules

WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def row(number: int, *, type: str = "placed", key: str | None = None, headers: str = "{}") -> FetchedRow:
    return FetchedRow(
        "main", 1, 1, number, uuid4(), type, None, None, None, "application/json", None, None, None, 1, 5, 0, 0, None,
        WRITTEN, key, 0.0, headers, b"{}", True, 2,
    )  # fmt: skip


def values(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        name: {labels: series.count if series.counts else series.value for labels, series in found.items()}
        for name, found in metrics.snapshot().items()
        if found
    }


def dispatcher(broker: Any, watch: Watch) -> Dispatcher:
    rules = default_rules("nats")
    return Dispatcher(broker, rules, source="test", backoff=Backoff(), uniform=random.uniform, watch=watch)


def judge(message: Message) -> Outcome:
    answers: dict[str, Outcome] = {
        "events.gone": BrokerUnavailable("gone"),
        "events.nowhere": TopicUnavailable("nowhere"),
        "events.large": PublishRejected("large"),
        "events.unlucky": PublishFailed("unlucky"),
    }
    return answers.get(message.topic)


async def test_a_batch_is_counted_by_type_result_and_reason() -> None:
    metrics = Metrics()
    sender = dispatcher(FailingBroker(judge), Watch(metrics, "main", "nats"))
    types = ["placed", "placed", "paid", "gone", "nowhere", "large", "unlucky", "unlucky"]
    rows = [row(number, type=kind) for number, kind in enumerate(types)]
    await sender.publish([*rows, row(20, type="large", key="k"), row(21, type="placed", key="k")], timeout=1.0)
    found = values(metrics)
    assert found["outbox_published_events_total"] == {("placed",): 2, ("paid",): 1}
    assert found["outbox_publish_duration_seconds"] == {("placed",): 2, ("paid",): 1}
    assert found["outbox_processing_delay_seconds"] == {(): 3}
    assert found["outbox_publish_attempts_total"] == {("success",): 3, ("failure",): 6}  # the last was not tried
    assert found["outbox_failed_events_total"] == {
        ("gone", "unavailable"): 1,
        ("nowhere", "topic"): 1,
        ("large", "rejected"): 2,
        ("unlucky", "failed"): 2,
    }


async def test_the_delay_is_from_the_writing_and_never_below_nothing() -> None:
    for later, wanted in ((90.0, 90.0), (-5.0, 0.0)):
        metrics = Metrics()
        now = (WRITTEN + timedelta(seconds=later)).timestamp()
        watch = Watch(metrics, "main", "nats", clock=lambda now=now: now)  # type: ignore[misc]
        await dispatcher(RecordingBroker(), watch).publish([row(1)], timeout=1.0)
        assert metrics.snapshot()["outbox_processing_delay_seconds"][()].value == wanted


class Broken(Metrics):
    def add(self, *what: Any) -> None:
        raise OSError("no room for a number")


class LogThatRaises(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(f"no room for {record.msg}")


@pytest.fixture
def raising_log() -> Iterator[None]:
    handler = LogThatRaises()
    logging.getLogger("oncommit").addHandler(handler)
    yield
    logging.getLogger("oncommit").removeHandler(handler)


async def test_a_metric_that_fails_is_no_failed_publish(caplog: pytest.LogCaptureFixture) -> None:
    broker = RecordingBroker()
    watch = Watch(Broken(), "main", "nats")
    for _ in range(2):
        published = await dispatcher(broker, watch).publish([row(1), row(2)], timeout=1.0)
        assert [outcome for _, _, outcome in published] == [None, None]
    watch.claimed(1)
    watch.died(["placed"])
    assert len(broker.messages) == 4
    assert [record.message for record in caplog.records if "incomplete" in record.message] == [
        caplog.records[-1].message
    ]


@pytest.mark.usefixtures("raising_log")
async def test_a_log_that_fails_is_no_failed_publish() -> None:
    published = await dispatcher(RecordingBroker(), Watch(Broken(), "main", "nats")).publish([row(1)], timeout=1.0)
    assert [outcome for _, _, outcome in published] == [None]

    class Bug(RecordingBroker):
        async def publish(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

    published = await dispatcher(Bug(), Watch(Metrics(), "main", "nats")).publish([row(1)], timeout=1.0)
    assert isinstance(published[0][2], PublishFailed)


# ── Spans ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Finished spans, of a provider that this test alone has."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter.get_finished_spans


async def test_a_batch_is_one_span_that_links_to_its_events(spans: Callable[[], Any]) -> None:
    broker = RecordingBroker()
    traced = f'{{"traceparent": "{PARENT}"}}'
    rows = [row(1, headers=traced), row(2, headers=traced), row(3)]
    await dispatcher(broker, Watch(Metrics(), "audit", "nats")).publish(rows, timeout=1.0)
    (span,) = spans()
    assert (span.name, span.kind) == ("outbox publish", trace.SpanKind.PRODUCER)
    assert span.attributes["messaging.system"] == "nats"
    assert span.attributes["messaging.batch.message_count"] == span.attributes["oncommit.sent"] == 3
    assert span.attributes["oncommit.sink"] == "audit"
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["b7ad6b7169203331"]
    assert span.status.is_ok
    assert span.end_time >= span.start_time
    # What travels is what the writer stored, not the span of the relay.
    assert [message.headers.get("traceparent") for message in broker.messages] == [PARENT, PARENT, None]


async def test_a_span_says_that_something_failed_and_its_links_have_a_cap(spans: Callable[[], Any]) -> None:
    parents = [f"00-{number:032x}-{number:016x}-01" for number in range(1, tracing.MOST_LINKS + 20)]
    rows = [row(number, headers=f'{{"traceparent": "{one}"}}') for number, one in enumerate(parents)]
    watch = Watch(Metrics(), "main", "nats")
    await dispatcher(FailingBroker(judge), watch).publish([*rows, row(999, type="unlucky")], timeout=1.0)
    (span,) = spans()
    assert not span.status.is_ok
    assert span.attributes["oncommit.sent"] == len(rows)
    assert len(span.links) == tracing.MOST_LINKS


async def test_a_tracer_that_fails_is_no_failed_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no tracer today")

    monkeypatch.setattr(trace, "get_tracer", broken)
    metrics = Metrics()
    published = await dispatcher(RecordingBroker(), Watch(metrics, "main", "nats")).publish([row(1)], timeout=1.0)
    assert [outcome for _, _, outcome in published] == [None]
    assert values(metrics)["outbox_publish_attempts_total"] == {("success",): 1}
