"""What the page shows of each benchmark: a table and a plot, from the JSON that the commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.svg import Bar, Group, chart

Result = dict[str, Any]

PACKAGES = {
    "oncommit": "oncommit",
    "asyncpg": "asyncpg",
    "psycopg": "psycopg",
    "sqlalchemy": "SQLAlchemy",
    "django": "Django",
    "nats-py": "nats-py",
    "redis": "redis-py",
    "aio-pika": "aio-pika",
    "confluent-kafka": "confluent-kafka",
}
SIDES = {"direct": "side", "adapter": "side", "database": "side", "relay": "ours", "reference": "other"}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown; all columns but the first to the right."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def verdict(gates: Sequence[Result], of: str, *, least: bool = True) -> str:
    """What a figure has to be, and whether it is."""
    gate = next((one for one in gates if one["of"] == of), None)
    if gate is None:
        return ""
    return f"{'≥' if least else '≤'} {gate['gate']:g} {'met' if gate['passed'] else '**missed**'}"


def machine(results: Sequence[Result]) -> str:
    """Where it was measured, with which versions."""
    about = results[0]["about"]
    found = {key: value for result in results for key, value in result["about"].items()}
    packages = ", ".join(f"{name} {found[key]}" for key, name in PACKAGES.items() if key in found)
    loads = [result["load_before"] for result in results]
    return (
        f"{about['system']}, {about['cores']} cores; PostgreSQL {about['postgresql']} (fsync {about['fsync']}, "
        f"synchronous_commit {about['synchronous_commit']}, shared_buffers {about['shared_buffers']}); Python "
        f"{about['python']}, {packages}. Load before the measurements {min(loads):g} to {max(loads):g}.\n"
    )


def spread(low_high: Sequence[float]) -> str:
    """From to."""
    low, high = low_high
    return f"{low:.2f} to {high:.2f}"


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────


def write_name(result: Result) -> str:
    """A driver, or many at once."""
    what = f", {result['batch']} at once" if "batch" in result else ""
    return result["driver"] + (" (usual schema)" if result["schema"] == "usual" else "") + what


def write_table(results: Sequence[Result]) -> str:
    """One row a driver."""
    rows = []
    for result in results:
        base, other = ("raw_events_per_s", "events_per_s") if "batch" in result else ("without_per_s", "with_per_s")
        gate = f"≥ {result['gate']:g} {'met' if result['passed'] else '**missed**'}" if "gate" in result else ""
        unit = "events/s, one call" if "batch" in result else "commits/s"
        rows.append(
            [
                f"`{write_name(result)}`",
                f"{result[base]:,.0f} {unit}",
                f"{result[other]:,.0f}",
                f"**{result['ratio']:.2f}**",
                spread(result["spread"]),
                gate,
            ]
        )
    text = table(["driver", "without an event, or raw rows", "with", "ratio", "pairs", "gate"], rows)
    found = [result for result in results if "batch" in result and result["schema"] == "oncommit"]
    for batch in found:
        memory = batch.get("memory_growth_bytes")
        text += (
            f"\nWhere the hand has to make its columns from the same orders (ids, JSON) as well, it writes "
            f"{batch['raw_built_events_per_s']:,.0f} rows a second, and `add` {batch['ratio_built']:.2f} of that."
        )
        if memory is not None:
            text += f" The call with {batch['batch']:,} events made the process grow by {memory / 2**20:.0f} MiB.\n"
    return text


def write_plot(results: Sequence[Result]) -> str:
    """Ratios."""
    bars = [
        Bar(
            write_name(result),
            result["ratio"],
            f"{result['ratio']:.2f}",
            "other" if result["schema"] == "usual" else "bad" if result.get("passed") is False else "ours",
            *result["spread"],
            gate=result.get("gate"),
        )
        for result in results
    ]
    title = "Commits with an event, by commits without (line: its pairs; dashed: what it has to be)"
    return chart(title, "ratio", [Group("", bars)])


# ── The relay ─────────────────────────────────────────────────────────────────────────────────────


def relay_name(result: Result) -> str:
    """Broker, and what is out of the ordinary."""
    keys = {"uniform": "", "zipf": ", Zipf keys", "1": ", one key", "unique": ", unique keys"}[result["keys"]]
    size = "" if result["payload_bytes"] == 300 else f", {result['payload_bytes'] / 1e6:g} MB each"
    return result["broker"] + keys + size


def relay_table(results: Sequence[Result]) -> str:
    """One row a broker and workload."""
    rows = [
        [
            relay_name(result),
            f"{result['events']:,}",
            f"{result['direct_per_s']:,.0f}",
            f"{result['adapter_per_s']:,.0f}",
            f"{result['database_per_s']:,.0f}",
            f"**{result['relay_per_s']:,.0f}**",
            f"**{result['ratio']:.2f}** ({spread(result['spread'])}) {verdict(result['gates'], 'ratio')}",
            f"{result['adapter_ratio']:.2f}",
            f"{result['reference_per_s']:,.0f}",
            f"{result['factor']:g} {verdict(result['gates'], 'factor')}",
            f"{result['cpu_us_per_event']:g}",
            f"{result['peak_rss_mb']:g} {verdict(result['gates'], 'peak_rss_mb', least=False)}",
        ]
        for result in results
    ]
    heads = [
        "",
        "events",
        "direct",
        "adapter",
        "database",
        "relay",
        "ratio",
        "to adapter",
        "reference",
        "factor",
        "CPU µs an event",
        "MB",
    ]
    brokers = {
        result["broker"]: f"- {result['about']['broker_version']}: {result['about']['broker_storage']}; "
        f"{result['about']['broker_durability']}."
        for result in results
    }
    return table(heads, rows) + "\n" + "\n".join(brokers.values()) + "\n" + shares_of_uniform(results)


def note(result: Result, side: str) -> str:
    """What is written behind a bar."""
    share = f" ({result['ratio']:.2f} of the ceiling)" if side == "relay" else ""
    return f"{result[f'{side}_per_s']:,.0f}{share}"


def shares_of_uniform(results: Sequence[Result]) -> str:
    """How other ways of sharing keys compare."""
    plain = {
        result["broker"]: result["relay_per_s"]
        for result in results
        if result["keys"] == "uniform" and result["payload_bytes"] == 300
    }
    found = [
        f"{relay_name(result)} {result['relay_per_s'] / plain[result['broker']]:.2f}"
        for result in results
        if result["keys"] != "uniform" and result["broker"] in plain
    ]
    return f"\nOf the rate with uniform keys: {'; '.join(found)}.\n" if found else ""


def relay_plot(results: Sequence[Result]) -> str:
    """Sides beside each other, a group a broker."""
    groups = []
    for result in results:
        bars = [
            Bar(
                side,
                result[f"{side}_per_s"],
                note(result, side),
                kind,
                min(result["rounds"][side]),
                max(result["rounds"][side]),
            )
            for side, kind in SIDES.items()
        ]
        groups.append(Group(relay_name(result), bars))
    return chart("From the outbox to the broker (line: lowest and highest round)", "events per second", groups)


def kept_table(results: Sequence[Result]) -> str:
    """One row a condition."""
    rows = [
        [
            f"{relay_name(result)}: {', '.join(result['conditions'])}",
            f"{result['plain_per_s']:,.0f}",
            f"**{result['relay_per_s']:,.0f}**",
            f"**{result['kept']:.2f}** ({spread(result['kept_spread'])}) {verdict(result['gates'], 'kept')}",
            f"{result['cpu_us_per_event']:g}",
            f"{result['peak_rss_mb']:g} {verdict(result['gates'], 'peak_rss_mb', least=False)}",
        ]
        for result in results
    ]
    return table(["condition", "without", "with", "kept", "CPU µs an event", "MB"], rows)


def kept_plot(results: Sequence[Result]) -> str:
    """Shares of the plain rate."""
    bars = [
        Bar(
            f"{result['broker']}: {', '.join(result['conditions'])}",
            result["kept"],
            f"{result['kept']:.2f}",
            "ours" if all(gate["passed"] for gate in result["gates"]) else "bad",
            *result["kept_spread"],
            gate=next(gate["gate"] for gate in result["gates"] if gate["of"] == "kept"),
        )
        for result in results
    ]
    title = "What is kept of the rate under a condition (line: its pairs; dashed: what it has to be)"
    return chart(title, "share of the rate without", [Group("", bars)])


# ── Latency ───────────────────────────────────────────────────────────────────────────────────────


def latency_table(results: Sequence[Result]) -> str:
    """One row a mode."""
    rows = [
        [
            result["mode"],
            *[
                f"**{result[name]:g}** {verdict(result['gates'], name, least=False)}"
                for name in ("p50_ms", "p99_ms", "max_ms")
            ],
            f"{result['sent_behind_commit'] / result['events']:.0%}",
            ""
            if result["idle_cpu_percent"] is None
            else f"{result['idle_cpu_percent']:g} {verdict(result['gates'], 'idle_cpu_percent', least=False)}",
        ]
        for result in results
    ]
    return table(["mode", "p50 ms", "p99 ms", "max ms", "sent by the application", "idle relay, % of a core"], rows)


def latency_plot(results: Sequence[Result]) -> str:
    """Percentiles, a group a mode."""
    groups = [
        Group(
            result["mode"],
            [
                Bar(name, value, f"{value:g} ms", kind, gate=gates.get(f"{name}_ms"))
                for name, kind in (("p50", "ours"), ("p99", "side"), ("max", "side"))
                for value in [result[f"{name}_ms"]]
            ],
        )
        for result in results
        for gates in [{gate["of"]: gate["gate"] for gate in result["gates"]}]
    ]
    title = "From COMMIT to stored by NATS, at 200 events a second (dashed: what it may be)"
    return chart(title, "milliseconds, in steps of ten", groups, log=True)
