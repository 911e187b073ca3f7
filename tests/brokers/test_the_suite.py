"""The conformance suite finds flaws: of an adapter that passes, made wrong in one way at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND_BY = {
    "forgets": "test_a_large_batch_arrives_once_and_in_order",
    "repeats": "test_a_message_without_a_key_arrives",
    "swaps": "test_one_key_alone_keeps_its_order",
    "overtakes": "test_a_key_waits_also_where_it_changes_its_topic",
    "strips": "test_headers_arrive_as_they_are",
    "raises": "test_a_server_that_is_down_is_no_event_s_fault",
    "hopes": "test_without_an_answer_nothing_is_acknowledged",
    "insists": "test_a_silent_line_costs_the_time_limit_and_no_more",
}


@pytest.mark.parametrize(("flaw", "case"), FOUND_BY.items(), ids=FOUND_BY)
def test_a_flaw_is_found(flaw: str, case: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/brokers/flawed_lists.py", "-k", case],
        cwd=ROOT,
        env=os.environ | {"FLAW": flaw},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout
    assert f"FAILED tests/brokers/flawed_lists.py::TestFlawed::{case}" in run.stdout
