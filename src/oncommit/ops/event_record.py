"""One event as the database has it on record, wherever it lies."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from oncommit import codec
from oncommit.ops.event_filter import Cursor

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One event: what it is, where it stands, what happened to it. Times carry their zone."""

    id: int | None
    """Its place in the write order. None while its time has not come."""
    event_id: UUID
    state: str
    """pending, optimistic, claimed, sent, failed or dead_letter."""
    sink: str
    lane: int | None
    """Which lane carries it. None while its time has not come."""
    priority: int
    event_type: str
    aggregate_type: str | None
    aggregate_id: str | None
    key: str | None
    """The ordering key: the explicit one, else ``type:id`` of the aggregate, else None."""
    topic: str | None
    """None: the relay's template decides."""
    schema_version: int
    correlation_id: str | None
    causation_id: str | None
    saga_id: UUID | None
    attempts: int
    crashes: int
    """How often a relay died with this event alone in flight."""
    max_attempts: int | None
    created_at: datetime
    available_at: datetime | None
    """Not before this time: end of a reservation or of a back-off, or the event's own not-before time."""
    claimed_by: str | None
    claimed_at: datetime | None
    sent_at: datetime | None
    archived_at: datetime | None
    failed_at: datetime | None
    """When it became a dead letter."""
    last_error: str | None
    content_type: str
    headers: Mapping[str, str] | None = None
    """None where they were not asked for."""
    payload_json: str | None = None
    """The JSON text as it was written. None where it was not asked for, is no JSON, or there is none."""
    data: bytes | None = None
    """A payload that is no JSON. None where it was not asked for."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> EventRecord:
        """From a row of the queries in ``events/``."""
        values = {name: _zoned(value) for name, value in row.items()}
        values["payload_json"] = values.pop("payload")
        if values["headers"] is not None:
            values["headers"] = codec.decode(values["headers"])
        return cls(**values)

    @property
    def aggregate(self) -> str | None:
        """``type/id``, as the command line takes it."""
        return None if self.aggregate_type is None else f"{self.aggregate_type}/{self.aggregate_id}"

    @property
    def payload(self) -> Any:
        """The payload: plain values, or bytes. None where it was not asked for."""
        return codec.decode(self.payload_json) if self.payload_json is not None else self.data

    @property
    def cursor(self) -> Cursor:
        """The place of this event in a list; give it as ``after`` to get what follows."""
        return Cursor(self.created_at, self.id, self.event_id)

    def to_json(self, *, with_payload: bool = False) -> dict[str, Any]:
        """The fields that ``--json`` prints, ready for ``msgspec.json.encode``; documented in the guide on events."""
        values = {
            name: _plain(getattr(self, name))
            for name in self.__struct_fields__
            if name not in ("headers", "payload_json", "data", "content_type")
        }
        values |= {"aggregate": self.aggregate, "cursor": str(self.cursor)}
        if with_payload:
            values["content_type"] = self.content_type
            values["headers"] = self.headers
            # The text as it stands: decoding it would cost long numbers their last digits.
            values["payload"] = msgspec.Raw(self.payload_json.encode()) if self.payload_json is not None else None
            values["data_base64"] = base64.b64encode(self.data).decode() if self.data is not None else None
        return values


def _zoned(value: Any) -> Any:
    # asyncpg has the ends of time without a zone.
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc_text(value)
    return str(value) if isinstance(value, UUID) else value


def utc_text(moment: datetime) -> str:
    """ISO 8601 in UTC; PostgreSQL's infinity, which is no date, by its name."""
    if is_infinite(moment):
        return "infinity" if moment > _EPOCH else "-infinity"
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def is_infinite(moment: datetime) -> bool:
    """Whether this stands for PostgreSQL's infinity or -infinity."""
    return moment.replace(tzinfo=None) in (datetime.max, datetime.min)  # noqa: DTZ901 - as asyncpg gives them
