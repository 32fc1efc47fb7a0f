"""Register budgets: `setmaxnreg` of several warpgroups, in whatever order the warps come to it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from tests.checker.kernels import codes
from tests.checker.test_equal_passes import same_reports
from tests.corpus.cases import CASES
from tests.corpus.compile import CompilerMissing
from tests.corpus.run import bound

import warploom
from warploom.host.launch import Launch
from warploom.launcher import launch_of, prepare
from warploom.machine.core.schedule import Eager
from warploom.ptx.syntax.printer import print_module

HEAD = """.version 8.6
.target {target}
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 wrong)
.reqntid {block}
{bound}
{{
    .reg .b32 %r<16>;
    .reg .b64 %rd<4>;
    .reg .pred %p, %q;
    mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 7; mov.u32 %r3, %ctaid.x; ld.param.u32 %r4, [wrong]; mov.b32 %r5, 0;
"""
OWN = "bar.sync {own}, 128;"
"""A barrier of the warps of one warpgroup."""


def inc(registers: int) -> str:
    return f"setmaxnreg.inc.sync.aligned.u32 {registers};"


def dec(registers: int) -> str:
    return f"setmaxnreg.dec.sync.aligned.u32 {registers};"


def sync(number: int, groups: int = 2) -> str:
    return f"bar.sync {number}, {128 * groups};"


def arrive(number: int, groups: int = 2) -> str:
    return f"bar.arrive {number}, {128 * groups};"


def text_of(*groups: tuple[str, ...], bound: str = ".maxnreg 168", target: str = "sm_90a", before: str = "") -> str:
    """A kernel in which each warpgroup executes its own parts."""
    parts, numbers = [], count()
    for number, body in enumerate(groups):
        each = "\n    ".join(part.format(own=8 + number, n=next(numbers)) for part in body)
        parts.append(f"setp.ne.u32 %p, %r2, {number}; @%p bra after{number};\n    {each}\nafter{number}:")
    head = HEAD.format(block=128 * len(groups), bound=bound, target=target)
    return f"{head}{before}{chr(10).join(parts)}\n    ret;\n}}\n"


def checked(*groups: tuple[str, ...], budget: int = 0, grid: int = 1, wrong: int = 0, **given: Any) -> warploom.Report:
    launch = {"grid": grid, "block": 128 * len(groups), "args": [np.zeros(64, np.int32), wrong]}
    return warploom.check(text_of(*groups, **given), launch=launch, budget=budget)


RIGHT = {
    "one gives, two take": ((dec(40),), (inc(232),), (inc(232),)),
    "the numbers of CUTLASS": ((dec(24),), (inc(240),), (inc(240),)),
    "what is left over is not needed": ((dec(24),), (inc(200),), (inc(232),)),
    "taken for a while, in turn": (
        (dec(104),), (inc(232), OWN, dec(168), arrive(1)), (sync(1), inc(232), OWN, dec(168))
    ),
    "given back by another that need not wait": ((dec(104),), (inc(232),), (sync(1), dec(104)), (arrive(1), inc(176))),
    "the same count": ((inc(168), OWN, dec(168)), (inc(168),)),
    "taken again after a barrier of all": (
        (dec(104), sync(1), inc(168), sync(2)), (inc(232), OWN, dec(168), sync(1), sync(2), dec(40))
    ),
    "small ones that never take enough to matter": (
        (dec(104),), (inc(232), OWN, arrive(1), dec(168)), (sync(1), inc(232), OWN, dec(168)), (inc(176), sync(2), dec(168)),
        (inc(176), sync(2), dec(168)),
    ),
}  # fmt: skip
"""Kernels in which every order of the warps comes to an end."""
UNSYNCHRONISED = {
    "each warp gives back by itself": ((dec(104),), (inc(232), dec(168)), (inc(232), dec(168))),
    "a barrier that warps come to without waiting": (
        (dec(104),), (inc(232), arrive(1), dec(168)), (inc(200), sync(1), dec(168))
    ),
    "the same count": ((dec(168), dec(104)), (inc(200),)),
    "lanes of each warp alone": ((dec(104), "bar.warp.sync -1;", dec(40)), (inc(232),)),
}  # fmt: skip
"""Kernels that come to an end in every order, and whose warps do not meet between two changes of their warpgroup."""
WRONG = {
    "two take in turns without an order": ((dec(104),), (inc(232), OWN, dec(168)), (inc(232), OWN, dec(168))),
    "one may take what the other waits for": (
        (dec(104),), (inc(232), OWN, arrive(1), dec(168)), (inc(200), sync(1), dec(168))
    ),
    "given back after a wait for the one that takes": (
        (dec(104),), (inc(232), OWN, arrive(1)), (sync(1), dec(104)), (inc(176),)
    ),
    "a third may come between": (
        (dec(104),), (inc(232), OWN, arrive(1), dec(168)), (sync(1), inc(232), OWN, dec(168)), (inc(200), sync(2), dec(168)),
        (inc(200), sync(2), dec(168)),
    ),
    "two small ones for a large one": (
        (dec(136),), (inc(184), arrive(1), OWN, dec(168)), (inc(200), arrive(2), OWN, dec(168)),
        (inc(184), sync(1), sync(2), dec(168)),
    ),
}  # fmt: skip
"""Kernels that end in the emulator's run, and hang in another order."""


@pytest.mark.parametrize("name", RIGHT)
def test_budgets_that_suffice_in_every_order_are_proved(name: str) -> None:
    report = checked(*RIGHT[name])
    assert report.findings == ()
    assert report.verdict == "PROVED"
    assert not any(each.startswith("register-budget") for each in report.assumptions)


@pytest.mark.parametrize("name", WRONG)
def test_an_order_that_hangs_is_found_and_replays(name: str) -> None:
    report = checked(*WRONG[name], budget=5)
    (finding,) = report
    assert finding.code == "REGISTER_BUDGET"
    assert finding.witness is not None
    assert finding.witness.kind == "DEADLOCK"
    assert finding.witness.confirmed
    wants, *others = finding.parties
    assert "setmaxnreg.inc" in wants.instruction
    assert others
    assert {party.warp // 4 for party in finding.parties} >= {1}
    with pytest.raises(warploom.WarploomError, match="DEADLOCK"):
        warploom.launch(
            text_of(*WRONG[name]), grid=1, block=128 * len(WRONG[name]), args=[np.zeros(64, np.int32), 0],
            schedule=finding.witness.schedule,
        )  # fmt: skip


def test_the_finding_has_both_parties_and_the_sums() -> None:
    (finding,) = checked(*WRONG["two take in turns without an order"])
    wants, late, rival = finding.parties
    assert (wants.warp // 4, late.warp // 4, rival.warp // 4) == (1, 1, 2)
    assert "setmaxnreg.dec" in late.instruction
    assert "needs 2,048 more registers for a warp" in finding.sentence
    assert "pool has 0" in finding.sentence
    assert "warps 0, 1, 2, 3 104" in finding.sentence
    assert "2,048 registers" in finding.missing


@pytest.mark.parametrize("name", UNSYNCHRONISED)
def test_a_warpgroup_synchronises_between_two_changes(name: str) -> None:
    for profile, expected in (("strict", {"REGISTER_SYNC"}), ("lenient", set())):
        report = warploom.check(launch_of_groups(UNSYNCHRONISED[name]), profile=profile, budget=0)
        assert codes(report) == expected
        assert "setmaxnreg-sync" in {each.name for each in report.relaxed}
        assert all(each.excused_by == "setmaxnreg-sync" for each in report)


def launch_of_groups(groups: tuple[tuple[str, ...], ...], **given: Any) -> Launch:
    options = {"grid": 1, "args": [np.zeros(64, np.int32), 0]}
    return launch_of(text_of(*groups, **given), block=128 * len(groups), **options)


@pytest.mark.parametrize(
    ("bound", "assumes"),
    [(".maxnreg 168", False), (".minnctapersm 1", False), ("", True), (".maxnreg 168\n.minnctapersm 1", False)],
)
def test_the_registers_at_launch_are_assumed_where_ptxas_ignores_the_instruction(bound: str, assumes: bool) -> None:
    report = checked(*RIGHT["one gives, two take"], bound=bound)
    assert report.verdict == "PROVED"
    assert any(each.startswith("register-budget") for each in report.assumptions) == assumes


PASS = """mov.b32 %r5, 0;
pass{n}: setp.eq.u32 %q, %r5, %r4; @%q bra other{n};
    ORDERED
    bra.uni next{n};
other{n}:
    UNORDERED
next{n}: bar.sync 0; add.u32 %r5, %r5, 1; setp.lt.u32 %q, %r5, 40; @%q bra pass{n};"""
"""Forty passes in which a warpgroup takes registers and gives them back; pass %r4 is another one."""
FIRST = f"{inc(232)} {OWN} {dec(168)} {arrive(1)}"
SECOND = f"{sync(1)} {inc(232)} {OWN} {dec(168)}"


def in_passes(wrong: int, grid: int = 1) -> Launch:
    first = PASS.replace("UNORDERED", FIRST.replace(arrive(1), "")).replace("ORDERED", FIRST)
    second = PASS.replace("UNORDERED", SECOND.replace(sync(1), "")).replace("ORDERED", SECOND)
    idle = f"{dec(104)} mov.b32 %r5, 0; idle: bar.sync 0; add.u32 %r5, %r5, 1; setp.lt.u32 %q, %r5, 40; @%q bra idle;"
    text = text_of((idle,), (first,), (second,))
    return launch_of(text, grid=grid, block=384, args=[np.zeros(64, np.int32), wrong])


@pytest.mark.parametrize("wrong", [99, 0, 1, 17, 39])
def test_a_pass_without_its_order_is_found(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = same_reports(in_passes(wrong), "strict", monkeypatch)
    assert codes(report) == (set() if wrong == 99 else {"REGISTER_BUDGET"})


def test_changes_that_all_warps_know_are_judged_by_themselves() -> None:
    """Sixteen changes in each of 400 passes, of which none has to be kept for long."""
    launch = in_passes(999)
    longer = replace(launch, program=str(launch.program).replace("%r5, 40;", "%r5, 400;"))
    assert warploom.check(longer, budget=0).verdict == "PROVED"
    found = in_passes(399)
    late = replace(found, program=str(found.program).replace("%r5, 40;", "%r5, 400;"))
    assert codes(warploom.check(late, budget=0)) == {"REGISTER_BUDGET"}


def test_a_warp_that_has_done_nothing_yet_may_come_at_any_time() -> None:
    """In the run the second warpgroup begins when the first has ended; else it takes what the first one needs."""
    turns = f"mov.b32 %r5, 0; turn{{n}}: {dec(160)} {OWN} {inc(168)} {OWN} add.u32 %r5, %r5, 1; "
    loop = turns + f"setp.lt.u32 %q, %r5, 60; @%q bra turn{{n}}; {dec(160)}"
    assert codes(checked((loop,), (inc(176),))) == {"REGISTER_BUDGET"}
    assert checked((loop,), (inc(176),), (dec(160),)).verdict == "PROVED"


def test_changes_that_no_warp_waits_for_are_too_many() -> None:
    turns = f"mov.b32 %r5, 0; turn{{n}}: {dec(160)} {OWN} {inc(168)} {OWN} add.u32 %r5, %r5, 1; "
    loop = turns + "setp.lt.u32 %q, %r5, 200; @%q bra turn{n};"
    report = checked((loop,), (loop,))
    assert report.verdict == "INCOMPLETE"
    assert "too many to be searched" in report.reasons[0]


@pytest.mark.parametrize("wrong", [99, 0, 5, 7])
def test_a_cluster_without_its_order_is_found(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered, unordered = (FIRST, SECOND), (FIRST.replace(arrive(1), ""), SECOND.replace(sync(1), ""))
    bodies = [
        f"setp.eq.u32 %q, %r3, %r4; @%q bra other{{n}}; {one} bra.uni on{{n}}; other{{n}}: {other} on{{n}}:"
        for one, other in zip(ordered, unordered, strict=True)
    ]
    text = text_of((dec(104),), *((each,) for each in bodies))
    launch = launch_of(text, grid=8, block=384, args=[np.zeros(64, np.int32), wrong])
    report, _ = same_reports(launch, "strict", monkeypatch)
    assert codes(report) == (set() if wrong == 99 else {"REGISTER_BUDGET"})
    if report.findings:
        assert report.findings[0].parties[0].cta == (wrong, 0, 0)


@pytest.mark.parametrize("where", ["before", "inside"])
@pytest.mark.parametrize("is_ordered", [True, False])
def test_all_sizes(where: str, is_ordered: bool) -> None:
    """The counts are part of the state that recurs, where warps change them in each pass."""
    turn = (FIRST, SECOND) if is_ordered else (FIRST.replace(arrive(1), ""), SECOND.replace(sync(1), ""))
    loop = "mov.b32 %r5, 0; step{n}: INSIDE bar.sync 0; add.u32 %r5, %r5, 1; setp.lt.u32 %q, %r5, %r4; @%q bra step{n};"
    bodies = [
        f"{each if where == 'before' else ''} {loop.replace('INSIDE', each if where == 'inside' else '')}"
        for each in turn
    ]
    text = text_of((f"{dec(104)} {loop.replace('INSIDE', '')}",), *((each,) for each in bodies))
    launch = launch_of(text, grid=1, block=384, args=[np.zeros(64, np.int32), 40])
    report = warploom.check(launch, sizes="all", budget=0)
    assert codes(report) == (set() if is_ordered else {"REGISTER_BUDGET"})
    if is_ordered:
        assert any("wrong >= 1" in each for each in report.covers.generalised), str(report)


CONFIGS = {
    "cooperative": warploom.HopperConfig(tile=(256, 128), num_pipeline_stages=2),
    "ping-pong": warploom.HopperConfig(tile=(64, 256), pingpong=True, num_pipeline_stages=2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_other_counts_of_a_whole_kernel_are_refuted(name: str) -> None:
    a, b = np.ones((256, 128), np.float16), np.ones((128, 256), np.float16)
    launch = warploom.matmul.bind(a, b, config=CONFIGS[name], target="sm_90a")
    whole = warploom.check(launch, budget=0)
    assert whole.verdict == "PROVED"
    assert not any(each.startswith("register-budget") for each in whole.assumptions)
    text = print_module(prepare(launch, Eager(), None, None, (), None).program.module)
    lines = {line.strip() for line in text.splitlines() if "setmaxnreg" in line}
    assert len(lines) == 2
    for line in lines:
        number = int(line.rstrip(";").rsplit(None, 1)[-1])
        mutant = text.replace(line, line.replace(str(number), str(number + 8)))
        found = codes(warploom.check(replace(launch, program=mutant), budget=0))
        assert found & {"REGISTER_BUDGET", "DEADLOCK"}, line


@pytest.mark.parametrize(("name", "is_full"), [("gluon_ping_pong_sm90", False), ("cuda_wgmma_ring_sm90", True)])
def test_kernels_of_other_compilers_keep_to_their_budget(name: str, is_full: bool) -> None:
    case = next(each for each in CASES if each.name == name)
    try:
        prepared = case.prepare(seed=1)
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    compiled, args = prepared.compiled, [bound(each, prepared.arrays) for each in prepared.args]
    launch = launch_of(
        compiled.ptx, entry=compiled.entry, grid=prepared.grid, block=compiled.block,
        shared_bytes=compiled.shared_bytes, args=args,
    )  # fmt: skip
    assert warploom.check(launch, profile="lenient", budget=0).verdict == "PROVED"
    less = re.sub(r"(setmaxnreg\.dec\S*\s+)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 8}", compiled.ptx)
    found = codes(warploom.check(replace(launch, program=less), profile="lenient", budget=0))
    assert bool(found & {"REGISTER_BUDGET", "DEADLOCK"}) == is_full
