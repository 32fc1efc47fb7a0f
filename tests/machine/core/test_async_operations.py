"""Operations in flight: which may take effect, the order in which they are offered, and their limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.asynchronous import run

from warploom.machine.core import grid
from warploom.machine.core.async_operations import InFlight, Operation
from warploom.machine.core.schedule import Lazy, Random, Recorded, Reverse


def operation(*after: Operation) -> Operation:
    return Operation("an operation", lambda: None, after)


@given(st.data())
def test_operations_that_may_take_effect_are_offered_in_issue_order(data):
    """Compared with a plain list that is searched at every step."""
    flight, issued, before = InFlight([0]), [], {}
    for _ in range(data.draw(st.integers(1, 40))):
        offered = [each for each in issued if not each.done and all(one.done for one in before[each])]
        assert flight.possible == offered
        assert flight.count == sum(not each.done for each in issued)
        if offered and data.draw(st.booleans()):
            taken = data.draw(st.sampled_from(offered))
            flight.remove(taken)
            taken.done = True
            flight.follow(taken)
        else:
            after = data.draw(st.lists(st.sampled_from(issued), max_size=4)) if issued else []
            issued.append(operation(*after))
            before[issued[-1]] = after
            flight.add(issued[-1])


def test_completed_operations_are_not_waited_for():
    first = operation()
    first.done = True
    second = operation(first, first)
    assert second.possible
    assert second.after == ()


def test_a_long_chain_is_freed():
    """A completed operation keeps no reference to its predecessors."""
    flight, last = InFlight([0]), operation()
    flight.add(last)
    for _ in range(3):
        following = operation(last)
        flight.add(following)
        flight.remove(last)
        last.done = True
        flight.follow(last)
        assert following.after == ()
        assert last.followers == []
        last = following
    assert flight.possible == [last]


COPIES = """
 ld.param.u64 %rd0, [source]; ld.param.u64 %rd2, [out]; mov.u32 %r0, data;
 mad.wide.u32 %rd0, %thread, 4, %rd0; mad.wide.u32 %rd2, %thread, 4, %rd2;
 mad.lo.u32 %r1, %thread, 4, %r0; mov.u32 %r2, 0;
 L: cp.async.ca.shared.global [%r1], [%rd0], 4; cp.async.commit_group;
 add.u64 %rd0, %rd0, 128; add.u32 %r1, %r1, 128;
 add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, 24; @%p0 bra L;
 {wait}
 mad.lo.u32 %r1, %thread, 4, %r0; mov.u32 %r2, 0;
 M: ld.shared.u32 %r3, [%r1]; st.global.u32 [%rd2], %r3; add.u64 %rd2, %rd2, 128; add.u32 %r1, %r1, 128;
 add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, 24; @%p0 bra M;
"""


def copied(schedule, wait=""):
    source = np.random.default_rng(7).integers(0, 1 << 31, 24 * 32).astype(np.uint32)
    out = np.zeros_like(source)
    run(COPIES.format(wait=wait), "ptr:source ptr:out", (source, out), schedule=schedule)
    return source, out


@pytest.mark.parametrize("most", [1, 5])
def test_the_oldest_operations_take_effect_at_the_limit(most, monkeypatch):
    monkeypatch.setattr(grid, "_MOST_IN_FLIGHT", most)
    source, out = copied("lazy")
    arrived = (out == source).reshape(24, 32).all(axis=1)
    assert arrived.tolist() == [True] * (24 - most) + [False] * most


@pytest.mark.parametrize("inner", [Lazy, Reverse, Random], ids=lambda cls: cls.__name__)
def test_recordings_at_the_limit_replay_the_same(inner, monkeypatch, tmp_path):
    monkeypatch.setattr(grid, "_MOST_IN_FLIGHT", 3)
    recorded, file = Recorded(inner()), tmp_path / "choices.json"
    _, first = copied(recorded)
    recorded.save(file)
    source, second = copied(str(file))
    np.testing.assert_array_equal(first, second)
    _, waited = copied(inner(), "cp.async.wait_all;")
    np.testing.assert_array_equal(waited, source)
