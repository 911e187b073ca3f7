"""The ledger keeps what was written, whoever dies meanwhile, and doubts itself aloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncommit.testing.ledger import Entry, LedgerError, LedgerWriter, Outcome, read_ledger

A, B, C = Entry("a", "k", 1), Entry("b", "k", 2), Entry("c", None, 1)


def test_what_was_written_comes_back_from_all_writers(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "one.jsonl") as one, LedgerWriter(tmp_path / "two.jsonl") as two:
        one.attempt([A, B])
        two.attempt([C])
        one.aborted(["a"])
        one.committed(["b"])
        two.unknown(["c"])
    found = read_ledger(tmp_path)
    assert [written.entry for written in found.values()] == [A, B, C]
    assert [written.outcome for written in found.values()] == [Outcome.ABORTED, Outcome.COMMITTED, Outcome.UNKNOWN]


def test_an_attempt_is_in_the_file_before_it_returns_and_unknown_until_told(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "one.jsonl")
    writer.attempt([A])
    assert read_ledger(tmp_path)["a"].outcome is Outcome.UNKNOWN
    writer.close()
    writer.close()


def test_a_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    for entry in (A, B):
        with LedgerWriter(tmp_path / "one.jsonl") as writer:
            writer.attempt([entry])
    assert list(read_ledger(tmp_path)) == ["a", "b"]


def test_a_line_that_was_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with LedgerWriter(path) as writer:
        writer.attempt([A])
        writer.attempt([B])
    path.write_bytes(path.read_bytes()[:-3])
    assert list(read_ledger(tmp_path)) == ["a"]


@pytest.mark.parametrize(
    "lines",
    [
        '{"attempt":[["a","k",1]]}\n{"attempt":[["a","k",1]]}\n',
        '{"outcome":"committed","events":["a"]}\n',
        '{"attempt":[["a","k",1]]}\n{"outcome":"committed","events":["a"]}\n{"outcome":"aborted","events":["a"]}\n',
        '{"attempt":[["a","k",1\n{"attempt":[["b","k",2]]}\n',
        '{"attempt":[["a","k",1]]}\n{"outcome":"perhaps","events":["a"]}\n',
    ],
)
def test_a_ledger_that_contradicts_itself_is_an_error(tmp_path: Path, lines: str) -> None:
    (tmp_path / "one.jsonl").write_text(lines)
    with pytest.raises(LedgerError, match=r"one\.jsonl"):
        read_ledger(tmp_path)
