"""Turns of many blocks: chains of native code stop at every block, with the same choices and results as NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.machine.engine.mutants import engine
from tests.machine.simt import threads

from warploom.machine.core import grid
from warploom.machine.core import schedule as schedules
from warploom.machine.core.schedule import Random, Recorded
from warploom.machine.observers.events import Event

pytest.importorskip("llvmlite")

LOADS = "".join(f"ld.global.u32 %r{4 + at}, [%rd2]; add.u32 %r3, %r3, %r{4 + at};" for at in range(24))
LONG = f"""mov.u32 %r3, 0; {LOADS} mov.u32 %r40, sh; shl.b32 %r41, %r0, 2; add.u32 %r40, %r40, %r41;
 st.shared.u32 [%r40], %r3; bar.sync 0; xor.b32 %r42, %r41, 128; mov.u32 %r43, sh; add.u32 %r43, %r43, %r42;
 ld.shared.u32 %r44, [%r43]; {LOADS} add.u32 %r3, %r3, %r44; st.global.u32 [%rd0], %r3;"""
"""Some fifty accesses in a row, and an exchange with another warp at a barrier."""
UPDATES = 32
COUNTED = f"""mov.u32 %r50, 0;
 REPEAT: ld.global.u32 %r51, [%rd1]; add.u32 %r51, %r51, 1; st.global.u32 [%rd1], %r51; add.u32 %r50, %r50, 1;
 setp.lt.u32 %p1, %r50, {UPDATES}; @%p1 bra REPEAT;"""
"""Updates of one word by every warp."""


@pytest.fixture
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are long from the start."""
    monkeypatch.setattr(schedules, "_SHORT_TURNS", 0)


@pytest.mark.usefixtures("long_turns")
@pytest.mark.parametrize("seed", range(4))
def test_both_engines_make_the_same_choices_and_replay_each_others_recordings(seed: int, tmp_path: Path) -> None:
    source = np.random.default_rng(seed).integers(0, 1 << 20, 2 * 128, np.uint32)
    recordings, results = {}, {}
    for name in ("numpy", "native"):
        recordings[name] = Recorded(Random(seed))
        with engine(name):
            results[name] = threads(LONG, 128, source=source, grid=2, schedule=recordings[name])
        recordings[name].save(tmp_path / f"{name}.json")
    assert recordings["numpy"].choices == recordings["native"].choices
    assert recordings["numpy"].steps == recordings["native"].steps
    turns = [answer + 1 for kind, answer, *_ in recordings["numpy"].choices if kind == "turn"]
    assert 1 in turns
    assert max(turns) > 8
    assert np.array_equal(results["numpy"], results["native"])
    for name, other in (("numpy", "native"), ("native", "numpy")):
        with engine(name):
            again = threads(LONG, 128, source=source, grid=2, schedule=str(tmp_path / f"{other}.json"))
        assert np.array_equal(again, results["numpy"])


@pytest.mark.usefixtures("long_turns")
@pytest.mark.parametrize("name", ["numpy", "native"])
def test_a_long_turn_ends_at_every_access(name: str) -> None:
    """All lengths of a first turn up to the barrier occur among the stops of native code."""
    lengths = set()
    for seed in range(64):
        recorded = Recorded(Random(seed))
        with engine(name):
            threads(LONG, 32, source=np.zeros(32, np.uint32), schedule=recorded)
        first = next(answer + 1 for kind, answer, *_ in recorded.choices if kind == "turn")
        lengths.add(first)
    assert len(lengths) > 12
    assert {1, 2} <= lengths


@pytest.mark.usefixtures("long_turns")
def test_an_update_is_lost_in_long_turns_within_a_few_seeds() -> None:
    found = []
    for seed in range(8):
        source = np.zeros(256, np.uint32)
        with engine("native"):
            threads(COUNTED, 256, source=source, schedule="random", seed=seed)
        found.append(int(source[0]))
    assert min(found) < 8 * UPDATES


def test_ctas_run_in_lockstep_only_after_the_first_turns() -> None:
    """A recording has the choice, and the run is that of the same seed without one."""
    source = np.random.default_rng().integers(0, 1 << 20, 64 * 128, np.uint32)
    with engine("native"):
        recorded = Recorded(Random(3))
        found = threads(LONG, 128, source=source, grid=64, schedule=recorded, limit=1_000_000)
        assert np.array_equal(
            found, threads(LONG, 128, source=source, grid=64, schedule="random", seed=3, limit=1_000_000)
        )
    chosen = [answer for kind, answer, *_ in recorded.choices if kind == "lockstep"]
    early = [
        kind
        for kind, *_ in recorded.choices[
            : recorded.choices.index(next(c for c in recorded.choices if c[:2] == ("lockstep", 1)))
        ]
    ]
    assert early.count("turn") >= schedules._SHORT_TURNS
    assert len(chosen) == 64
    assert chosen.count(1) > 16
    assert any(" warps 0-3" in name for name in recorded.steps)
    assert any(name.endswith(" warp 3") for name in recorded.steps)


class Asked(Random):
    """A random schedule that is asked for every choice: the emulator knows the draws of `Random` itself only."""


