"""A warp that alone leaves its convoy at a branch: it executes its way first, and the convoy goes on, or breaks up."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.engine.mutants import engine
from tests.machine.simt import threads

from warploom.machine.core.cta import Cta
from warploom.machine.core.group import Group

THREADS = 128
AWAY = 2
"""The warp that leaves."""
HEAD = f"shr.u32 %r3, %r0, 5; setp.ne.u32 %p1, %r3, {AWAY}; mov.u32 %r4, %r1; elect.sync %r7|%p4, -1;"
TAIL = "add.u32 %r4, %r4, 1; @%p4 add.u32 %r4, %r4, 1000; st.global.u32 [%rd0], %r4;"
SHORT = f"{HEAD} @%p1 bra JOIN; mul.lo.u32 %r4, %r4, 3; JOIN: bar.sync 0; {TAIL}"
WAITING = f"""{HEAD} mov.u32 %r5, sh; setp.eq.u32 %p2, %r0, 0; @%p2 st.shared.u32 [%r5], 0; bar.sync 0; @%p1 bra JOIN;
 SPIN: ld.volatile.shared.u32 %r6, [%r5]; setp.eq.u32 %p3, %r6, 0; @%p3 bra SPIN; mul.lo.u32 %r4, %r4, 3;
 JOIN: st.volatile.shared.u32 [%r5], 1; {TAIL}"""
"""The warp waits for what the others do after the join."""


def expected(source: np.ndarray) -> np.ndarray:
    number = np.arange(len(source))
    return np.where(number // 32 == AWAY, 3 * source, source) + 1 + 1000 * (number % 32 == 0)


@pytest.fixture(params=["numpy", "native"])
def chosen(request: pytest.FixtureRequest) -> str:
    if request.param == "native":
        pytest.importorskip("llvmlite")
    return str(request.param)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("body", [SHORT, WAITING], ids=["short", "waiting"])
def test_the_results_are_those_of_warps_by_themselves(chosen: str, body: str, schedule: str) -> None:
    source = np.random.default_rng().integers(0, 1 << 20, THREADS, np.uint32)
    with engine(chosen):
        found = threads(body, THREADS, source=source, schedule=schedule)
    assert np.array_equal(found[:, 0], expected(source))


@pytest.mark.parametrize(("body", "splits"), [(SHORT, 0), (WAITING, 3)], ids=["short", "waiting"])
def test_a_convoy_breaks_up_only_if_the_warp_takes_long(
    chosen: str, body: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    before = Cta.warp_group

    def counted(self: Cta, warp: int) -> Group:
        woken.append(warp)
        return before(self, warp)

    monkeypatch.setattr(Cta, "warp_group", counted)
    with engine(chosen):
        threads(body, THREADS, source=np.zeros(THREADS, np.uint32))
    assert woken.count(AWAY) == 1
    assert len(woken) == 1 + splits


def test_a_fault_on_the_way_names_its_instruction(chosen: str) -> None:
    body = f"{HEAD} @%p1 bra JOIN; ld.global.u32 %r4, [%rd0+65536]; JOIN: bar.sync 0; {TAIL}"
    with engine(chosen), pytest.raises(Exception, match="OUT_OF_BOUNDS") as error:
        threads(body, THREADS)
    assert "65536" in str(error.value)
    assert f"warp {AWAY}" in str(error.value)
