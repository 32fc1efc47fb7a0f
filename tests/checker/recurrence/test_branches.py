"""Tasks in copies of the process: their results come in order, whichever ends first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from select import select

import pytest

from warploom.checker.recurrence import branches
from warploom.checker.recurrence.branches import LostCopyError, in_copies

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(branches, "can_branch", lambda: True)


def late(value: int, seconds: float) -> int:
    time.sleep(seconds)
    return value


def lost() -> int:
    os._exit(1)


@pytest.mark.parametrize("independent", [False, True])
def test_results_come_in_the_order_of_their_tasks(independent: bool) -> None:
    tasks = [partial(late, value, 0.2 if value == 0 else 0.0) for value in range(6)]
    assert [*in_copies(tasks, independent=independent)] == [*range(6)]


def test_independent_tasks_do_not_wait_for_a_slow_one() -> None:
    reading, writing = os.pipe()

    def slow() -> int:
        """The first task ends when the last has run."""
        return len(os.read(reading, 1)) if select([reading], [], [], 60)[0] else 0

    tasks = [slow, partial(late, 2, 0.0), partial(late, 3, 0.0), lambda: os.write(writing, b"4")]
    assert [*in_copies(tasks, independent=True)] == [1, 2, 3, 1]


@pytest.mark.parametrize("independent", [False, True])
def test_an_error_is_raised_at_its_place(independent: bool) -> None:
    found = in_copies([partial(late, 0, 0.1), lambda: 1 // 0, partial(late, 2, 0.0)], independent=independent)
    assert next(found) == 0
    with pytest.raises(ZeroDivisionError):
        next(found)
    with pytest.raises(LostCopyError):
        [*in_copies([lost, partial(late, 1, 0.0)], independent=independent)]


@pytest.mark.parametrize("slow", range(4))
def test_a_task_sees_the_results_of_all_but_the_last_before_it_whatever_takes_long(slow: int) -> None:
    results: list[tuple[int, ...]] = []

    def seen(at: int, before: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        time.sleep(0.1 if at == slow else 0.0)
        return (at, len(before))

    def tasks() -> Iterator[Callable[[], tuple[int, ...]]]:
        for at in range(5):
            yield partial(seen, at, tuple(results))

    for result in in_copies(tasks()):
        results.append(result)  # noqa: PERF402  (tasks see the results so far)
    assert results == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3)]
