"""Clusters that do the same are judged once; the report is the one of a check that judges every event."""

from __future__ import annotations

import numpy as np
import pytest

import warploom
from warploom.checker.collecting import Findings
from warploom.checker.determinism import steering
from warploom.checker.equal_clusters import Clusters
from warploom.checker.observer import Checker
from warploom.checker.rules import Rules
from warploom.checker.runs import copied
from warploom.host.launch import Launch
from warploom.launcher import launch_of, prepare
from warploom.machine.core.grid import Grid
from warploom.machine.core.schedule import Eager

RNG = np.random.default_rng()
HEAD = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<12>;
    .reg .b64 %rd<6>;
    .reg .pred %p<4>;
    .shared .align 16 .b8 tile[512];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, tile;
    shl.b32 %r4, %r1, 2;
    add.u32 %r5, %r3, %r4;
    xor.b32 %r6, %r4, 252;
    add.u32 %r6, %r3, %r6;
    ld.param.u64 %rd1, [out];
    st.shared.u32 [%r5], %r1;
"""
TAIL = """
    ld.shared.u32 %r7, [%r6];
    mul.wide.u32 %rd2, %r8, 4;
    add.u64 %rd2, %rd1, %rd2;
    st.global.u32 [%rd2], %r7;
    ret;
}
"""
OWN = "mad.lo.u32 %r8, %r2, 64, %r1;"
BODIES = {
    "equal": f"bar.sync 0;\n{OWN}",
    "race in all": OWN,
    "race in one": f"setp.eq.u32 %p1, %r2, 3;\n@%p1 bra past;\nbar.sync 0;\npast:\n{OWN}",
    "overlap of two": "bar.sync 0;\nmad.lo.u32 %r8, %r2, 63, %r1;",
    "all the same bytes": "bar.sync 0;\nmov.u32 %r8, %r1;\nadd.u32 %r7, %r2, 0;",
    "counted": f"bar.sync 0;\natom.global.add.u32 %r9, [%rd1+4096], 1;\n{OWN}",
    "two kinds": f"and.b32 %r9, %r2, 1;\nsetp.eq.u32 %p1, %r9, 0;\n@%p1 st.shared.u32 [%r5], 99;\nbar.sync 0;\n{OWN}",
}


def observed(launch: Launch, profile: str, *, whole: bool) -> tuple[Checker, Clusters]:
    checker = Checker(Rules(profile), Findings())
    clusters = Clusters(checker)
    setup = copied(prepare(launch, Eager(), None, None, (checker if whole else clusters,), None))
    checker.memories.steering = steering(setup.program.flow)
    with np.errstate(all="ignore"):
        grid = Grid(setup)
        grid.run()
        grid.discard()
    clusters.finish()
    return checker, clusters


def same_report(launch: Launch, profile: str = "strict") -> Clusters:
    whole, _ = observed(launch, profile, whole=True)
    checker, clusters = observed(launch, profile, whole=False)
    assert checker.events == whole.events
    assert set(checker.rules.assumed) == set(whole.rules.assumed)
    assert checker.rules.relaxed == whole.rules.relaxed
    assert checker.agents.converged == whole.agents.converged
    assert set(checker.lints) == set(whole.lints)
    assert {each.code for each in checker.memories.remarks()} == {each.code for each in whole.memories.remarks()}
    found = [
        {(each.code, *(party.line for party in each.parties)) for each in one.findings.all()}
        for one in (checker, whole)
    ]
    assert found[0] == found[1]
    return clusters


@pytest.mark.parametrize("name", BODIES)
def test_small_kernels_have_the_report_of_a_check_of_every_event(name):
    text = HEAD + BODIES[name] + TAIL
    launch = launch_of(text, grid=7, block=64, args=(np.zeros(2048, np.int32),))
    clusters = same_report(launch)
    judged_once = {"equal": 1, "two kinds": 2}
    if name in judged_once:
        assert len(clusters.models) == judged_once[name]
    verdict = warploom.check(launch).verdict.name
    refuted = {"race in all", "race in one", "overlap of two"}
    assert verdict == ("REFUTED" if name in refuted else "PROVED"), name


def gemm(target: str, m: int, n: int, k: int) -> Launch:
    a, b = (RNG.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    return warploom.matmul.bind(a, b, target=target)


@pytest.mark.parametrize(
    ("target", "m", "n", "k"), [("sm_90a", 300, 520, 192), ("sm_90a", 512, 512, 64), ("sm_100a", 256, 512, 128)]
)
def test_a_matmul_has_the_report_of_a_check_of_every_event(target, m, n, k):
    same_report(gemm(target, m, n, k))


def test_a_race_of_clusters_that_are_equal_inside_is_found():
    """Every second CTA writes the tile of the one before it."""
    text = (
        HEAD
        + "bar.sync 0;\nshr.u32 %r9, %r2, 1;\nmad.lo.u32 %r8, %r9, 64, %r1;"
        + TAIL.replace("st.global.u32 [%rd2], %r7", "add.u32 %r7, %r7, %r2;\nst.global.u32 [%rd2], %r7")
    )
    launch = launch_of(text, grid=8, block=64, args=(np.zeros(2048, np.int32),))
    same_report(launch)
    assert [each.code for each in warploom.check(launch).findings] == ["RACE_WAW"]
