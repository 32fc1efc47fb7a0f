"""Tensor maps that a kernel writes: the release after a write, the acquire in each CTA, and the copies that use the map."""

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
from tests.ops.test_separate_weights import CONFIGS, bound_of

import warploom
from warploom import TensorMap
from warploom.launcher import launch_of, prepare
from warploom.machine.copy.tensor_map_bytes import encode
from warploom.machine.core.schedule import Eager
from warploom.machine.memory.byte_memory import GlobalMemory
from warploom.ptx.syntax.printer import print_module

# Of each warp: %rd2 is its map in global memory, and %r4 its lane's word of the template, which it stores at %rd5.
WRITE = "st.global.u32 [%rd5], %r4;"
STAGE = "st.shared.u32 [%r5], %r4; bar.warp.sync -1;"
COPY = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd2], [stage], 128;"
RELEASE = "fence.proxy.tensormap::generic.release.gpu;"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128;"
SYNC, LANES = "bar.sync 0;", "bar.warp.sync -1;"
PUBLISH = (STAGE, COPY)
LOAD = (
    "setp.ne.u32 %q, %r2, 0; @%q bra L{n}; mbarrier.arrive.expect_tx.shared.b64 _, [full], 128; "
    "cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%rd2, {%r9}], [full]; L{n}:"
)
ARRIVED = "W{n}: mbarrier.try_wait.parity.shared.b64 %w, [full], %r8; @!%w bra W{n}; xor.b32 %r8, %r8, 1;"
USE = (LOAD, ARRIVED)
FILL = "st.shared.u32 [%r7], %r2; fence.proxy.async.shared::cta; bar.warp.sync -1;"
STORE = (
    "setp.ne.u32 %q, %r2, 0; @%q bra S{n}; cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd2, {%r9}], [tile]; "
    "cp.async.bulk.commit_group; S{n}:"
)
READ = "cp.async.bulk.wait_group.read 0; bar.warp.sync -1;"
CLOSE = "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; bar.warp.sync -1;"
FLAG = "mbarrier.arrive.release.cta.shared.b64 _, [flag];"
FLAGGED = "F{n}: mbarrier.try_wait.parity.acquire.cta.shared.b64 %w, [flag], 0; @!%w bra F{n};"
OTHER = "add.u64 %rd2, %rd2, 128; add.u64 %rd5, %rd5, 128;"
BACK = "sub.u64 %rd2, %rd2, 128; sub.u64 %rd5, %rd5, 128;"
BOTH = "st.global.u32 [%rd5], %r4; st.global.u32 [%rd5+128], %r4;"
SET = "st.{how}.gpu.global.u32 [%rd2+2048], 1;"
POLL = "P{n}: ld.{how}.gpu.global.u32 %r11, [%rd2+2048]; setp.eq.u32 %w, %r11, 0; @%w bra P{n};"
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"

Part = str | tuple[str, ...]


def only(cta: int, *parts: Part) -> tuple[str, ...]:
    """Parts that the warps of one CTA execute."""
    label = f"C{cta}_{next(_LABELS)}"
    return f"setp.ne.u32 %p, %r10, {cta}; @%p bra {label};", *flat(parts), f"{label}:"


_LABELS = count()


def flat(parts: tuple[Part, ...]) -> list[str]:
    return [each for part in parts for each in ((part,) if isinstance(part, str) else part)]


TENSOR = TensorMap(np.zeros(64, np.float32), box=(32,))


