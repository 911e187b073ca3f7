"""Every rule of the protocol has a test that goes red without it: the page and the tests are held to each other.

The tests are those marked ``rule("S-order")``. Each takes the rule out, in code or in a statement, and asserts what is
then lost, reordered, stalled or charged; most have a twin beside them that shows the same with the rule in place.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "internals" / "relay-protocol.md"
_NAMED = re.compile(r"\*\*([A-Z]-[a-z]+(?: [a-z]+)*)\.\*\*|\(([A-Z]-[a-z]+)\)")
_MARKED = re.compile(r"mark\.rule\(([^)]*)\)")


def of_the_page() -> set[str]:
    return {first or second for first, second in _NAMED.findall(PAGE.read_text("utf-8"))}


def of_the_tests() -> dict[str, list[str]]:
    """Rules with the files that have a test for each."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for names in _MARKED.findall(path.read_text("utf-8")):
            for name in re.findall(r'"([^"]+)"', names):
                found.setdefault(name, []).append(path.name)
    return found


# The rooms that came later name their rules in the words of their tests.
ELSEWHERE = ("A-settled", "D-", "H-", "M-")


def test_each_rule_of_the_page_has_a_test_that_goes_red_without_it() -> None:
    rules = {rule for rule in of_the_page() if not rule.startswith(ELSEWHERE)}
    assert len(rules) > 25
    assert sorted(rules - set(of_the_tests())) == []


def test_each_rule_that_a_test_names_is_on_the_page() -> None:
    assert sorted(set(of_the_tests()) - of_the_page()) == []
