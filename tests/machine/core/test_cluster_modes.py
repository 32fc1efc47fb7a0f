"""The modes of clusters under a random schedule: the same run on both engines, right results, and no hidden mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.machine.core import test_lockstep as kernels
from tests.machine.engine.mutants import engine

import warploom
from warploom.machine.core import schedule as schedules
from warploom.machine.core.cluster_modes import FEW_CLUSTERS
from warploom.machine.core.schedule import CLUSTER_MODES, Random, Recorded, Schedule
from warploom.machine.observers.events import Event

CLUSTERS = FEW_CLUSTERS + 4
OWN_PART = (
    "mul.lo.u32 %r22, %r1, 4;",
    "mov.u32 %r30, %ctaid.x; mad.lo.u32 %r31, %r30, 128, %r1; shl.b32 %r22, %r31, 2;",
)
LOADS, PRODUCTS = kernels.LOADS.replace(*OWN_PART), kernels.PRODUCTS.replace(*OWN_PART)
"""The kernels of the lockstep tests, with an output for each CTA."""
ALONE = LOADS.replace("st.shared.u32", "st.volatile.shared.u32")
"""A kernel that has no lockstep while operations are late."""
APART = LOADS.replace("  .shared .align 1024", "  .shared .align 8 .b64 barrier;\n  .shared .align 1024").replace(
    "LOOP:", "  setp.eq.u32 %p5, %r1, 0;\n  @%p5 mbarrier.init.shared::cta.b64 [barrier], 1;\nLOOP:"
)
"""A kernel with an mbarrier, which has none either."""
TEXTS = {"loads": LOADS, "products": PRODUCTS, "apart": APART}
EVEN = {count: tuple((at + 1) / count for at in range(count - 1)) for count in (3, 5)}
"""Every mode as often."""


class _Asked(Random):
    """A random schedule that is asked for every choice."""


class _Nothing:
    def on_event(self, event: Event) -> None:
        """Ignore it."""


def _run(
    text: str, x: np.ndarray, schedule: str | Schedule, *observers: object, clusters: int = CLUSTERS
) -> tuple[bytes, object]:
    y = np.full(clusters * kernels.THREADS, 0x7FC00000, np.uint32)
    shape = {"grid": (clusters, 1, 1), "block": (kernels.THREADS, 1, 1)}
    ran = warploom.launch(text, **shape, args=[x, y, kernels.STEPS], schedule=schedule, observers=observers)
    return y.tobytes(), ran.counts


def _chosen(recorded: Recorded) -> list[int]:
    return [answer for kind, answer, *_ in recorded.choices if kind == "lockstep"]


@pytest.fixture
def every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_WEIGHTS", EVEN)


@pytest.mark.usefixtures("every_mode")
@pytest.mark.parametrize("name", TEXTS)
def test_a_seed_is_one_run_on_both_engines_and_observed(name: str, tmp_path: Path) -> None:
    text, x = TEXTS[name], kernels._input()
    expected, modes = _run(text, x, "eager")[0], set[int]()
    for seed in range(3):
        recorded = {each: Recorded(Random(seed)) for each in ("numpy", "native")}
        found = []
        for each, recording in recorded.items():
            with engine(each):
                found += [_run(text, x, recording), _run(text, x, Random(seed)), _run(text, x, _Asked(seed))]
                found.append(_run(text, x, Random(seed), _Nothing()))
            recording.save(tmp_path / f"{each}.json")
        assert all(each == found[0] for each in found)
        assert found[0][0] == expected
        assert recorded["numpy"].choices == recorded["native"].choices
        for each, other in (("numpy", "native"), ("native", "numpy")):
            with engine(each):
                assert _run(text, x, str(tmp_path / f"{other}.json")) == found[0]
        modes |= set(_chosen(recorded["native"]))
    assert modes == set(range(3 if name == "apart" else len(CLUSTER_MODES)))


def _always(monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    monkeypatch.setattr(schedules, "_WEIGHTS", {count: (0.0,) * mode + (1.0,) * (count - 1 - mode) for count in (3, 5)})


@pytest.mark.parametrize("mode", range(len(CLUSTER_MODES)))
def test_every_mode_gives_the_result(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _always(monkeypatch, mode)
    for text in (LOADS, PRODUCTS):
        x = kernels._input()
        recorded = Recorded(Random(1))
        assert _run(text, x, recorded)[0] == _run(text, x, "eager")[0]
        assert _chosen(recorded) == [mode] * CLUSTERS


def _mistakes() -> Iterator[tuple[str, str, set[int]]]:
    """A kernel, a mistake in it, and the modes that must show it with any seed."""
    yield LOADS, LOADS.replace("cp.async.wait_group 1;", "cp.async.wait_group 2;"), {3}
    yield PRODUCTS, PRODUCTS.replace("  wgmma.wait_group.sync.aligned 0;\n", ""), {3, 4}
    yield LOADS, LOADS.replace("  st.shared.u32 [%r4], %r20;\n  bar.sync 0;", "  st.shared.u32 [%r4], %r20;"), {1}


@pytest.mark.parametrize("number", range(3))
def test_a_mistake_shows_in_the_mode_that_is_for_it(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, mistaken, modes = list(_mistakes())[number]
    assert whole != mistaken
    x = kernels._input()
    expected = _run(whole, x, "eager")[0]
    assert _run(mistaken, x, "eager")[0] == expected
    for mode in modes:
        _always(monkeypatch, mode)
        for seed in range(3):
            assert _run(mistaken, x, "random" if not seed else Random(seed))[0] != expected


def test_operations_of_few_clusters_and_of_the_first_complete_at_any_time() -> None:
    x = kernels._input()
    few, more = Recorded(Random(2)), Recorded(Random(2))
    _run(APART, x, few, clusters=FEW_CLUSTERS)
    _run(APART, x, more, clusters=FEW_CLUSTERS + 1)
    assert not _chosen(few)
    assert len(_chosen(more)) == FEW_CLUSTERS
    assert any(name.startswith("CTA (0,0) warp 0: cp.async") for name in more.steps)
    copies = Recorded(Random(2))
    _run(ALONE, x, copies, clusters=FEW_CLUSTERS + 1)
    assert not _chosen(copies)
    with_lockstep = Recorded(Random(2))
    _run(LOADS, x, with_lockstep, clusters=FEW_CLUSTERS + 1)
    assert len(_chosen(with_lockstep)) == FEW_CLUSTERS + 1


def test_every_mode_is_drawn_by_some_seed() -> None:
    """All interleavings stay possible: the mode that has them is drawn too."""
    for count in (3, 5):
        drawn = {Random(seed).choose("lockstep", CLUSTER_MODES[:count], 0) for seed in range(512)}
        assert drawn == set(range(count))


def _longest(answers: list[bool]) -> int:
    longest = run = 0
    for answer in answers:
        run = run + 1 if answer else 0
        longest = max(longest, run)
    return longest


def test_operations_are_late_for_a_while_and_a_group_goes_on_for_a_while() -> None:
    """Of two groups and two operations one is drawn: without biases, 24 steps of one kind in a row come once in 2^24."""
    options = ["CTA (0,0) warp 0", "CTA (0,0) warp 1", "CTA (0,0) warp 0: cp.async 0", "CTA (0,0) warp 0: cp.async 1"]
    schedule, plain = Random(1), Random(1)
    schedule.choose("lockstep", CLUSTER_MODES, 0)  # a large grid
    drawn = [schedule.choose("step", options, 2) for _ in range(4096)]
    assert _longest([each < 2 for each in drawn]) >= 128
    assert _longest([each == 1 for each in drawn]) >= 128
    assert set(drawn) == {0, 1, 2, 3}
    without = [plain.choose("step", options, 2) for _ in range(4096)]
    assert _longest([each < 2 for each in without]) < 24
