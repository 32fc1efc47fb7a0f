"""Observers on both engines: the same events in the same order, one by one or in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.machine.engine.mutants import engine
from tests.machine.engine.test_engine import BODIES
from tests.machine.families import FAMILIES
from tests.machine.simt import threads

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.machine.engine import access_log
from warploom.machine.observers.events import Batch, Event

pytest.importorskip("llvmlite")

MORE = {
    "stores to one place": """
    mov.u32 %r3, sh; and.b32 %r4, %r0, 3; shl.b32 %r5, %r4, 2; add.u32 %r5, %r5, %r3; st.shared.u32 [%r5], %r4;
    st.shared.u32 [%r5], %r4; and.b32 %r6, %r0, 1; st.shared.u32 [%r5+64], %r6; st.shared.u32 [%r5+64], %r0;
    bar.sync 0; ld.shared.u32 %r7, [%r5+64]; st.shared.u32 [sh+128], %r7; ld.shared.u32 %r8, [sh+128];
    st.global.v2.u32 [%rd0], {%r7, %r8}; st.global.v2.u32 [%rd0], {%r7, %r8};""",
    "stores of neighbours to one place": """
    mov.u32 %r3, sh; shr.b32 %r4, %r0, 5; mad.lo.u32 %r5, %r4, 4, %r3; st.shared.u32 [%r5], %r4;
    st.shared.u32 [%r5], %r4; shr.b32 %r6, %r0, 6; add.u32 %r6, %r6, 7; mad.lo.u32 %r7, %r6, 4, %r3;
    st.shared.u32 [%r7], %r6; and.b32 %r8, %r0, 3; setp.ne.u32 %p1, %r8, 0; @%p1 st.shared.u32 [%r7+64], %r6;
    setp.gt.u32 %p2, %r0, 40; @%p2 st.shared.u32 [%r7+96], %r6; @%p2 st.shared.u32 [%r7+96], %r8; bar.sync 0;
    @%p2 ld.global.u32 %r9, [%rd2]; @!%p2 mov.u32 %r9, %r8; @%p2 st.global.u32 [%rd0], %r9; ld.shared.u32 %r10, [%r7+96];
    setp.lt.u32 %p3, %r0, 400; @%p3 ld.global.u32 %r11, [%rd2]; @%p3 st.global.u32 [%rd0+4], %r11;
    @%p3 st.global.v2.u32 [%rd0], {%r10, %r0}; mad.lo.u32 %r12, %r0, 4, %r3; @%p2 st.shared.u32 [%r12+128], %r0;
    @%p3 st.shared.u32 [%r12+128], %r0; @%p2 st.global.v2.u32 [%rd0], {%r12, %r10};""",
    "accesses of some lanes": """
    and.b32 %r3, %r1, 3; setp.ne.u32 %p1, %r3, 0; @%p1 ld.global.u32 %r4, [%rd2]; @!%p1 mov.u32 %r4, 9;
    @%p1 bra SOME; st.global.u32 [%rd0], %r4; bra.uni BOTH; SOME: st.global.u32 [%rd0+4], %r4;
    ld.global.u32 %r5, [%rd0+4]; BOTH: st.global.u32 [%rd0], %r4;""",
    "warps that part and meet at a barrier": """
    shr.b32 %r3, %r0, 5; setp.ne.u32 %p1, %r3, 1; bar.sync 0; @%p1 bra MEET; ld.global.u32 %r4, [%rd2];
    st.global.u32 [%rd0+4], %r4; MEET: bar.sync 0; ld.global.u32 %r5, [%rd2]; bar.sync 0; st.global.u32 [%rd0], %r5;""",
    "groups of wgmmas that some warps commit": """
    shr.b32 %r3, %r0, 5; setp.eq.u32 %p1, %r3, 1; wgmma.fence.sync.aligned; wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0; @%p1 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1; @!%p1 wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 1; ld.global.u32 %r4, [%rd2]; st.global.u32 [%rd0], %r4;""",
    "matrices": """
    mov.u32 %r3, sh; shr.b32 %r4, %r0, 5; and.b32 %r5, %r0, 15; shl.b32 %r5, %r5, 4; mad.lo.u32 %r6, %r4, 256, %r3;
    add.u32 %r7, %r6, %r5; stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r7], {%r1, %r0}; mov.u32 %r8, 7;
    stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r7], {%r1, %r0}; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r7], {%r0};
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r9, %r10}, [%r7]; bar.sync 0; add.u32 %r11, %r3, %r5;
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r11], {%r8}; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r11], {%r8};
    bar.sync 0; stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r11], {%r0, %r4}; and.b32 %r12, %r5, 48;
    add.u32 %r13, %r6, %r12; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r13], {%r4}; add.u32 %r14, %r13, 64;
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r14], {%r0}; ldmatrix.sync.aligned.m8n8.x4.shared.b16
    {%r15, %r16, %r17, %r18}, [%r7]; add.u32 %r19, %r15, %r18; st.global.v2.u32 [%rd0], {%r9, %r19};""",
}


class Each:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


class Batches:
    """Keeps every event of its batches."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.rows = self.longest = 0

    def on_events(self, batch: Batch) -> None:
        found = list(batch.events())
        assert len(found) == len(batch)
        self.events += found
        self.rows += len(batch.rows)
        self.longest = max(self.longest, len(batch))


