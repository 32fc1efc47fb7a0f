"""The normal form of a checked run's state."""

from __future__ import annotations

from warploom.checker.model.clocks import Components
from warploom.checker.model.shadow import Access
from warploom.checker.recurrence.state import _Form
from warploom.diagnostics import Loc
from warploom.machine.observers.events import Source
from warploom.ptx.syntax.model import Instruction


def test_the_time_of_an_access_that_only_the_end_of_a_cta_asks_for_is_part_of_a_state() -> None:
    # Both times are remembered by something else as well, so that the ranks of all values are the same.
    components, source = Components((0, 0, 0)), Source(Loc("<test>", 1), Instruction("st"))
    component = components.of("warp")
    found = set[bytes]()
    for time in (5, 9):
        form = _Form(components, 2)
        access = Access(source, (0, 0, 0), 0, 1, True, "shared", "generic", components, component, time)
        form.plain("others", form.value(component, 5), form.value(component, 9))
        form.plain("foreign", form.access(access))
        found.add(form.digest({}, []))
    assert len(found) == 2
