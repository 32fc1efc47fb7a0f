"""Passes that use the stages of a pipeline in turn are equal up to a renaming of places, and are judged once.

The report is the one of a check that judges every event, also where one late pass, one late tile or one cluster whose
request for work was refused is wrong.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.checker.recurrence.test_requests import asking
from tests.checker.recurrence.test_sizes import PIPELINE
from tests.checker.test_equal_passes import FENCE, LOOP, RING, same_reports

import warploom
from warploom.host.launch import Launch
from warploom.launcher import launch_of
from warploom.ptx.syntax.printer import print_module

PASSES = 120
ASKS = 2
"""The further runs of a kernel that asks for work."""
LATE = "setp.eq.u32 %p9, %r10, {AT};\n"
FILL_STORE = "    st.shared.u32 [%r16], %r10;\n"
TAKE_LOAD = "    ld.shared.u32 %r21, [%r16];\n"
NEXT = "@%p9 xor.b32 %r16, %r16, 128;\n"


def of_four_stages() -> str:
    """The pipeline of two warps with four stages."""
    text = PIPELINE.replace("{PARITY}", LATE).replace("{LAST}", "%r20").replace("FULL:\n", f"{LATE}FULL:\n")
    text = text.replace(".align 128 .b8 data[256]", ".align 256 .b8 data[512]").replace("bars[4]", "bars[8]")
    inits = "".join(f"    mbarrier.init.shared::cta.b64 [%r3+{8 * at}], 32;\n" for at in range(4, 8))
    text = text.replace("READY:\n", f"{inits}READY:\n", 1)
    text = text.replace("%r14+16", "%r14+32")
    return text.replace("setp.eq.u32 %p4, %r17, 2;", "setp.eq.u32 %p4, %r17, 4;")


WHOLE = of_four_stages()
DEFECTS = {
    "the producer does not wait": WHOLE.replace("FREE:\n", "@%p9 bra STORE;\nFREE:\n").replace(
        "@!%p3 bra FREE;\n", "@!%p3 bra FREE;\nSTORE:\n"
    ),
    "the consumer does not wait": WHOLE.replace("FULL:\n", "@%p9 bra LOAD;\nFULL:\n").replace(
        "@!%p3 bra FULL;\n", "@!%p3 bra FULL;\nLOAD:\n"
    ),
    "the producer stores to another stage": WHOLE.replace(FILL_STORE, NEXT + FILL_STORE),
    "the consumer loads from another stage": WHOLE.replace(TAKE_LOAD, NEXT + TAKE_LOAD),
    "the consumer loads before it waits": WHOLE.replace(
        "FULL:\n", "shl.b32 %r15, %r11, 7;\nadd.u32 %r16, %r5, %r15;\n@%p9 ld.shared.u32 %r21, [%r16];\nFULL:\n"
    ),
    "the producer arrives for another stage": WHOLE.replace(
        "    mbarrier.arrive.shared::cta.b64 _, [%r14];\n",
        "    @%p9 xor.b32 %r14, %r14, 8;\n    mbarrier.arrive.shared::cta.b64 _, [%r14];\n",
    ),
    "the producer waits for the other phase": WHOLE.replace("FREE:\n", "@%p9 xor.b32 %r12, %r12, 1;\nFREE:\n"),
}


def pipeline(text: str, at: int, steps: int = PASSES) -> Launch:
    return launch_of(text.replace("{AT}", str(at)), grid=1, block=64, args=(np.zeros(32, np.int32), np.uint32(steps)))


@pytest.mark.parametrize("steps", [PASSES, PASSES + 1, PASSES + 2, PASSES + 3])
def test_passes_of_a_ring_are_left_out(steps, monkeypatch):
    report, left_out = same_reports(pipeline(WHOLE, 1000, steps), "strict", monkeypatch)
    assert report.verdict == "PROVED"
    # Passes with the stages of the one before would come after four of them, and be left out in fours.
    assert left_out[0] > 0.7 * report.cost.events


@pytest.mark.parametrize("at", [6, 37, 100, PASSES - 1])
@pytest.mark.parametrize("name", DEFECTS)
def test_a_pass_of_a_ring_that_alone_is_wrong_is_found(name, at, monkeypatch):
    report, _ = same_reports(pipeline(DEFECTS[name], at), "strict", monkeypatch)
    is_harmless = name == "the consumer loads from another stage" and at == PASSES - 1  # nothing stores there any more
    assert report.verdict == ("PROVED" if is_harmless else "REFUTED")


@pytest.mark.parametrize("passes", [15, 96])
def test_a_ring_whose_equal_passes_lead_to_other_states_is_judged_to_its_end(passes, monkeypatch):
    """Nothing waits for the stores of a ring of 16 slots: the passes are equal, and the 17th overwrites the first."""
    text = LOOP.replace("BODY", RING.replace("FENCE", FENCE).replace("WAIT", "")).replace("AFTER", "")
    arrays = (np.zeros(64 * 200, np.int32) for _ in range(2))
    report, _ = same_reports(launch_of(text, grid=1, block=64, args=(*arrays, passes, 0)), "strict", monkeypatch)
    assert {each.code for each in report.findings} == ({"RACE_WAR"} if passes > 16 else set())


def tiles(text: str, grid: int = 24, steps: int = 5) -> Launch:
    return launch_of(text, grid=grid, block=64, args=(np.zeros(32 * grid, np.uint32), np.uint32(steps)))


FLIP = "selp.b32 %r30, 1, 0, %p9; xor.b32 %r12, %r12, %r30;"
OWN = "mov.u32 %r31, %ctaid.x; setp.eq.u32 %p9, %r31, {AT};"


def test_tiles_that_use_the_stages_in_turn_are_left_out(monkeypatch):
    """A tile has five steps and the ring two stages, so that every second tile has the same places."""
    report, left_out = same_reports(tiles(asking()), "strict", monkeypatch, ASKS)
    assert report.verdict == "PROVED"
    assert left_out[0] > 0


@pytest.mark.parametrize("at", [3, 14, 23])
def test_a_late_tile_that_alone_is_wrong_is_found(at, monkeypatch):
    text = asking(fill=f"setp.eq.u32 %p9, %r22, {at};{FLIP}")
    assert same_reports(tiles(text), "strict", monkeypatch, ASKS)[0].verdict == "REFUTED"


@pytest.mark.parametrize("at", [1, 13, 23])
def test_a_refused_cluster_that_alone_is_wrong_is_found(at, monkeypatch):
    """This cluster never runs if all requests are granted."""
    text = asking(fill=OWN.replace("{AT}", str(at)) + FLIP)
    assert same_reports(tiles(text), "strict", monkeypatch, ASKS)[0].verdict == "REFUTED"


def test_a_refused_cluster_that_stores_to_the_place_of_another_is_found(monkeypatch):
    """It processes the tile of another cluster: the same bytes, with other values."""
    text = asking().replace("mov.u32 %r37, %ctaid.x;", "mov.u32 %r37, %ctaid.x;\nmin.u32 %r37, %r37, 22;")
    text = text.replace("st.global.u32 [%rd3], %r19;", "add.u32 %r19, %r19, %ctaid.x;\nst.global.u32 [%rd3], %r19;")
    assert "RACE_WAW" in {each.code for each in same_reports(tiles(text), "strict", monkeypatch, ASKS)[0].findings}


CONFIG = warploom.MatmulConfig(cta_group=1, mma_shape=(128, 32, 16), num_pipeline_stages=3)
PAIRS = warploom.MatmulConfig(cta_group=2, mma_shape=(128, 32, 16), num_pipeline_stages=3)


def matmul(config: warploom.MatmulConfig, count: int = 10) -> Launch:
    """A matmul that asks for its tiles; the K steps of a tile are no multiple of the stages."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((128 * count, 256), (256, 32)))
    return warploom.matmul.bind(a, b, target="sm_100a", config=config)


@pytest.mark.parametrize("config", [CONFIG, PAIRS], ids=["one CTA", "pairs"])
def test_tiles_of_a_matmul_have_the_report_of_a_check_of_every_event(config, monkeypatch):
    report, left_out = same_reports(matmul(config, 20), "strict", monkeypatch, ASKS)
    assert report.verdict == "PROVED"
    assert left_out[0] > 0


def broken(opcode: str, number: int) -> Launch:
    """The matmul without one of its instructions."""
    launch = matmul(CONFIG)
    lines = print_module(launch.program).splitlines()
    places = [at for at, line in enumerate(lines) if opcode in line and not line.lstrip().startswith("//")]
    lines[places[number]] = ""
    return replace(launch, program="\n".join(lines))


@pytest.mark.parametrize(("opcode", "number"), [
    ("fence.proxy.async", 0), ("fence.proxy.async", 1), ("tcgen05.fence::after", 0), ("tcgen05.fence::before", 0),
    ("tcgen05.wait", 0), ("cp.async.bulk.wait_group", 0),
])  # fmt: skip
def test_a_matmul_without_an_instruction_has_the_report_of_a_check_of_every_event(opcode, number, monkeypatch):
    same_reports(broken(opcode, number), "strict", monkeypatch, ASKS)