def text_of(*warps: tuple[Part, ...], shared: bool = True) -> str:
    """A kernel in which each warp executes its own parts; the CTAs have a place for maps each, or one together."""
    numbers, bodies = count(), []
    for warp, parts in enumerate(warps):
        body = "\n    ".join(part.replace("{n}", str(next(numbers))) for part in flat(parts))
        bodies.append(f"setp.ne.u32 %p, %r1, {warp}; @%p bra after{warp};\n    {body}\nafter{warp}:")
    place = "" if shared else "mul.wide.u32 %rd6, %r10, 4096; add.u64 %rd2, %rd2, %rd6;"
    return f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 template[128], .param .u64 maps)
{{
    .reg .b32 %r<16>;
    .reg .b64 %rd<12>;
    .reg .pred %p, %q, %w;
    .shared .align 128 .b8 stage[128];
    .shared .align 128 .b8 tile[128];
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 flag;
    ld.param.u64 %rd2, [maps];
    mov.u32 %r3, %tid.x; shr.u32 %r1, %r3, 5; and.b32 %r2, %r3, 31; mov.u32 %r10, %ctaid.x;
    mov.b32 %r8, 0; mov.b32 %r9, 0; {place}
    mul.wide.u32 %rd4, %r2, 4; add.u64 %rd5, %rd2, %rd4;
    mov.b64 %rd1, template; cvta.param.u64 %rd1, %rd1; add.u64 %rd1, %rd1, %rd4; ld.u32 %r4, [%rd1];
    mov.u32 %r5, stage; shl.b32 %r6, %r2, 2; add.u32 %r5, %r5, %r6; mov.u32 %r7, tile; add.u32 %r7, %r7, %r6;
    setp.ne.u32 %p, %r3, 0;
    @%p bra begun;
    mbarrier.init.shared.b64 [full], 1;
    mbarrier.init.shared.b64 [flag], 32;
    fence.mbarrier_init.release.cluster;
begun:
    barrier.cluster.arrive; barrier.cluster.wait;
    {chr(10).join(bodies)}
    barrier.cluster.arrive; barrier.cluster.wait;
    ret;
}}
"""


def checked(
    *warps: tuple[Part, ...], profile: str = "strict", grid: int = 1, cluster: int = 1, text: str = "",
    maps: bytes = b"", **options: Any,
) -> warploom.Report:  # fmt: skip
    """The report of a kernel; `maps` are the first bytes of the place for maps before the launch."""
    place = np.frombuffer(maps.ljust(1 << 16, b"\0"), np.uint8).copy()
    launch = {"grid": grid, "cluster": cluster, "block": 32 * len(warps), "args": [TENSOR, place]}
    options.setdefault("budget", 0)
    return warploom.check(text or text_of(*warps), launch=launch, profile=profile, **options)


RIGHT = {
    "one warp: copied with a release, acquired, used": ((*PUBLISH, ACQUIRE, *USE),),
    "one warp: stored, released, acquired, used": ((WRITE, RELEASE, ACQUIRE, LANES, *USE),),
    "changed in place, released, acquired": (
        (WRITE, LANES, "tensormap.replace.tile.fill_mode.global.b1024.b32 [%rd2], 0;", RELEASE, ACQUIRE, LANES, *USE),
    ),
    "written by one warp, acquired and used by another": ((*PUBLISH, SYNC), (SYNC, ACQUIRE, *USE)),
    "acquired by the writer, used by another warp of its CTA": ((*PUBLISH, ACQUIRE, SYNC), (SYNC, *USE)),
    "acquired by a third warp": ((*PUBLISH, FLAG, SYNC), (FLAGGED, ACQUIRE, SYNC), (SYNC, *USE)),
    "stored, released, and handed on by an mbarrier": ((WRITE, RELEASE, FLAG), (FLAGGED, ACQUIRE, *USE)),
    "released by a warp that comes after the writer": ((WRITE, SYNC), (SYNC, RELEASE, ACQUIRE, *USE)),
    "used twice after one fence": ((*PUBLISH, ACQUIRE, *USE, *USE),),
    "changed after the load has completed": ((*PUBLISH, ACQUIRE, *USE, *PUBLISH, ACQUIRE, *USE),),
    "changed after the store has read": (
        (*PUBLISH, ACQUIRE, FILL, STORE, READ, *PUBLISH, ACQUIRE, "mov.b32 %r9, 32;", STORE, READ),
    ),
    "two maps, both acquired": ((*PUBLISH, OTHER, *PUBLISH, ACQUIRE, *USE, BACK, ACQUIRE, *USE),),
}  # fmt: skip
"""Kernels that are right, by the letter of the PTX ISA."""
UNFENCED = {
    "no acquire": ((*PUBLISH, *USE),),
    "no release": ((WRITE, ACQUIRE, LANES, *USE),),
    "neither": ((WRITE, LANES, *USE),),
    "stored over a map that was acquired": ((*PUBLISH, ACQUIRE, *USE, WRITE, LANES, *USE),),
    "acquired before the write": ((ACQUIRE, *PUBLISH, *USE),),
    "not acquired again after a second write": ((*PUBLISH, ACQUIRE, *USE, *PUBLISH, *USE),),
    "released before the write": ((RELEASE, WRITE, ACQUIRE, LANES, *USE),),
    "released after the synchronisation": ((WRITE, SYNC, RELEASE), (SYNC, ACQUIRE, *USE)),
    "another map is acquired": ((*PUBLISH, OTHER, ACQUIRE, BACK, *USE),),
    "acquired before the synchronisation": ((*PUBLISH, SYNC), (ACQUIRE, SYNC, *USE)),
    "a proxy fence of another kind": ((WRITE, "fence.proxy.async;", "fence.acq_rel.gpu;", ACQUIRE, LANES, *USE),),
    "a copy releases its own bytes only": ((WRITE, OTHER, *PUBLISH, BACK, ACQUIRE, LANES, *USE),),
    "acquired by a warp that nothing orders before the use": ((*PUBLISH, SYNC), (SYNC, ACQUIRE), (SYNC, *USE)),
    "a use for a store": ((*PUBLISH, FILL, STORE, READ),),
}  # fmt: skip
"""Kernels whose threads are synchronised and that lack a fence."""
IN_FLIGHT = {
    "changed while a load may be in flight": ((*PUBLISH, ACQUIRE, LOAD, LANES, *PUBLISH, ACQUIRE, ARRIVED),),
    "changed by another warp while a load may be in flight": (
        (*PUBLISH, ACQUIRE, LOAD, SYNC, ARRIVED), (SYNC, *PUBLISH)
    ),
    "changed while a store may be in flight": ((*PUBLISH, ACQUIRE, FILL, STORE, LANES, *PUBLISH, READ),),
    "stored over while a store may be in flight": ((*PUBLISH, ACQUIRE, FILL, STORE, LANES, WRITE, READ),),
    "all groups but the latest are waited for": (
        (*PUBLISH, ACQUIRE, FILL, STORE, READ.replace("read 0", "read 1"), *PUBLISH, READ),
    ),
}  # fmt: skip
"""Kernels that change a map while an operation may read it: deepseek-ai/DeepGEMM#343, NVIDIA/cutlass#2162."""
GROUPS = ((*PUBLISH, ACQUIRE, *(LOAD, CLOSE), *PUBLISH, ACQUIRE, ARRIVED, *USE),)
"""The same with the wait of CUTLASS, for a group in which the load is not."""