def seen(body: str, name: str, schedule: str, observers: list[Any]) -> np.ndarray:
    source = np.random.default_rng(3).integers(0, 60_000, 2 * 128, np.uint32)
    options: dict[str, Any] = {} if schedule == "eager" else {"schedule": schedule, "seed": 5}
    with engine(name):
        return threads(body, 128, words=2, source=source, grid=2, observers=observers, **options)


@pytest.mark.parametrize("schedule", ["eager", "random"])
@pytest.mark.parametrize("body", [*BODIES, *MORE])
def test_events_do_not_depend_on_the_engine(body: str, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = {**BODIES, **MORE}[body]
    wanted, found, batches, mixed = Each(), Each(), Batches(), (Batches(), Each())
    expected = seen(text, "numpy", schedule, [wanted])
    assert np.array_equal(seen(text, "native", schedule, [found]), expected)
    assert found.events == wanted.events
    assert np.array_equal(seen(text, "native", schedule, [batches]), expected)
    assert batches.events == wanted.events
    assert batches.rows
    seen(text, "native", schedule, list(mixed))
    assert mixed[0].events == mixed[1].events == wanted.events
    # A log that is often full leaves instructions to the reference.
    monkeypatch.setattr(access_log, "MOST_ENTRIES", 3)
    few = Batches()
    assert np.array_equal(seen(text, "native", schedule, [few]), expected)
    assert few.events == wanted.events
    assert len(wanted.events) < 20 or few.longest < batches.longest


@pytest.mark.parametrize("name", FAMILIES)
def test_events_of_kernels_do_not_depend_on_the_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen_by(observer: Any, on: str) -> list[Event]:
        with engine(on):
            launch(FAMILIES[name]()[0], observers=[observer])
        return observer.events

    wanted = seen_by(Each(), "numpy")
    assert seen_by(Each(), "native") == wanted
    assert seen_by(Batches(), "native") == wanted
    monkeypatch.setattr(access_log, "MOST_ENTRIES", 3)
    assert seen_by(Batches(), "native") == wanted


def test_batches_come_from_numpy_too() -> None:
    wanted, batches = Each(), Batches()
    seen(BODIES["guards"], "numpy", "eager", [wanted])
    seen(BODIES["guards"], "numpy", "eager", [batches])
    assert batches.events == wanted.events
    assert not batches.rows


def test_events_before_a_fault_are_reported() -> None:
    body = (
        "ld.global.u32 %r3, [%rd2]; st.global.u32 [%rd0], %r3; add.u64 %rd3, %rd0, 1048576; ld.global.u32 %r4, [%rd3];"
    )
    found = []
    for name, observer in (("numpy", Each()), ("native", Each()), ("native", Batches())):
        with pytest.raises(WarploomError):
            seen(body, name, "eager", [observer])
        found.append(observer.events)
    assert found[0] == found[1] == found[2]
    assert any(event.verb == "writes" for event in found[0])
