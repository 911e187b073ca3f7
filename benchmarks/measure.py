"""The figures of the page: runs the commands one after the other, and keeps their JSON in benchmarks/results/.

    .venv/bin/python -m benchmarks.measure                        # all of them, some hours
    .venv/bin/python -m benchmarks.measure relay-nats latency

Nothing else should run meanwhile; the load before each measurement is part of its result.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
BROKERS = ("nats", "redis", "rabbitmq", "kafka")

RUNS: dict[str, list[str]] = {
    "write": ["write"],
    "latency": ["latency"],
    **{f"relay-{broker}": ["relay", "--broker", broker] for broker in BROKERS},
    **{f"relay-nats-{name}": ["relay", "--broker", "nats", *what] for name, what in {
        "zipf": ["--keys", "zipf"],
        "one-key": ["--keys", "1", "--events", "20000"],
        "unique": ["--keys", "unique"],
        "large": ["--payload", "1MB"],
        "waiting": ["--waiting", "1000000"],
        "open": ["--open-transaction"],
        "two": ["--relays", "2"],
        "delayed": ["--delayed", "1000000"],
    }.items()},
}  # fmt: skip


def main() -> None:
    wanted = sys.argv[1:] or list(RUNS)
    if unknown := [name for name in wanted if name not in RUNS]:
        sys.exit(f"there is no {', '.join(unknown)}; there are: {', '.join(RUNS)}")
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for name in wanted:
        print(f"== {name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "oncommit", "bench", *RUNS[name], "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            failed.append(name)
        else:
            (RESULTS / f"{name}.json").write_bytes(done.stdout)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
