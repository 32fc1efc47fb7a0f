"""An observer changes nothing: the same bits and the same instructions by each warp, with and without one."""

from __future__ import annotations

from typing import Any

import pytest

from .case import Case
from .cases import CASES
from .compile import CompilerMissing
from .run import launched

SAMPLE = 16
"""One case in this many runs in the fast tier."""
FIRST = next(at for at, case in enumerate(CASES) if case.name == "triton_matmul_f16_accumulator_sm90") % SAMPLE
"""This kernel reads accumulators before their `wgmma.wait_group`, so its results depend on when a wgmma completes."""


class Watch:
    """Counts events."""

    def __init__(self) -> None:
        self.events = 0

    def on_event(self, event: Any) -> None:
        self.events += 1


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if at % SAMPLE == FIRST else pytest.mark.slow)
        for at, case in enumerate(CASES)
    ],
)
@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_an_observer_changes_nothing(case: Case, schedule: str) -> None:
    if schedule != "eager" and case.schedules == "none":
        pytest.skip("this kernel is right only if nothing is late")
    try:
        prepared = case.prepare(seed=7)
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    watch = Watch()
    plain, ran = launched(prepared, schedule=schedule)
    watched, observed = launched(prepared, schedule=schedule, observers=[watch])
    assert watch.events
    for name, array in plain.items():
        assert array.tobytes() == watched[name].tobytes(), name
    assert observed.counts == ran.counts
    assert observed.warps == ran.warps
