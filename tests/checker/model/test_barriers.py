"""Barriers as the checker keeps them, by events that no run of the emulator has."""

from __future__ import annotations

import pytest

from warploom.checker.collecting import Findings
from warploom.checker.model.clocks import G
from warploom.checker.observer import Checker
from warploom.checker.rules import Rules
from warploom.diagnostics import Loc
from warploom.machine.observers.events import WORD, Agent, BarrierName, Event, Source, Started
from warploom.ptx.syntax.model import Instruction

CTA = (0, 0, 0)
BARRIER = BarrierName("mbarrier", CTA, 0, "bar")
SOURCE = Source(Loc("<test>", 1), Instruction("mbarrier"))


def event(kind: str, verb: str, warp: int, phase: int) -> Event:
    return Event(kind, verb, Agent(CTA, warp), WORD, SOURCE, barrier=BARRIER, phase=phase, count=1)


@pytest.mark.parametrize("late", [False, True])
def test_a_wait_that_is_reported_late_learns_nothing(late: bool) -> None:
    """The state of a proof has what the latest phase hands out, and no earlier one: none of these may be used."""
    checker = Checker(Rules("strict"), Findings())
    checker.on_start(Started((1, 1, 1), (64, 1, 1), (1, 1, 1), (), {}))
    checker.on_event(event("arrive", "arrives", 0, 0))
    checker.on_event(event("complete", "phase", 0, 0))
    if late:
        checker.on_event(event("wait", "waits", 0, 0))
        checker.on_event(event("arrive", "arrives", 0, 1))
        checker.on_event(event("complete", "phase", 0, 1))
    checker.on_event(event("wait", "waits", 1, 0))
    writer, reader = checker.agents.warp(Agent(CTA, 0)), checker.agents.warp(Agent(CTA, 1))
    assert reader.parts[0].clock.knows(G, writer.parts[0].component, 1) is not late
