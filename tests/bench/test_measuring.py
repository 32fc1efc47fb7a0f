"""Timing, with fake graphs and a fake clock."""

from __future__ import annotations

import pytest


class Clock:
    """Time that passes in graphs only."""

    now = 0.0

    @classmethod
    def monotonic(cls):
        return cls.now


class Graph:
    def __init__(self, seconds):
        self.seconds, self.replays = seconds, 0

    def replay(self):
        self.replays += 1
        Clock.now += self.seconds


class Event:
    def __init__(self, **options):
        self.when = 0.0

    def record(self):
        self.when = Clock.now

    def elapsed_time(self, other):
        return (other.when - self.when) * 1e3


@pytest.fixture
def measuring(monkeypatch):
    torch = pytest.importorskip("torch")
    import measuring

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(measuring, "time", Clock)
    monkeypatch.setattr(measuring, "captured", lambda calls, launches: Graph(calls[0]()))
    return measuring


def test_sides_alternate_and_medians_are_per_launch(measuring):
    sides = {"slow": lambda each: 4e-3, "fast": lambda each: 1e-3}
    options = measuring.Options(rounds=3, window=3000, settled=0.0)
    times, itself = measuring.timed(sides, [{}], flops=650e6 * 100, options=options)  # 30 launches in a graph
    assert times == {"slow": pytest.approx(4e3 / 30), "fast": pytest.approx(1e3 / 30)}
    assert itself == pytest.approx(1)


def test_the_clock_settles_before_timing(measuring):
    graphs = [Graph(1e-3), Graph(1e-3)]
    times = measuring.replayed(graphs, launches=1, rounds=1, settled=0.05)
    assert times == [[pytest.approx(1e3)], [pytest.approx(1e3)]]
    assert graphs[1].replays in (2 + 25, 2 + 26)  # both replay once in each round; rounding of the clock may add one


def test_quick_options(measuring):
    hurried = measuring.Options(rounds=11, window=3000).hurried
    assert (hurried.rounds, hurried.window, hurried.settled) == (5, 1500, 0)
