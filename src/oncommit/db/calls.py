"""Database work as data: what to ask is decided without I/O, who asks is a driver.

A piece of work is a generator. It yields calls, gets their rows back and returns its result. The same generator runs
over every driver, sync and async, so that there is one copy of every decision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

Row = Sequence[Any]
Rows = Sequence[Row]


class Call(msgspec.Struct, frozen=True):
    """One statement with its parameters, written with ``$1`` placeholders."""

    sql: str
    parameters: Sequence[Any] = ()
    returns: bool = True
    """Whether it has rows to give; a driver does not ask for any otherwise."""


Work = Generator[Call, Rows, T]


def run(work: Work[T], execute: Callable[[Call], Rows]) -> T:
    """Do the work over a blocking driver."""
    try:
        call = next(work)
        while True:
            call = work.send(execute(call))
    except StopIteration as done:
        result: T = done.value
        return result


async def run_async(work: Work[T], execute: Callable[[Call], Awaitable[Rows]]) -> T:
    """Do the work over an asyncio driver."""
    try:
        call = next(work)
        while True:
            call = work.send(await execute(call))
    except StopIteration as done:
        result: T = done.value
        return result
