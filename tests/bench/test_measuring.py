"""Timing, with fake graphs that sleep."""

from __future__ import annotations

import time

import pytest


class Graph:
    def __init__(self, seconds):
        self.seconds, self.replays = seconds, 0

    def replay(self):
        self.replays += 1
        time.sleep(self.seconds)


class Event:
    def __init__(self, **options):
        self.when = 0.0

    def record(self):
        self.when = time.perf_counter()

    def elapsed_time(self, other):
        return (other.when - self.when) * 1e3


@pytest.fixture
def measuring(monkeypatch):
    torch = pytest.importorskip("torch")
    import measuring

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(measuring, "captured", lambda calls, launches: Graph(calls[0]()))
    return measuring


def test_sides_alternate_and_medians_are_per_launch(measuring):
    sides = {"slow": lambda each: 4e-3, "fast": lambda each: 1e-3}
    options = measuring.Options(rounds=3, window=3000, settled=0.0)
    times, itself = measuring.timed(sides, [{}], flops=650e6 * 100, options=options)  # 30 launches in a graph
    assert times["slow"] == pytest.approx(4e3 / 30, rel=0.5)
    assert times["fast"] < times["slow"]
    assert itself == pytest.approx(1, rel=0.5)


def test_the_clock_settles_before_timing(measuring):
    graphs = [Graph(1e-3), Graph(1e-3)]
    began = time.monotonic()
    times = measuring.replayed(graphs, launches=1, rounds=1, settled=0.05)
    assert time.monotonic() - began > 0.05
    assert [len(each) for each in times] == [1, 1]
    assert graphs[1].replays > 2 + 3


def test_quick_options(measuring):
    hurried = measuring.Options(rounds=11, window=3000).hurried
    assert (hurried.rounds, hurried.window, hurried.settled) == (5, 1500, 0)
