"""Events of the library's kernels on both engines: native mbarriers and tensor loads report what the reference does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.machine.engine.mutants import engine
from tests.machine.engine.test_events import Batches, Each

import warploom
from warploom.machine.engine import access_log
from warploom.machine.observers import reporting
from warploom.machine.observers.native_events import NativeEvents
from warploom.structured.config import HopperConfig

pytest.importorskip("llvmlite")

ONE_CTA = warploom.MatmulConfig(cta_group=1, mma_shape=(128, 128, 16))
CALLS: dict[str, dict[str, Any]] = {
    "sm_90a": {"target": "sm_90a", "config": HopperConfig()},
    "sm_90a, cluster": {"target": "sm_90a", "config": HopperConfig(cluster_shape=(2, 1, 1))},
    "sm_100a, one CTA": {"target": "sm_100a", "config": ONE_CTA},
    "sm_100a, pair": {"target": "sm_100a"},
}


def observed(name: str, call: str, observers: list[Any]) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-2, 3, shape).astype(ml_dtypes.bfloat16) for shape in ((130, 200), (200, 264)))
    with engine(name):
        warploom.launch(warploom.matmul.bind(a, b, **CALLS[call]), observers=observers)


@pytest.mark.parametrize("call", CALLS)
def test_events_of_kernels_do_not_depend_on_the_engine(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, found, batches = Each(), Each(), Batches()
    entries, make, repeated, again = [0], NativeEvents.of, [0], reporting.Reporter.again

    def counted(self: NativeEvents, *given: Any, **options: Any) -> Any:
        entries[0] += len(given[-1])
        return make(self, *given, **options)

    def counted_again(self: reporting.Reporter, *given: Any, **options: Any) -> Any:
        repeated[0] += 1
        return again(self, *given, **options)

    monkeypatch.setattr(NativeEvents, "of", counted)
    monkeypatch.setattr(reporting.Reporter, "again", counted_again)
    observed("numpy", call, [wanted])
    assert not entries[0]
    repeated[0] = 0
    observed("native", call, [batches])
    assert batches.events == wanted.events
    assert repeated[0]  # MMAs of the loop
    issued = [event.touches for event in wanted.events if event.kind == "issue" and event.touches]
    loads = sum(touches[0].space == "global" for touches in issued)
    assert entries[0] > loads > 0  # waits and arrivals too
    observed("native", call, [found])
    assert found.events == wanted.events
    # A log that is often full leaves instructions to the reference.
    monkeypatch.setattr(access_log, "MOST_ENTRIES", 3)
    few = Batches()
    observed("native", call, [few])
    assert few.events == wanted.events
    assert few.longest < batches.longest