@pytest.mark.parametrize("name", RIGHT)
def test_maps_that_are_released_and_acquired_are_proved(name: str) -> None:
    report = checked(*RIGHT[name])
    assert report.findings == ()
    assert report.verdict == "PROVED"
    assert not any(each.startswith("tensor-maps") for each in report.assumptions)


@pytest.mark.parametrize("profile", ["strict", "lenient"])
@pytest.mark.parametrize("name", UNFENCED)
def test_a_missing_fence_is_found(name: str, profile: str) -> None:
    report = checked(*UNFENCED[name], profile=profile)
    assert codes(report) == {"FENCE_TENSORMAP"}
    for finding in report:
        use, write = finding.parties
        assert "cp.async.bulk.tensor" in use.instruction
        assert use.proxy == "tensormap"
        assert use.place == "argument 1, maps"
        assert "st.global" in write.instruction or "cp_fenceproxy" in write.instruction
        assert not finding.excused_by


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("no acquire", "generic.acquire by a thread of this CTA"),
        ("acquired before the write", "generic.acquire by a thread of this CTA"),
        ("no release", "generic.release before the synchronisation"),
        ("a copy releases its own bytes only", "generic.release before the synchronisation"),
        ("acquired by a warp that nothing orders before the use", "a barrier between"),
    ],
)
def test_the_finding_says_what_is_missing(name: str, missing: str) -> None:
    (finding,) = checked(*UNFENCED[name], budget=4)
    assert missing in finding.missing
    assert finding.sentence.startswith("A use of a tensor map after a write of it")
    assert finding.witness is not None
    assert not finding.witness.confirmed


