"""Moments as people type them: ``15m`` ago, a day, or a time with its zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

_AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


class _Moment(click.ParamType["datetime"]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Never a naive time: 8 o'clock is another moment for the server, the database and the reader."""
        if isinstance(value, datetime):
            return value
        try:
            if match := _AGO.fullmatch(value):
                return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
            moment = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time; say 15m, 2h, 7d (ago) or 2026-01-31T08:00Z", param, ctx)
        if _DAY.fullmatch(value):
            return moment.replace(tzinfo=UTC)
        if moment.utcoffset() is None:
            self.fail(f"{value!r} has no time zone; add one, such as {value}Z for UTC", param, ctx)
        return moment


MOMENT: Final = _Moment()
