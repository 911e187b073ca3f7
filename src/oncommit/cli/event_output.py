"""Events on the screen: a table, one in full, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from oncommit.cli.output import age, print_json, print_table, visible
from oncommit.ops.event_record import EventRecord, is_infinite, utc_text

_HEADS = ["CREATED", "AGE", "STATE", "TYPE", "AGGREGATE", "KEY", "SINK", "LANE", "TRIES", "EVENT ID", "LAST ERROR"]
_SPARE = ["CREATED", "SINK", "LANE"]
_ERROR_WIDTH = 60


def print_events(records: Sequence[EventRecord], *, limit: int, with_payload: bool, as_json: bool) -> None:
    """A page of a list."""
    if as_json:
        print_json([record.to_json(with_payload=with_payload) for record in records])
        return
    if not records:
        click.echo("no events")
        return
    now = datetime.now(UTC)
    print_table(_HEADS, [_row(record, now) for record in records], spare=_SPARE)
    if len(records) == limit:
        click.echo(f"{limit} shown, there may be more: --after {records[-1].cursor}", err=True)


def _row(record: EventRecord, now: datetime) -> list[str]:
    default_key = record.aggregate and f"{record.aggregate_type}:{record.aggregate_id}"
    return [
        utc_text(record.created_at.replace(microsecond=0)).replace(".000000", ""),
        age(record.created_at, now),
        _state(record, now),
        record.event_type,
        record.aggregate or "",
        "" if record.key is None or record.key == default_key else record.key,
        record.sink,
        "" if record.lane is None else str(record.lane),
        str(record.attempts),
        str(record.event_id),
        _shortened(record.last_error or ""),
    ]


def _state(record: EventRecord, now: datetime) -> str:
    if record.available_at and record.available_at > now and not is_infinite(record.available_at):
        return f"{record.state} ({age(record.available_at, now)})"
    return record.state


def _shortened(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _ERROR_WIDTH else line[: _ERROR_WIDTH - 1] + "…"


def print_event(record: EventRecord, *, as_json: bool) -> None:
    """One event in full."""
    if as_json:
        print_json(record.to_json(with_payload=True))
        return
    now = datetime.now(UTC)
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if value is None or name in ("headers", "payload_json", "data"):
            continue
        if isinstance(value, datetime):
            value = _moment(value, now)
        click.echo(f"{name:15} {visible(str(value))}")
    for header, text in (record.headers or {}).items():
        click.echo(f"{'header':15} {visible(f'{header}: {text}')}")
    _print_payload(record)


def _moment(moment: datetime, now: datetime) -> str:
    if is_infinite(moment):
        return utc_text(moment)
    passed = age(moment, now)
    return f"{utc_text(moment)} ({passed})" if moment > now else f"{utc_text(moment)} ({passed} ago)"


def _print_payload(record: EventRecord) -> None:
    if record.data is not None:
        click.echo(f"{'payload':15} {len(record.data)} bytes of {record.content_type}; --json prints them as base64")
    elif record.payload_json is None:
        click.echo(f"{'payload':15} none")
    else:
        click.echo("payload")
        for line in msgspec.json.format(record.payload_json, indent=2).splitlines():
            click.echo(f"  {visible(line)}")