@pytest.mark.parametrize("name", IN_FLIGHT)
def test_a_map_is_not_changed_while_an_operation_may_read_it(name: str) -> None:
    report = checked(*IN_FLIGHT[name])
    assert codes(report) == {"RACE_WAR"}
    (finding,) = report
    assert finding.sentence.startswith("A write of a tensor map after a use of it")
    assert "completion" in finding.missing
    assert "before it changes" in finding.advice
    assert not finding.excused_by


def test_a_write_that_nothing_orders_is_a_race() -> None:
    found = codes(checked((*PUBLISH, ACQUIRE, *USE), (WRITE,)))
    assert found & {"RACE_RAW", "RACE_WAR"}  # whichever comes first in the run
    assert found <= {"RACE_RAW", "RACE_WAR", "RACE_WAW"}


def test_lenient_accepts_the_wait_of_cutlass_before_a_change() -> None:
    (finding,) = checked(*GROUPS)
    assert finding.code == "RACE_WAR"
    assert finding.excused_by == "map-read-groups"
    report = checked(*GROUPS, profile="lenient")
    assert report.verdict == "PROVED"
    assert "map-read-groups" in {each.name for each in report.relaxed}


def test_a_wait_before_the_load_is_no_wait_for_it() -> None:
    late = (*PUBLISH, ACQUIRE, CLOSE, LOAD, LANES, *PUBLISH, ACQUIRE, ARRIVED)
    assert codes(checked(late, profile="lenient")) == {"RACE_WAR"}


def record(tensor: TensorMap) -> bytes:
    """The bytes of a map of the first array of a launch."""
    return encode(tensor, GlobalMemory().map_array(tensor.array, "first"))


@pytest.mark.parametrize(("body", "expected"), [((ACQUIRE, *USE), False), (USE, True), ((SYNC, *USE, ACQUIRE), True)])
def test_a_map_from_before_the_launch_is_an_assumption_unless_it_is_acquired(body: Part, expected: bool) -> None:
    report = checked(flat((body,)), maps=record(TENSOR))
    assert report.verdict == "PROVED"
    assert any(each.startswith("tensor-maps") for each in report.assumptions) == expected


def test_maps_of_parameters_and_constants_need_nothing() -> None:
    initial = ", ".join(map(str, record(TENSOR)))
    constant = text_of(("mov.u64 %rd2, held;", *USE)).replace(
        ".visible .entry", f".const .align 64 .b8 held[128] = {{{initial}}};\n.visible .entry"
    )
    parameter = text_of(("mov.b64 %rd2, template; cvta.param.u64 %rd2, %rd2;", *USE))
    for text in (constant, parameter):
        report = checked((), text=text)
        assert report.verdict == "PROVED"
        assert not any(each.startswith("tensor-maps") for each in report.assumptions)


