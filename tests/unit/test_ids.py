"""Ids of events: the layout of RFC 9562, their order, and that no two are the same."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import time
from uuid import RFC_4122, UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncommit.ids import MadeId, make_id, mark_offered, may_be_known

FORKS = """
import os
from oncommit.ids import make_id
make_id()
for child in range(4):
    if os.fork() == 0:
        os.write(1, "".join(f"{make_id()}\\n" for _ in range(500)).encode())
        os._exit(0)
for child in range(4):
    os.wait()
"""


def test_the_layout_is_that_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    made = make_id()
    after = time.time_ns() // 1_000_000
    assert made.version == 7
    assert made.variant == RFC_4122
    assert before <= made.int >> 80 <= after
    assert UUID(str(made)) == made
    assert str(made)[14] == "7"
    assert str(made)[19] in "89ab"


@given(nanoseconds=st.integers(0, (1 << 48) * 1_000_000 - 1))
def test_every_moment_fits(nanoseconds: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: nanoseconds)
        made = make_id()
    assert made.int >> 80 == nanoseconds // 1_000_000
    assert made.version == 7
    assert made.variant == RFC_4122
    # 12 bits behind the version: the fraction of the millisecond.
    assert (made.int >> 64) & 0xFFF == (nanoseconds % 1_000_000 << 12) // 1_000_000


@given(moments=st.lists(st.integers(0, (1 << 48) * 1_000_000 - 1), min_size=2, max_size=20))
def test_a_later_moment_sorts_later(moments: list[int]) -> None:
    made = []
    for moment in sorted(moments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", lambda moment=moment: moment)
            made.append(make_id())
    upper = [one.int >> 64 for one in made]
    assert upper == sorted(upper)


def test_they_grow_with_time() -> None:
    made = []
    for _ in range(200):
        made.append(make_id())
        start = time.time_ns()
        while time.time_ns() - start < 1000:  # four steps of the fraction
            pass
    assert made == sorted(made)
    assert [str(one) for one in made] == sorted(str(one) for one in made)


def test_a_hundred_thousand_are_all_different() -> None:
    assert len({make_id() for _ in range(100_000)}) == 100_000


def test_all_62_random_bits_move() -> None:
    seen_one = seen_zero = 0
    for _ in range(200):
        random = make_id().int & (1 << 62) - 1
        seen_one |= random
        seen_zero |= ~random
    assert seen_one & seen_zero & (1 << 62) - 1 == (1 << 62) - 1


def test_children_of_a_fork_do_not_repeat_each_other() -> None:
    printed = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=60)
    made = printed.stdout.split()
    assert len(made) == 2000
    assert len(set(made)) == 2000
    # Random bits of their own, not only times of their own.
    assert len({one[19:] for one in made}) == 2000


def test_an_id_knows_whether_it_was_offered() -> None:
    made = make_id()
    assert not may_be_known(made)
    mark_offered(made)
    assert may_be_known(made)
    assert may_be_known(uuid4())
    mark_offered(uuid4())  # nothing to note


def test_it_is_a_uuid_like_any_other() -> None:
    made = make_id()
    plain = UUID(str(made))
    assert isinstance(made, UUID)
    assert made == plain
    assert hash(made) == hash(plain)
    assert repr(made) == repr(plain)
    assert {plain: 1}[made] == 1


def test_a_copy_may_be_known() -> None:
    for copied in (copy.copy(make_id()), copy.deepcopy(make_id()), pickle.loads(pickle.dumps(make_id()))):
        assert may_be_known(copied)
        assert not isinstance(copied, MadeId)
