"""The tool that makes mutants: one change each, a launch as plain data, and what schedules find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")
if BENCH not in sys.path:
    sys.path.append(BENCH)

import mutants as tool  # noqa: E402
from mutant_classes import mutants  # noqa: E402
from mutant_reasons import reason  # noqa: E402
from mutant_runs import outcome  # noqa: E402

TEXT = """\
	mbarrier.init.shared::cta.b64 [%r1], 4;
	fence.mbarrier_init.release.cluster;
	bar.warp.sync -1;
	bar.sync 1, 160;
$wait_0:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;
	@!%p1 bra $wait_0;
	ld.shared.u32 %r5, [%r6];
	add.u32 %r7, %r1, 8;
	@%p2 mbarrier.arrive.shared::cta.b64 _, [%r7];
	st.release.gpu.global.u32 [%rd1], 1;
	cp.async.bulk.wait_group.read 1;
	ret;"""


def test_every_mutant_is_one_change():
    made = {mutant.name: mutant for mutant in mutants(TEXT)}
    assert set(made) == {
        "mbarrier.init deleted", "arrival count + 1", "arrival count - 1", "fence.mbarrier_init deleted",
        "bar.warp.sync deleted", "bar.sync deleted", "bar count - 32", "mbarrier wait deleted", "wait parity flipped",
        "mbarrier.arrive deleted", "mbarrier.arrive twice", "mbarrier.arrive moved up", "release weakened",
        "scope narrowed", "bulk wait_group deleted", "bulk wait_group + 1",
    }  # fmt: skip
    for mutant in made.values():
        changed = [now != old for now, old in zip(mutant.applied(TEXT).split("\n"), TEXT.split("\n"), strict=True)]
        assert sum(changed) == 1 + (mutant.moved is not None)
    moved = made["mbarrier.arrive moved up"].applied(TEXT).split("\n")[7]
    assert moved.startswith("add.u32 %r7, %r1, 8; @%p2 mbarrier.arrive")
    assert moved.endswith("ld.shared.u32 %r5, [%r6];")
    assert made["scope narrowed"].after.strip() == "st.release.cta.global.u32 [%rd1], 1;"
    assert made["bar count - 32"].after.strip() == "bar.sync 1, 128;"


def test_fences_of_tensor_maps_and_registers():
    text = """\
	fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;
	@%p1 fence.proxy.tensormap::generic.release.gpu;
	setmaxnreg.inc.sync.aligned.u32 \t240;
	setmaxnreg.inc.sync.aligned.u32 256;"""
    made = [(mutant.name, mutant.line, mutant.after.strip()) for mutant in mutants(text)]
    assert made == [
        ("fence.proxy.tensormap deleted", 0, ""),
        ("fence.proxy.tensormap deleted", 1, ""),
        ("setmaxnreg + 8", 2, "setmaxnreg.inc.sync.aligned.u32 \t248;"),
    ]


def test_reasons_follow_from_the_text():
    lines = TEXT.split("\n")
    assert "aligned barrier" in reason("bar.warp.sync deleted", "any", TEXT, 2)
    assert "CTA ends" in reason(
        "bulk wait_group deleted", "any", TEXT, lines.index("\tcp.async.bulk.wait_group.read 1;")
    )
    assert reason("mbarrier wait deleted", "any", TEXT, 5) == ""


@pytest.mark.parametrize(
    ("family", "name", "schedule"),
    [
        ("sm_100a one CTA", "bulk wait_group deleted", "hold:bulk-store"),
        ("sm_90a split-K in memory", "release weakened", "weak"),
    ],
)
def test_a_schedule_finds_what_eager_misses(family, name, schedule):
    text, job = tool.whole(family)
    digest, limit = tool.expected(family)
    assert outcome(job, schedule, 0, limit)[0] == digest, "the whole kernel is right"
    chosen = [each for each in mutants(text) if each.name == name and not reason(name, family, text, each.line)]
    mutant = {**job, "text": chosen[0].applied(text)}
    assert outcome(mutant, "eager", 0, limit)[0] == digest
    assert outcome(mutant, schedule, 0, limit)[0] != digest