ACROSS = {
    "each CTA of a cluster acquires": ((only(0, *PUBLISH), MEET, ACQUIRE, *USE), True),
    "one CTA acquires for the other": ((only(0, *PUBLISH, ACQUIRE), MEET, *USE), False),
    "the other CTA acquires before the barrier": ((only(0, *PUBLISH), ACQUIRE, MEET, *USE), False),
    "released for the CTA alone": (
        (only(0, STAGE, COPY.replace("release.gpu", "release.cta"), ACQUIRE), MEET, only(1, ACQUIRE), *USE), False
    ),
    "released for the cluster": (
        (only(0, STAGE, COPY.replace("release.gpu", "release.cluster"), ACQUIRE), MEET, only(1, ACQUIRE), *USE), True
    ),
    "a fence that releases for the CTA alone": (
        (only(0, WRITE, RELEASE.replace("gpu", "cta"), ACQUIRE), MEET, only(1, ACQUIRE), *USE), False
    ),
    "released for all before the write, for the CTA after it": (
        (only(0, RELEASE, WRITE, RELEASE.replace("gpu", "cta"), ACQUIRE), MEET, only(1, ACQUIRE), *USE), False
    ),
    "acquired with the scope of the CTA": ((only(0, *PUBLISH), MEET, ACQUIRE.replace("gpu", "cta"), *USE), False),
    "acquired with the scope of the cluster": (
        (only(0, *PUBLISH), MEET, ACQUIRE.replace("gpu", "cluster"), *USE), True
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACROSS)
def test_each_cta_acquires_with_scopes_that_include_the_writer(name: str) -> None:
    body, is_right = ACROSS[name]
    report = checked(body, grid=2, cluster=2)
    assert codes(report) == (set() if is_right else {"FENCE_TENSORMAP"})
    if not is_right:
        assert all(party.cta[0] == at for finding in report for party, at in zip(finding.parties, (1, 0), strict=True))


def test_the_scope_of_a_cta_is_enough_inside_it() -> None:
    body = STAGE, COPY.replace("release.gpu", "release.cta"), ACQUIRE.replace("gpu", "cta"), *USE
    assert checked(body).verdict == "PROVED"


THROUGH_MEMORY = {
    "released and acquired": ("release", "acquire", "gpu", True),
    "relaxed, with the fences of the map": ("relaxed", "relaxed", "gpu", True),
    "the scope of the fence is too small": ("release", "acquire", "cluster", False),
}


@pytest.mark.parametrize("name", THROUGH_MEMORY)
def test_maps_are_handed_to_other_clusters_through_memory(name: str) -> None:
    how, found, scope, is_right = THROUGH_MEMORY[name]
    give = f"setp.ne.u32 %q, %r2, 0; @!%q {SET.format(how=how)}"
    write = only(0, WRITE, LANES, RELEASE.replace("gpu", scope), LANES, give)
    report = checked((*write, only(1, POLL.replace("{how}", found), ACQUIRE, *USE)), grid=2)
    assert codes(report) == (set() if is_right else {"FENCE_TENSORMAP"})


def test_one_write_of_two_maps_is_acquired_for_each() -> None:
    assert checked((BOTH, LANES, RELEASE, ACQUIRE, *USE)).verdict == "PROVED"
    assert codes(checked((BOTH, LANES, RELEASE, ACQUIRE, OTHER, *USE))) == {"FENCE_TENSORMAP"}


def test_the_fence_of_another_lane_needs_a_synchronisation() -> None:
    own, other = (f"setp.eq.u32 %q, %r2, {lane}; @%q {ACQUIRE}" for lane in (0, 5))
    assert checked((*PUBLISH, own, *USE)).verdict == "PROVED"
    assert checked((*PUBLISH, other, LANES, *USE)).verdict == "PROVED"
    assert "FENCE_TENSORMAP" in codes(checked((*PUBLISH, other, *USE)))


def test_a_map_that_a_bulk_copy_writes_is_released_after_the_copy() -> None:
    copy = (
        f"{STAGE} fence.proxy.async; setp.ne.u32 %q, %r2, 0; @%q bra B{{n}}; cp.async.bulk.global.shared::cta.bulk_group "
        "[%rd2], [stage], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group{read} 0; B{n}:"
    )
    whole = copy.replace("{read}", ""), LANES, RELEASE, ACQUIRE, LANES, *USE
    assert checked(whole).verdict == "PROVED"
    assert codes(checked(tuple(each for each in whole if each != RELEASE))) == {"FENCE_TENSORMAP"}
    assert codes(checked((copy.replace("{read}", ".read"), *whole[1:]))) == {"RACE_RAW"}


SLOTS = 40
SLOT_BY_SLOT = f"""
    mov.b32 %r12, 0;
    write: {STAGE} {COPY} setp.lt.u32 %q, %r12, %r13; @%q {ACQUIRE}
    add.u64 %rd2, %rd2, 128; add.u32 %r12, %r12, 1; setp.lt.u32 %q, %r12, {SLOTS}; @%q bra write;
    mov.b32 %r12, 0; sub.u64 %rd2, %rd2, {128 * SLOTS};
    use: LOAD ARRIVED bar.warp.sync -1;
    add.u64 %rd2, %rd2, 128; add.u32 %r12, %r12, 1; setp.lt.u32 %q, %r12, {SLOTS}; @%q bra use;
"""
"""A kernel that writes the maps of all slots and acquires the first %r13 of them, and then uses one in each pass."""
IN_TURN = f"""
    mov.b32 %r12, 0;
    pass: {STAGE} {COPY} setp.ne.u32 %e, %r12, %r13; @%e {ACQUIRE} LOAD ARRIVED bar.warp.sync -1;
    add.u32 %r12, %r12, 1; setp.lt.u32 %q, %r12, {SLOTS}; @%q bra pass;
"""
"""One place for the map, which every pass writes, acquires and uses; pass %r13 does not acquire it."""


def looped(body: str, number: int, grid: int = 1) -> warploom.host.launch.Launch:
    load, arrived = LOAD.replace("{n}", "in"), ARRIVED.replace("{n}", "in")
    body = f"mov.b32 %r13, {number}; {body.replace('LOAD', load).replace('ARRIVED', arrived)}"
    text = text_of((body,), shared=False).replace("%w;", "%w, %e;")
    return launch_of(text, grid=grid, block=32, args=[TENSOR, np.zeros(1 << 18, np.uint8)])


@pytest.mark.parametrize("acquired", [SLOTS, SLOTS - 1, 30, 7])
def test_a_late_pass_that_uses_a_map_which_was_not_acquired_is_found(
    acquired: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, _ = same_reports(looped(SLOT_BY_SLOT, acquired), "strict", monkeypatch)
    assert codes(report) == (set() if acquired == SLOTS else {"FENCE_TENSORMAP"})
    if report.findings:
        assert report.findings[0].count == SLOTS - acquired


@pytest.mark.parametrize("wrong", [SLOTS, SLOTS - 1, 30, 7, 0])
def test_a_late_pass_without_its_fence_is_found(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = same_reports(looped(IN_TURN, wrong), "strict", monkeypatch)
    assert codes(report) == (set() if wrong == SLOTS else {"FENCE_TENSORMAP"})


AFTER = {"nothing": ("", "", set()), "a change": ("", f"{STAGE} {COPY}", set()), "a load": (LOAD, COPY, {"RACE_WAR"})}


@pytest.mark.parametrize("name", AFTER)
def test_a_map_that_many_passes_have_used_may_be_changed_after_the_last(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, change, expected = AFTER[name]
    body = f"""{STAGE} {COPY} {ACQUIRE} mov.b32 %r12, 0; pass: LOAD ARRIVED bar.warp.sync -1; add.u32 %r12, %r12, 1;
    setp.lt.u32 %q, %r12, 200; @%q bra pass; {load.replace("{n}", "one")} bar.warp.sync -1; {change}
    {ARRIVED.replace("{n}", "two") if load else ""}"""
    report, left_out = same_reports(looped(body, 0), "strict", monkeypatch)
    assert codes(report) == expected
    assert any(left_out) == (name == "nothing")


@pytest.mark.parametrize("wrong", [None, 0, 4, 7])
def test_a_late_cluster_without_its_fence_is_found(wrong: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    skip = "" if wrong is None else f"setp.eq.u32 %e, %r10, {wrong}; @%e bra.uni past;"
    body = f"{STAGE} {COPY} {skip} {ACQUIRE} past: LOAD ARRIVED"
    report, _ = same_reports(looped(body, 0, grid=8), "strict", monkeypatch)
    assert codes(report) == (set() if wrong is None else {"FENCE_TENSORMAP"})


PUMPED = """
    mov.b32 %r12, 0; ld.param.u32 %r13, [steps];
    BEFORE
    pass: INSIDE LOAD ARRIVED bar.warp.sync -1;
    add.u32 %r12, %r12, 1; setp.lt.u32 %e, %r12, %r13; @%e bra pass;
"""


@pytest.mark.parametrize("where", ["BEFORE", "INSIDE"])
def test_all_sizes_are_proved_where_no_loop_changes_a_map(where: str) -> None:
    body = PUMPED.replace(where, f"{STAGE} {COPY} {ACQUIRE}").replace("BEFORE", "").replace("INSIDE", "")
    body = body.replace("LOAD", LOAD.replace("{n}", "in")).replace("ARRIVED", ARRIVED.replace("{n}", "in"))
    text = text_of((body,)).replace("%w;", "%w, %e;").replace("u64 maps)", "u64 maps, .param .u32 steps)")
    launch = launch_of(text, grid=1, block=32, args=[TENSOR, np.zeros(4096, np.uint8), 40])
    report = warploom.check(launch, sizes="all")
    assert report.findings == ()
    assert any("steps >= 1" in each for each in report.covers.generalised) == (where == "BEFORE"), str(report)
    assert any("a loop changes tensor maps" in each for each in report.covers.as_run) == (where == "INSIDE")


def mutants(launch: warploom.Launch, pattern: str) -> list[tuple[str, warploom.Launch]]:
    """The launch without one of the instructions that begin with a pattern, for each of them."""
    lines = print_module(prepare(launch, Eager(), None, None, (), None).program.module).splitlines()
    places = [at for at, line in enumerate(lines) if re.match(rf"\s*(@!?%\w+\s+)?{pattern}", line)]
    return [(lines[at].strip(), replace(launch, program="\n".join([*lines[:at], *lines[at + 1 :]]))) for at in places]


@pytest.mark.parametrize("name", ["one CTA", "Hopper"])
def test_separate_weights_need_both_fences(name: str) -> None:
    launch, *_ = bound_of(70, 40, 72, [20, 40, 70], [1, 0, 2], CONFIGS[name])
    assert warploom.check(launch, budget=0, sms=2).verdict == "PROVED"
    found = mutants(launch, r"fence\.proxy\.tensormap")
    assert found
    for line, mutant in found:
        assert codes(warploom.check(mutant, budget=0, sms=2)) == {"FENCE_TENSORMAP"}, line


@pytest.mark.parametrize("arch", [90, 100])
def test_triton_s_device_descriptors_need_every_fence(arch: int) -> None:
    case = next(each for each in CASES if each.name == f"triton_device_descriptor_sm{arch}")
    try:
        prepared = case.prepare(seed=1)
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    compiled = prepared.compiled
    launch = launch_of(
        compiled.ptx, entry=compiled.entry, grid=prepared.grid, block=compiled.block,
        shared_bytes=compiled.shared_bytes, args=[bound(each, prepared.arrays) for each in prepared.args],
    )  # fmt: skip
    assert warploom.check(launch, profile="lenient", budget=0).verdict == "PROVED"
    found = mutants(launch, r"fence\.proxy\.tensormap")
    assert len(found) == 3
    for line, mutant in found:
        assert codes(warploom.check(mutant, profile="lenient", budget=0)) == {"FENCE_TENSORMAP"}, line


def test_a_fence_of_a_map_is_redundant_only_if_another_one_acquires_it() -> None:
    once = checked((*PUBLISH, ACQUIRE, *USE), redundant=True)
    assert not any("tensormap" in party.instruction for each in once.lints for party in each.parties)
    twice = checked((*PUBLISH, ACQUIRE, ACQUIRE, *USE), redundant=True)
    found = [each for each in twice.lints if any("tensormap" in party.instruction for party in each.parties)]
    assert [each.code for each in found] == ["REDUNDANT"] * 2
