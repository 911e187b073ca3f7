"""``oncommit events replay``: archived events again.

Failure story. The first Ctrl-C lets the batch that is under way end, and says where to go on; a second one ends at
once. A connection that is lost ends it with the last place that is certain.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from oncommit.cli.moments import MOMENT
from oncommit.cli.options import json_option, settings_options
from oncommit.cli.output import print_json, print_table
from oncommit.config import Settings
from oncommit.errors import OncommitError

if TYPE_CHECKING:
    from oncommit.db.dsn import Connection
    from oncommit.ops.replay import ReplayFilter, ReplayPlan, ReplayStep

INTERRUPTED: Final = 130
Shown = Callable[[int], None]


@click.command("replay", epilog="Example: oncommit events replay --from 2h --type order.placed --dry-run")
@click.option("--from", "start", type=MOMENT, required=True, help="Archived then or later: 2h, 7d, 2026-01-31T08:00Z.")
@click.option("--to", "end", type=MOMENT, help="Archived before; the same forms. Default: now.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Any of these event types.")
@click.option("--aggregate", metavar="TYPE[/ID]", help="Of these things, or of this one.")
@click.option("--topic", help="With this topic set; one that the relay resolves is not on record.")
@click.option("--sink", help="For this broker.")
@click.option("--to-topic", metavar="TOPIC", help="Publish to this topic instead.")
@click.option("--after", metavar="PLACE", help="Go on behind this place, as a replay that was stopped has printed it.")
@click.option("--older", is_flag=True, help="Also from before the time for which everything is kept.")
@click.option("--dry-run", is_flag=True, help="Only say what would be published.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@settings_options
@json_option
def replay_command(
    settings: Settings,
    aggregate: str | None,
    after: str | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **wanted: Any,
) -> int:
    """Publish archived events again, as new events with new ids.

    Each names the old one in its header replay_of; everything else is as it was. They go in the order in which they
    went before, behind what waits now. Consumers handle them as new: no inbox knows their ids.
    """
    from oncommit.ops.replay_filter import ReplayFilter, ReplayPlace

    aggregate_type, _, aggregate_id = (aggregate or "").partition("/")
    replay_filter = ReplayFilter(
        aggregate_type=aggregate_type or None,
        aggregate_id=aggregate_id or None,
        after=ReplayPlace.parse(after) if after else None,
        **wanted,
    )
    if not (dry_run or yes) and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("nobody can be asked here: say --yes, or --dry-run to see what would be published")
    return asyncio.run(_run(settings, replay_filter, dry_run=dry_run, yes=yes, as_json=as_json))


async def _run(settings: Settings, wanted: ReplayFilter, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    from oncommit.db.dsn import open_connection
    from oncommit.ops.replay import plan_replay

    async with open_connection(settings.require_database(), application="oncommit events replay") as connection:
        plan = await plan_replay(connection, wanted, schema=settings.schema)
        if dry_run and as_json:
            print_json(plan)
        if not as_json:
            _print_plan(plan, wanted)
        if dry_run or not plan.events:
            if as_json and not dry_run:
                print_json({"events": 0, "place": None, "done": True})
            return 0
        if not yes:
            click.confirm(f"Publish {plan.events} events again?", abort=True)
        return await _replay(connection, settings.schema, wanted, plan, as_json=as_json)


async def _replay(connection: Connection, schema: str, wanted: ReplayFilter, plan: ReplayPlan, *, as_json: bool) -> int:
    from oncommit.ops.replay import replay_events

    # The range that was counted and agreed to, no matter how long the answer took.
    counted = msgspec.structs.replace(wanted, end=plan.end)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, _stop, stopping)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _stop, stopping)
    step: ReplayStep | None = None
    stopped = False
    with _progress(plan.events, as_json=as_json) as show:
        try:
            async with aclosing(replay_events(connection, counted, schema=schema)) as steps:
                async for step in steps:
                    show(step.events)
                    if stopped := stopping.is_set():
                        break
        except OncommitError as error:
            if step is None:
                raise
            raise OncommitError(
                f"{error}. {step.events} events are published again; whether the batch behind them is, is not known. "
                f"To go on: --after {step.place}"
            ) from error
    done, events = not stopped, step.events if step else 0
    place = str(step.place) if step else None
    if as_json:
        print_json({"events": events, "place": place, "done": done})
    elif done:
        click.echo(f"{events} events are published again")
    else:
        click.echo(
            f"stopped: {events} of {plan.events} events are published again; to go on: --after {place}", err=True
        )
    return 0 if done else INTERRUPTED


def _stop(stopping: asyncio.Event) -> None:
    stopping.set()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):  # the next one ends at once
        loop.remove_signal_handler(number)


def _print_plan(plan: ReplayPlan, wanted: ReplayFilter) -> None:
    if not plan.events:
        click.echo("no events")
        return
    rows = [
        [str(group.events), group.event_type, wanted.to_topic or group.topic or "as the relay resolves it", group.sink]
        for group in plan.groups
    ]
    print_table(["EVENTS", "TYPE", "TOPIC", "SINK"], rows)
    if plan.first and plan.last:
        click.echo(f"{plan.events} events, archived from {plan.first.isoformat()} to {plan.last.isoformat()}")


def _progress(total: int, *, as_json: bool) -> AbstractContextManager[Shown]:
    """A bar on a terminal, nothing elsewhere."""
    if as_json or not sys.stderr.isatty():
        return nullcontext(lambda _events: None)
    return _Bar(total)


class _Bar:
    """A progress bar on stderr."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self._bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Shown:
        self._bar.start()
        return lambda events: self._bar.update(self._task, completed=events)

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()
