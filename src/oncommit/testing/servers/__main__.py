"""`python -m oncommit.testing.servers up|down|status|versions`: the test suite's servers, for a developer."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from oncommit.testing.servers import developer
from oncommit.testing.servers.catalog import CATALOG
from oncommit.testing.servers.errors import ServerError, ServerUnavailable

DEFAULT = ["postgres18", "nats"]


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; its exit status."""
    given = parser().parse_args(arguments)
    try:
        return run(given)
    except ServerError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m oncommit.testing.servers", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="up|down|status|versions")
    names = f"of {', '.join(CATALOG)}"
    up = commands.add_parser("up", help="start servers and leave them running")
    up.add_argument("names", nargs="*", metavar="name", help=f"{names} (default: {', '.join(DEFAULT)})")
    up.add_argument("--durable", action="store_true", help="on disk before it is acknowledged")
    down = commands.add_parser("down", help="stop servers and remove their data")
    down.add_argument("names", nargs="*", metavar="name", help=f"{names} (default: all that run)")
    status = commands.add_parser("status", help="list the servers that run")
    versions = commands.add_parser("versions", help="list where each server's program was found")
    for command in (up, down, status, versions):
        command.add_argument("--json", action="store_true", help="for programs")
    holder = commands.add_parser("hold")  # what `up` starts; not for people
    holder.add_argument("names", nargs=1)
    holder.add_argument("--durable", action="store_true")
    return top


def run(given: argparse.Namespace) -> int:
    """One command."""
    names = list(dict.fromkeys(getattr(given, "names", [])))
    unknown = [name for name in names if name not in CATALOG]
    if unknown:
        sys.stderr.write(f"No server is called {unknown[0]!r}; there are {', '.join(CATALOG)}.\n")
        return 2
    if given.command == "hold":
        developer.hold(names[0], durable=given.durable)
    elif given.command == "up":
        show(developer.up(names or DEFAULT, durable=given.durable), as_json=given.json)
    elif given.command == "down":
        stopped = developer.down(names or list(CATALOG))
        if given.json:
            write_json(stopped)
        else:
            write([f"stopped {', '.join(stopped)}" if stopped else "nothing was running"])
    elif given.command == "status":
        show(developer.status(), as_json=given.json)
    else:
        return versions(as_json=given.json)
    return 0


def show(servers: list[developer.Running], *, as_json: bool) -> None:
    """The servers that run."""
    if as_json:
        write_json([asdict(one) for one in servers])
        return
    for one in servers:
        write([f"{one.name:12} {one.url:52} {one.version}"])
    if not servers:
        write(["nothing is running"])


def versions(*, as_json: bool) -> int:
    """Where each program is, or what to do about it."""
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, entry in CATALOG.items():
        try:
            found[name] = entry.make(False).recipe.find()  # noqa: FBT003 - not durable: nothing gets started
        except ServerUnavailable as error:
            missing[name] = str(error)
    if as_json:
        write_json([{"name": name, "found": found.get(name), "missing": missing.get(name)} for name in CATALOG])
    else:
        write([f"{name:12} {found.get(name) or missing[name]}" for name in CATALOG])
    return 0


def write(lines: list[str]) -> None:
    """Lines to standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_json(value: object) -> None:
    """For programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
