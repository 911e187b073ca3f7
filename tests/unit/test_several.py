"""Several loops as one."""

from __future__ import annotations

import asyncio

import pytest

from oncommit.errors import ConfigError
from oncommit.runtime.several import Several


class Told:
    """A loop that notes down what happens to it; ``drain`` lets it end, ``error`` is what it ends with."""

    def __init__(self, name: str, log: list[str], error: Exception | None = None) -> None:
        self.name = name
        self.log = log
        self.error = error
        self.begun = asyncio.Event()
        self.stopping = asyncio.Event()
        self.drained = asyncio.Event()
        self.drained.set()

    async def run(self) -> None:
        self.log.append(f"{self.name} runs")
        self.begun.set()
        try:
            if self.error is not None:
                raise self.error
            await self.stopping.wait()
            await self.drained.wait()
        except asyncio.CancelledError:
            self.log.append(f"{self.name} cancelled")
            raise
        self.log.append(f"{self.name} ended")

    def stop(self) -> None:
        self.log.append(f"{self.name} stops")
        self.stopping.set()

    async def check(self) -> None:
        self.log.append(f"{self.name} checked")


async def test_they_are_stopped_one_after_the_other() -> None:
    log: list[str] = []
    one, two = Told("one", log), Told("two", log)
    one.drained.clear()
    loops = Several(one, two)
    await loops.check()
    task = asyncio.create_task(loops.run())
    await two.begun.wait()
    loops.stop()
    await one.stopping.wait()
    await asyncio.sleep(0)
    assert log == ["one checked", "two checked", "one runs", "two runs", "one stops"]
    one.drained.set()
    await task
    assert log[4:] == ["one stops", "one ended", "two stops", "two ended"]


async def test_the_error_of_one_ends_all_and_is_raised() -> None:
    log: list[str] = []
    loops = Several(Told("one", log), Told("two", log, LookupError("no")), Told("three", log))
    with pytest.raises(LookupError, match="no"):
        await loops.run()
    assert [line for line in log if "ended" in line] == ["one ended", "three ended"]


async def test_cancelled_it_leaves_nobody_behind() -> None:
    log: list[str] = []
    one, two = Told("one", log), Told("two", log)
    task = asyncio.create_task(Several(one, two).run())
    await one.begun.wait()
    await two.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(log[2:]) == ["one cancelled", "two cancelled"]


async def test_as_a_context_manager_and_nested() -> None:
    log: list[str] = []
    one, two = Told("one", log), Told("two", log)
    async with Several(Several(one), two):
        await one.begun.wait()
        await two.begun.wait()
    assert log[-2:] == ["two stops", "two ended"]


@pytest.mark.parametrize("thing", [None, 5, object(), Told])
def test_what_cannot_be_run_is_refused(thing: object) -> None:
    with pytest.raises(ConfigError, match="cannot be run: it needs run"):
        Several(thing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one"):
        Several()
