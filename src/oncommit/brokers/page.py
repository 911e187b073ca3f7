"""The table of the page on brokers, made from what the adapters declare.

``python -m oncommit.brokers.page PAGE…`` makes it new; without a page, it is printed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from oncommit.brokers.base import Capabilities
from oncommit.brokers.registry import ADAPTERS, make_broker

BEGIN: Final = "<!-- brokers: begin -->\n"
END: Final = "<!-- brokers: end -->\n"


def page_part() -> str:
    """What stands between the markers of the page."""
    schemes: dict[str, list[str]] = {}
    for scheme, adapter in ADAPTERS.items():
        schemes.setdefault(adapter.module, []).append(scheme)
    told = {module: make_broker(f"{names[0]}://localhost").capabilities for module, names in schemes.items()}
    heads = [_title(one) for one in told.values()]
    rows = [
        ["", *heads],
        ["---"] * (len(heads) + 1),
        ["URL", *(", ".join(f"`{name}://`" for name in names) for names in schemes.values())],
        ["extra", *(f"`oncommit[{ADAPTERS[names[0]].extra}]`" for names in schemes.values())],
        ["acknowledged means", *(one.acknowledged_means for one in told.values())],
        ["many of a key in flight", *(_yes(told=one.ordered_pipelining) for one in told.values())],
        ["drops a repeated id", *(_yes(told=one.deduplicates) for one in told.values())],
        ["a batch as a whole", *(_yes(told=one.transactional_batch) for one in told.values())],
        ["delays by itself", *(_yes(told=one.delayed_delivery) for one in told.values())],
        ["largest message", *(_size(one.max_message) for one in told.values())],
        ["CloudEvents headers", *(f"`{one.binding.prefix}…`" for one in told.values())],
    ]
    return "\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n\n"


def refresh(page: str) -> str:
    """The page with what stands between its markers made new."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks its markers: {BEGIN.strip()} … {END.strip()}")
    return f"{head}{begin}{page_part()}{end}{tail}"


def _title(told: Capabilities) -> str:
    return {"nats": "NATS", "rabbitmq": "RabbitMQ"}.get(told.name, told.name.capitalize())


def _yes(*, told: bool) -> str:
    return "yes" if told else "no"


def _size(limit: int | None) -> str:
    return "as the server says" if limit is None else f"{limit:,} bytes".replace(",", " ")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.stdout.write(page_part())
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(refresh(file.read_text(encoding="utf-8")), encoding="utf-8")
