"""wgmma: when it reads and writes, which warps must participate, and refused uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.machine.wgmma_case import SCHEDULES, Case, Data, fault, registers_of
from tests.pace import cost

from warploom import launch
from warploom.launch_file import load


def test_reading_before_the_wait_gives_the_old_value_under_lazy():
    data = Data.make(Case(n=16))
    late = data.run("lazy", wait="wgmma.commit_group.sync.aligned;")
    np.testing.assert_array_equal(late, data.d)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_uncommitted_operations_are_not_waited_for(schedule):
    data = Data.make(Case(n=16))
    got = data.run(schedule, wait="wgmma.wait_group.sync.aligned 0;")
    if schedule in ("eager", "lazy"):
        np.testing.assert_array_equal(got, data.d)


@pytest.mark.parametrize("steps", [1, 3])
def test_accumulators_can_be_read_before_the_commit_under_eager(steps):
    """Triton does this for short FP8 accumulations; ptxas then serialises the instructions."""
    case = Case(n=16, steps=steps, a_type="e5m2", accumulate="0")
    data = Data.make(case)
    add = "".join(f"add.f32 %d{16 + i}, %d{16 + i}, %d{i};" for i in range(8))
    back = "".join(f"mov.b32 %d{i}, %d{16 + i};" for i in range(8))
    start = "".join(f"mov.b32 %d{16 + i}, %d{i};" for i in range(8))
    once = f"wgmma.fence.sync.aligned; {case.instructions()} {add} wgmma.commit_group.sync.aligned;"
    body = f"{start} {once} wgmma.wait_group.sync.aligned 0; {once} wgmma.wait_group.sync.aligned 0; {back}"
    np.testing.assert_array_equal(data.run("eager", body=body), data.d + 2 * data.expected())
    assert not np.array_equal(data.run("lazy", body=body), data.d + 2 * data.expected())


def test_wait_group_1_leaves_one_group_pending():
    case = Case(n=16)
    data = Data.make(case)
    one = case.instructions()
    commit = "wgmma.commit_group.sync.aligned;"
    body = f"wgmma.fence.sync.aligned; {one} {commit} {one} {commit} {one} {commit} wgmma.wait_group.sync.aligned "
    product = data.expected() - data.d
    for left, schedule in ((3, "lazy"), (2, "lazy"), (1, "lazy"), (0, "lazy"), (0, "random"), (0, "eager")):
        got = data.run(schedule, body=f"{body}{left};")
        np.testing.assert_array_equal(got, data.d + (3 - left) * product, err_msg=f"{schedule} {left}")


def test_registers_of_a_are_read_when_the_operation_completes():
    case = Case(n=16, a_registers=True)
    data = Data.make(case)
    clear = "".join(f"mov.b32 %a{i}, 0;" for i in range(4))
    body = "wgmma.fence.sync.aligned;" + case.instructions() + "wgmma.commit_group.sync.aligned;"
    body = f"{body} {clear} wgmma.wait_group.sync.aligned 0;"
    np.testing.assert_array_equal(data.run("lazy", body=body), data.d)
    np.testing.assert_array_equal(data.run("eager", body=body), data.expected())


def test_without_a_proxy_fence_stale_bytes_are_read_under_lazy():
    data = Data.make(Case(n=16))
    np.testing.assert_array_equal(data.run("eager", fence=False), data.expected())
    assert not np.array_equal(data.run("lazy", fence=False), data.expected())
    np.testing.assert_array_equal(data.run("lazy"), data.expected())


def test_accumulators_that_are_not_adjacent():
    """Two instructions name the same registers in different orders, so that one list cannot be a slice."""
    case = Case(n=8)
    data = Data.make(case)
    straight = case.instructions()
    crossed = straight.replace("{%d0,%d1,%d2,%d3}", "{%d2,%d3,%d0,%d1}")
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body = "".join(f"wgmma.fence.sync.aligned; {each} {wait}" for each in (straight, crossed))
    product = registers_of((data.expected() - data.d).astype(np.float32), "f32").view(np.float32)
    wanted = registers_of(data.d, "f32").view(np.float32) + product + product[[2, 3, 0, 1]]
    for schedule in SCHEDULES:
        got = data.run(schedule, body=body)
        np.testing.assert_array_equal(registers_of(got, "f32").view(np.float32), wanted)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m64n16k16.f16.bf16.bf16", "goes with D of .f32"),
        ("m64n16k16.f32.f16.bf16", "goes with B of .f16"),
        ("m64n16k8.f32.bf16.bf16", "k of .bf16 is 16"),
        ("m64n16k16.s32.bf16.bf16", "goes with D of .f32"),
    ],
)
def test_illegal_shapes(name, said):
    case = Case(n=16)
    text = case.instructions().replace("m64n16k16.f32.bf16.bf16", name)
    error = fault(case, body=text)
    assert error.code == "BAD_SHAPE"
    assert said in str(error)


def test_illegal_n_of_integers():
    error = fault(Case(n=40, a_type="s8", d_type="s32"))
    assert error.code == "BAD_SHAPE"
    assert "not 40" in str(error)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",1,1,0,0;", ",2,1,0,0;", "scale_a is 2"),
        (",1,1,0,0;", ",1,1,0,2;", "trans_b is 2"),
        ("%d6,%d7}", "%d6}", "d has 7 registers and must have 8"),
        ("%d6,%d7}", "%d6,0}", "`0` in d is not a register"),
    ],
)
def test_illegal_operands(old, new, said):
    case = Case(n=16)
    error = fault(case, body=case.instructions().replace(old, new))
    assert error.code == "BAD_OPERANDS"
    assert said in str(error)


def test_an_illegal_descriptor_is_a_fault_of_the_instruction():
    case = Case(n=16)
    bad = case.instructions().replace("wgmma.mma", "or.b64 %db, %db, 0x10000000000000; wgmma.mma")
    error = fault(case, body=bad)
    assert error.code == "BAD_DESCRIPTOR"
    assert "wgmma.mma_async" in str(error)


def test_an_operand_outside_shared_memory():
    case = Case(n=16)
    bad = case.instructions().replace("wgmma.mma", "add.u64 %db, %db, 0x3000; wgmma.mma")
    error = fault(case, body=bad)
    assert error.code == "OUT_OF_BOUNDS"
    assert "Operand B" in str(error)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_lanes_must_participate(schedule):
    case = Case(n=16)
    body = f"setp.lt.u32 %q, %t, 100; @!%q bra SKIP; {case.instructions()} SKIP:"
    assert fault(case, schedule, body=body).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_predicate_that_differs_within_a_warp(schedule):
    case = Case(n=16)
    body = "and.b32 %y, %t, 1; setp.eq.u32 %q, %y, 0;" + case.instructions().replace("wgmma.mma", "@%q wgmma.mma")
    assert fault(case, schedule, body=body).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_half_a_warpgroup(schedule):
    assert fault(Case(n=16), schedule, block=64).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_with_different_descriptors(schedule):
    case = Case(n=16)
    other = "and.b32 %y, %t, 64; shr.u32 %y, %y, 5; cvt.u64.u32 %w, %y; add.u64 %db, %db, %w; wgmma.mma"
    error = fault(case, schedule, body=case.instructions().replace("wgmma.mma", other))
    assert error.code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_with_different_instructions(schedule):
    case = Case(n=16)
    one = case.instructions()
    body = f"setp.lt.u32 %q, %t, 64; @!%q bra SECOND; {one} bra.uni JOIN; SECOND: {one} JOIN:"
    assert fault(case, schedule, body=body).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_missing_warp_leaves_the_others_waiting(schedule):
    case = Case(n=16)
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body = f"setp.lt.u32 %q, %t, 96; @!%q bra SKIP; {case.instructions()} {wait} SKIP:"
    error = fault(case, schedule, body=body)
    assert error.code == "DEADLOCK"
    assert "warp 3 has issued 0" in str(error)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_that_arrive_one_by_one(schedule):
    """Each warp reaches the instruction on its own path; the operation begins when the last has arrived."""
    case = Case(n=16, steps=2)
    data = Data.make(case)
    ways = "shr.u32 %y, %t, 5; LOOP: setp.eq.u32 %q, %y, 0; @%q bra THERE; sub.u32 %y, %y, 1; bra.uni LOOP; THERE:"
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    got = data.run(schedule, body=f"{ways} wgmma.fence.sync.aligned; {case.instructions()} {wait}")
    np.testing.assert_array_equal(got, data.expected())


@pytest.mark.parametrize(("issues", "together"), [(1, 1), (2, 3), (256, 64)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evicted_descriptors_are_decoded_again(schedule, issues, together, monkeypatch):
    """A loop with new descriptors each time: the last warp arrives after those of the first were evicted."""
    monkeypatch.setattr("warploom.machine.tensor.wgmma_execution._MOST_ISSUES", issues)
    monkeypatch.setattr("warploom.machine.tensor.wgmma_execution._MOST_TOGETHER", together)
    case = Case(n=16, steps=4)
    data = Data.make(case)
    left, right, multiply = case.instructions().split("\n")[:3]
    ways = "shr.u32 %y, %t, 5; LOOP: setp.eq.u32 %q, %y, 0; @%q bra THERE; sub.u32 %y, %y, 1; bra.uni LOOP; THERE:"
    step = f"STEP: {multiply} add.u64 %da, %da, 2; add.u64 %db, %db, 2; add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 4;"
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body = f"{ways} wgmma.fence.sync.aligned; {left} {right} mov.u32 %i, 0; {step} @%q bra STEP; {wait}"
    np.testing.assert_array_equal(data.run(schedule, body=body), data.expected())


def test_completion_events_name_the_bytes_read():
    seen = []

    class Observer:
        def on_event(self, event):
            seen.append(event)

    case = Case(n=16)
    data = Data.make(case)
    start = registers_of(data.d, "f32")
    args = [data.image, start, data.a_words, np.zeros_like(start)]
    launch(case.kernel(), grid=(1, 1, 1), block=(128, 1, 1), args=args, observers=(Observer(),))
    done = [event for event in seen if event.kind == "complete"]
    assert sorted(event.agent.warp for event in done) == [0, 1, 2, 3]
    for event in done:
        touched = sorted((touch.verb, touch.space, touch.bytes) for touch in event.touches)
        registers = 8 * 4
        assert touched == [
            ("reads", "register", registers),
            ("reads", "shared", 16 * 32),
            ("reads", "shared", 64 * 32),
            ("writes", "register", registers),
        ]


def test_speed_of_a_64_128_64_gemm():
    """A generous bound on a run of four instructions along k: issue, both gathers, products and registers."""
    case = Case(n=128, steps=4)
    data = Data.make(case)
    commit = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    loops = 200

    def work(count):
        body = f"mov.u32 %i, 0; AGAIN: wgmma.fence.sync.aligned; {case.instructions()} {commit} add.u32 %i, %i, 1;"
        body += f"setp.lt.u32 %q, %i, {count}; @%q bra AGAIN;"
        return lambda: data.run(body=body)

    work(2)()
    assert (cost(work(loops)) - cost(work(2))) / (loops - 2) < 0.19


@pytest.mark.parametrize("schedule", ["lazy", "reverse", "random"])
def test_without_its_fence_a_wgmma_reads_old_register_contents(schedule):
    """Triton clears the accumulators, fences and multiplies: without the fence the zeros may be written too late."""
    folder = Path(__file__).parents[2] / "foreign"
    file = load(folder / "triton39_matmul_tma_sm90.launch.json")
    text = (folder / "triton39_matmul_tma_sm90.ptx").read_text()
    assert text.count("wgmma.fence") == 1
    for program, wrong in ((text, 0), (text.replace("wgmma.fence.sync.aligned;", ""), 1)):
        buffers = file.allocate()
        launch(replace(file.launch(buffers), program=program), schedule=schedule)
        assert len(tuple(file.check(buffers))) == wrong


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_of_an_ordered_register_is_ordered(schedule):
    """LLVM moves accumulators behind the fence, and ptxas allocates the registers so that it does not matter."""
    case = Case(n=16)
    data = Data.make(case)
    away = "".join(f"mov.b32 %d{16 + i}, %d{i}; mov.b32 %d{i}, 0;" for i in range(8))
    back = "".join(f"mov.b32 %d{i}, %d{16 + i};" for i in range(8))
    end = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body = f"{away} wgmma.fence.sync.aligned; {back} {case.instructions()} {case.instructions()} {end}"
    product = data.expected() - data.d
    np.testing.assert_array_equal(data.run(schedule, body=body), data.d + 2 * product)


def test_a_register_that_is_written_behind_the_fence_is_stale_under_lazy():
    case = Case(n=16)
    data = Data.make(case)
    clear = "".join(f"mov.b32 %d{i}, 0;" for i in range(8))
    end = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    body = f"wgmma.fence.sync.aligned; {clear} {case.instructions()} {end}"
    np.testing.assert_array_equal(data.run("lazy", body=body), data.expected())
