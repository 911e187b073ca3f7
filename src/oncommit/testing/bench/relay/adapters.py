"""Adapters that transport nothing: what a relay does without a broker, and what it would have sent."""

from __future__ import annotations

from collections.abc import Sequence

from oncommit.brokers.base import Capabilities, Message, Outcome


class Acknowledging:
    """Acknowledges at once. It promises what the adapter it stands for does, so that headers and waves are the same."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def ping(self) -> None:
        """It is always there."""

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:  # noqa: ARG002 - the contract
        """Yes to all."""
        return [None] * len(batch)


class Collecting(Acknowledging):
    """Keeps the batches as the relay made them."""

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__(capabilities)
        self.batches: list[Sequence[Message]] = []
        self.events = 0

    async def publish(self, batch: Sequence[Message], *, timeout: float) -> Sequence[Outcome]:
        """Yes to all, and note them down."""
        self.batches.append(batch)
        self.events += len(batch)
        return await super().publish(batch, timeout=timeout)