class Steps:
    """An observer that notes who acts, in order."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_event(self, event: Event) -> None:
        if event.kind == "access":
            self.seen.append((event.agent, event.source.number))


@pytest.mark.parametrize("name", ["numpy", "native"])
def test_random_steps_are_those_of_a_schedule_that_is_asked_for_every_choice(name: str) -> None:
    """The events of more turns than the short ones, and updates that are lost, are the same."""
    found = []
    for schedule in (Random(5), Asked(5)):
        source, steps = np.zeros(3 * 256, np.uint32), Steps()
        with engine(name):
            threads(COUNTED, 256, source=source, grid=3, schedule=schedule, observers=[steps])
        found.append((int(source[0]), steps.seen))
    assert len(found[0][1]) > 256
    assert found[0] == found[1]


@pytest.mark.parametrize("limit", [150, 400])
def test_the_limit_is_found_at_the_same_place(limit: int) -> None:
    found = []
    for name in ("numpy", "native"):
        with engine(name), pytest.raises(Exception, match="instructions") as error:
            threads(LONG, 128, source=np.zeros(128, np.uint32), limit=limit)
        found.append(str(error.value))
    assert found[0] == found[1]


def test_an_unsupported_instruction_is_named_with_its_line() -> None:
    """The search for later instructions that native code can execute does not move the place."""
    body = "mov.u32 %r3, 1;\n cvt.u64.bf16 %rd5, %h1;\n mov.u64 %rd6, 2;\n add.u64 %rd6, %rd6, %rd5;"
    found = []
    for name in ("numpy", "native"):
        with engine(name), pytest.raises(Exception, match="NOT_MODELLED") as error:
            threads(body, 32)
        found.append(str(error.value))
    assert found[0] == found[1]


POLLED = """mov.u32 %r40, sh; shl.b32 %r41, %r0, 2; add.u32 %r40, %r40, %r41; setp.ge.u32 %p2, %r0, 128; @%p2 bra POLL;
 st.shared.u32 [%r40], %r1; bar.sync 1, 128; xor.b32 %r42, %r41, 128; mov.u32 %r43, sh; add.u32 %r43, %r43, %r42;
 ld.shared.u32 %r44, [%r43]; add.u32 %r44, %r44, %r1; st.global.u32 [%rd0], %r44; membar.gl;
 setp.ne.u32 %p3, %r0, 0; @%p3 bra DONE; mov.u32 %r45, 77; st.volatile.global.u32 [%rd1], %r45; bra DONE;
 POLL: ld.volatile.global.u32 %r46, [%rd1]; setp.ne.u32 %p4, %r46, 77; @%p4 bra POLL; st.global.u32 [%rd0], %r46;
 DONE:"""
"""Half of the warps meet at a barrier, the others poll for what one of them stores after it."""


@pytest.mark.usefixtures("long_turns")
def test_groups_that_have_passed_a_barrier_are_examined_for_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table executes them meanwhile: they go on after the barrier there too."""
    monkeypatch.setattr(grid, "_LOOK_AFTER", 0)
    source = np.arange(256, dtype=np.uint32) + 1000
    for seed in range(16):
        found = []
        for name in ("numpy", "native"):
            given = source.copy()
            with engine(name):
                found.append(threads(POLLED, 256, source=given, schedule="random", seed=seed))
        assert np.array_equal(*found)
        assert (found[0][128:] == 77).all()


BARRIERS = """mov.u32 %r40, sh; shl.b32 %r41, %r0, 2; add.u32 %r40, %r40, %r41; mov.u32 %r47, 0; mov.u32 %r48, sh;
 ROUND: add.u32 %r42, %r0, %r47; st.shared.u32 [%r40], %r42; bar.sync 0; xor.b32 %r43, %r41, 128;
 add.u32 %r43, %r48, %r43; ld.shared.u32 %r44, [%r43]; bar.sync 1, 128; xor.b32 %r43, %r41, 256;
 add.u32 %r43, %r48, %r43; ld.shared.u32 %r45, [%r43]; shr.u32 %r46, %r0, 6; setp.eq.u32 %p1, %r46, 0;
 @%p1 bra FIRST; bar.sync 3, 64; bra MET; FIRST: bar.sync 2, 64; MET: bar.sync 0; add.u32 %r47, %r47, 1;
 setp.lt.u32 %p2, %r47, 4; @%p2 bra ROUND; add.u32 %r44, %r44, %r45; st.global.u32 [%rd0], %r44;"""
"""Values that other warps have stored, between barriers of all warps and of two."""


@pytest.mark.parametrize("seed", range(4))
def test_warps_that_native_code_lets_wait_at_barriers_meet_as_in_python(seed: int) -> None:
    source, steps = np.random.default_rng(seed).integers(0, 1 << 20, 128, np.uint32), []
    lanes = np.arange(128, dtype=np.uint32)
    for name, schedule in (("numpy", Random(seed)), ("native", Random(seed)), ("native", Asked(seed))):
        with engine(name):
            found = threads(BARRIERS, 128, source=source, schedule=schedule)
        assert np.array_equal(found[:, 0], (lanes ^ 32) + 3 + (lanes ^ 64) + 3)
        steps.append((schedule.taken, schedule.below(1 << 30)))
    assert steps[0] == steps[1] == steps[2]


@pytest.mark.parametrize(
    "body",
    [
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra DONE; bar.sync 1, 128; DONE: st.global.u32 [%rd0], %r0;",
        "bar.sync 1, 256;",
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra OTHER; bar.sync 1, 96; bra DONE; OTHER: bar.sync 1; DONE:",
    ],
)
def test_barriers_that_do_not_open_have_the_same_error_after_native_arrivals(body: str) -> None:
    found = []
    for name in ("numpy", "native"):
        with engine(name), pytest.raises(Exception, match=r"[Bb]arrier") as error:
            threads(body, 128, source=np.zeros(128, np.uint32), schedule="random", seed=2)
        found.append(str(error.value))
    assert found[0] == found[1]
