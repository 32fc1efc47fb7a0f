"""Thirty-three ways in which such a system goes wrong, each with the test that shows why it cannot here.

The numbers are those of the study of another system. A test's docstring says what goes wrong there; what is not tested
is in `DOES_NOT_APPLY` with the reason. `test_every_defect_has_a_test` holds the list complete.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from tests.kernels.plain_problems import arrays, role_texts, run, same, waits_before_it_reads
from tests.kernels.scaled_problems import blockwise, scaled
from tests.kernels.sm100 import test_block_scaled_k_groups, test_grouped, test_residual, test_split_k
from tests.ops import test_grouped_blockwise
from tests.ops.test_grouped_block_scaled import Problem as GroupedProblem
from tests.structured import test_pipeline
from tests.structured.accumulating import check, multiply, plain_epilogue, plain_mma
from tests.structured.epilogue import test_tile_writer_auxiliary, test_tile_writer_bounds
from tests.structured.scheduling import counts
from tests.structured.test_cluster import made as cluster_of
from tests.structured.test_output_pipeline import EPILOGUE_FORMS, MMA_FORMS, epilogue_by, mma_by
from tests.structured.test_seed_examples import epilogue_linear, mma_linear, mma_linear_without_commit
from tests.structured.writing import config_of, opcodes
from tests.structured.writing import run as write

from warploom import launch
from warploom.hardware.swizzles import GRANULE, SWIZZLES
from warploom.hardware.synchronisation import WORK_RESPONSE_BYTES
from warploom.hardware.targets import MACHINES
from warploom.kernels.sm100.binding import FAMILIES
from warploom.kernels.sm100.matmul import matmul
from warploom.ops import grouped_block_scaled_matmul, grouped_blockwise_matmul
from warploom.ops import matmul as dense_matmul
from warploom.ptx.syntax.printer import print_module
from warploom.structured import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    Epilogue,
    MatmulConfig,
    MmaWarpContext,
    Operand,
    Problem,
    split_k_workspace,
    violations,
)
from warploom.structured.split_k.workspace import split_range
from warploom.structured.tensor_cores.blockwise import scale_blocks
from warploom.trace.passes.cleanup import registers_of

DOES_NOT_APPLY = {
    33: "The other system's pipeline and context types have no unit tests of their own. Here docs/seeds.md names the "
    "test of every one of their members, and tests/seeds holds that page to the code.",
}
SMALL = {"cta_group": 1, "mma_shape": (64, 16, 16)}
RAGGED = (70, 40, 3 * 64)


@functools.cache
def prepared(name, cta_group=1):
    """A launch of a family, for pairs or for single CTAs, and its configuration."""
    fields = {"cta_group": cta_group, "mma_shape": (64 if cta_group == 1 else 256, 32, 16)}
    m, n, k = RAGGED
    if name in ("gemm", "bmm"):
        made = arrays(MatmulConfig(**fields), m, n, k, 2 if name == "bmm" else 1)
        return made.bind(matmul, made.result, m, n, k, made.problem.batch), made.config
    if name == "tf32x3":
        shape = (64 if cta_group == 1 else 256, 32, 8)
        config = MatmulConfig(cta_group=cta_group, mma_shape=shape, a_type="f32", precision="tf32x3")
        a, b = np.ones((m, k), np.float32), np.ones((n, k), np.float32).T
        planned = dense_matmul.plan(a=a, b=b, config=config, precision="tf32x3", out=np.zeros((m, n), np.float32))
        return planned.single_launch("matmul"), planned.call.config  # its subtiles are narrower than those of `config`
    if name == "epilogue_load":
        made = arrays(MatmulConfig(**fields, use_tma_epilogue_load=True), m, n, k)
        return test_residual.bound_to(made, test_residual.source_of(made), Epilogue(), 1.0), made.config
    if name == "split_k":
        made = arrays(MatmulConfig(**fields, num_split_k=2), m, n, k)
        return test_split_k.bound_to(made, *test_split_k.buffers(made.config, made.problem)), made.config
    if name == "gmm":
        made, ends = test_grouped.prepared(MatmulConfig(**fields, gemm_kind="gmm"), (20, 0, 50), n, k)
        return test_grouped.bound_to(made, ends, n, k), made.config
    if name == "grouped_block_scaled":
        problem = GroupedProblem("MXFP8", n, k)
        config = problem.config(64, cta_group, swapped=cta_group == 2, gemm_kind="gmm")
        options = {"expert_ids": problem.ids, "out": np.zeros((len(problem.a), n), np.float32), "config": config}
        return grouped_block_scaled_matmul.bind(*problem.given, **options), config
    if name == "grouped_blockwise_fp8":
        given, sums = test_grouped_blockwise.problem()
        fields = {"mma_shape": (128 * cta_group, 64, 32), "c_type": "f32", "gemm_kind": "block_scaled_1d2d_fp8"}
        config = BlockwiseFP8MatmulConfig(cta_group=cta_group, **fields)
        options = {"expert_ids": test_grouped_blockwise.IDS, "out": np.zeros(sums.shape, np.float32), "config": config}
        return grouped_blockwise_matmul.bind(*given, **options), config
    build = {"blockwise_fp8": blockwise, "block_scaled": scaled}[name]
    problem = build(m, n, k, cta_group=cta_group, mma_shape=(128 * cta_group, 64, 32), c_type="bf16")
    return problem.launch, problem.config


def family(name, cta_group=1):
    return prepared(name, cta_group)[0]


EVERY_FAMILY = pytest.mark.parametrize("name", FAMILIES)


def instructions(launched):
    (entry,) = launched.program.kernels
    return list(entry.instructions)


def test_01_no_split_of_k_is_empty():
    """If K is divided by rounding up, the last split may be empty or start past the end, and the others wait."""
    for total in range(1, 40):
        for splits in range(1, total + 1):
            ranges = [split_range(total, splits, split) for split in range(splits)]
            assert [start for start, _ in ranges] == [sum(count for _, count in ranges[:at]) for at in range(splits)]
            assert min(count for _, count in ranges) >= 1
            assert sum(count for _, count in ranges) == total
    for tiles in (9, 5):
        config = MatmulConfig(**SMALL, num_split_k=4)
        test_split_k.check(config, 65, 17, tiles * config.BK, ("random", tiles))
    groups = MatmulConfig(**SMALL, num_split_k=3, k_group_size=2)
    test_split_k.check(groups, 64, 16, 5 * 2 * groups.BK)  # five groups of two: splits are counted in groups
    test_split_k.check(groups, 64, 16, 7 * groups.BK)  # the last group is not whole
    assert violations(groups, Problem(64, 16, 4 * groups.BK))
    assert violations(MatmulConfig(num_split_k=5), Problem(64, 64, 4 * 64))


def test_02_splits_are_reduced_in_every_accumulator_layout():
    """A reduction that knows one layout only leaves half of the columns of another unreduced."""
    for group, rows in ((1, 64), (1, 128), (2, 128), (2, 256)):
        config = MatmulConfig(cta_group=group, mma_shape=(rows, 32, 16), num_split_k=2)
        test_split_k.check(config, rows, 32, 2 * config.BK)


def test_03_the_workspace_has_a_place_for_every_tile_of_a_swapped_grid():
    """Tiles counted as the user sees C, while the kernel counts its own, which are others when A and B are swapped."""
    config = MatmulConfig(mma_shape=(256, 256, 16), cluster_shape=(4, 4, 1), AB_swapped=True, num_split_k=2)
    grid = config.grid(Problem(512, 4096, 1024))
    assert split_k_workspace(config, Problem(512, 4096, 1024)).tiles == grid[0] * grid[1] == 128
    small = MatmulConfig(**SMALL, cluster_shape=(2, 2, 1), AB_swapped=True, num_split_k=2)
    test_split_k.check(small, 20, 200, 2 * small.BK)  # its workspace and locks are exactly as long: the emulator checks


@pytest.mark.parametrize("layout", [(128, 32, 1), (64, 32, 1), (128, 64, 2), (256, 32, 2)], ids=str)
def test_04_functions_see_right_coordinates_through_shared_memory(layout):
    """An epilogue through shared memory takes the rows of one layout for those of another."""
    written = write(
        config_of(layout, c_type="f32", register_based_epilogue=False),
        45,
        37,
        options=lambda operands: {"epilogue": Epilogue(function=lambda acc, at: (at.row * 100 + at.column).to("f32"))},
    )
    rows, columns = np.indices(written.c.shape)
    written.check(rows * 100.0 + columns)


def test_05_a_tile_may_span_three_blocks_of_scales():
    """Wide tiles begin anywhere in a block of 128 columns; two factors for a tile are not enough."""
    for columns in (152, 248):
        tile = next(tile for tile in range(16) if scale_blocks(tile * columns, columns, 128) == 3)
        blockwise(9, (tile + 1) * columns - 5, 100, mma_shape=(64, columns, 32), c_type="bf16").check()
    blockwise(9, 100, 100, mma_shape=(64, 96, 32), c_type="bf16", scale_granularity=32).check()


def test_06_groups_of_k_tiles_with_scales_are_refused_or_right():
    """A group of K tiles in one stage, of which only the first is loaded and each overwrites the accumulator."""
    assert any("k_group_size=2" in rejected for rejected in violations(BlockwiseFP8MatmulConfig(k_group_size=2)))
    fields = {"cta_group": 1, "mma_shape": (128, 64, 32), "k_group_size": 2}
    call, out, exact = test_block_scaled_k_groups.bound(fields, 40, 40, 416)
    launch(call)
    np.testing.assert_array_equal(out.astype(np.float32), exact.astype(np.float32))


@pytest.mark.parametrize("n", [1, 12, 13, 35])
def test_07_a_row_keeps_its_last_elements(n):
    """Loads of eight elements that cross the end of a bias are filled with zeros as a whole."""
    fields = {"use_tma_epilogue_load": True, "epilogue_is_1d": True, "use_tma_store": False}
    for c_type in ("f32", "bf16"):
        test_residual.check(MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), c_type=c_type, **fields), 5, n, 16)


def test_08_a_residual_times_zero_uses_the_same_kernel():
    """A special case for beta = 0 that forgets the author's function. Here beta is a number like any other."""
    config = MatmulConfig(**SMALL, use_tma_epilogue_load=True)
    made = arrays(config, *RAGGED, seed=None)
    source = test_residual.source_of(made)
    epilogue = Epilogue(function=lambda acc, at: acc * 2.0 + at.column.to("f32"))
    run(test_residual.bound_to(made, source, epilogue, 0.0))
    assert same(made.d, 2 * made.sums + np.arange(RAGGED[1]))


@pytest.mark.parametrize("register_based", [True, False])
def test_09_a_block_scaled_matmul_has_an_epilogue(register_based):
    """A family that takes a function and a mode, and passes neither on."""
    epilogue = Epilogue(function=lambda acc, at: acc * 2.0 + at.row.to("f32"))
    fields = {"mma_shape": (128, 64, 32), "register_based_epilogue": register_based}
    problem = scaled(70, 40, 160, epilogue=epilogue, **fields)
    problem.check(then=lambda exact: 2 * exact + np.arange(70)[:, None])
    loads = opcodes(problem.launch).count("ld.shared.v4.f32")
    assert (loads > 0) == (not register_based), "the mode reaches the writer, too"


def test_10_every_role_that_reads_waits_for_the_previous_grid():
    """A role that loads for the epilogue and does not wait reads what the grid before has not yet written."""
    waits_before_it_reads(family("epilogue_load"), ("load", "epilogue_load", "epilogue"))


@pytest.mark.parametrize("seed", range(6))
def test_11_a_hand_off_has_back_pressure(seed):
    """One parity bit without a way back: two arrivals look like none, and who waits for the first waits forever."""
    for tiles in (1, 2, 3, 7):
        y = np.zeros(tiles, np.uint32)
        bound = test_pipeline.ordered.bind(y, tiles, grid=(1, 1, 1), block=(192, 1, 1), ahead=2)
        launch(bound, schedule="random", seed=seed)
        assert y.tolist() == [7 + tile for tile in range(tiles)]


@EVERY_FAMILY
def test_12_the_ctas_of_a_pair_end_together(name):
    """A CTA that has exited cannot receive an arrival from its peer."""
    names = [op.opcode for op in instructions(family(name, cta_group=2))]
    assert names[-3:] == ["barrier.cluster.arrive.release.aligned", "barrier.cluster.wait.acquire.aligned", "ret"]
    assert not any(op.opcode in ("ret", "exit") for op in instructions(family(name, cta_group=2))[:-1])


def test_13_releasing_an_accumulator_frees_it():
    """A `release` that only advances: the MMA role waits forever on its second lap."""
    check(mma_linear_without_commit, epilogue_linear, [("eager", 0), ("random", 3)], tiles=7)


def test_14_a_commit_by_hand_and_the_release_are_one_arrival():
    """The page's own example commits, and its release commits again: two phases end instead of one."""
    launched = check(mma_linear, epilogue_linear, [("eager", 0), ("random", 3)], tiles=7)
    assert opcodes(launched) == opcodes(check(mma_linear_without_commit, epilogue_linear, [], tiles=7))


def test_15_contexts_and_stages_are_handles():
    """`with context as c` gives a copy whose pipeline goes its own way, and a stage has a snapshot of it."""

    def mma(kit):
        with kit.roles.mma:
            context = MmaWarpContext(kit.outputs)
            with context as same_context:
                assert same_context is context
                for _ in kit.work:
                    with kit.outputs.producer() as stage:
                        assert stage.pipeline is context.output_pipeline.pipeline
                        multiply(kit, stage)

    check(mma, plain_epilogue, [("random", 1)])


def test_16_one_rule_frees_an_accumulator():
    """Three ways to hold an accumulator, each released differently: by the writer, by the context, or not at all."""
    plain = opcodes(check(plain_mma, plain_epilogue, []))
    for form in MMA_FORMS:
        assert opcodes(check(mma_by(form), plain_epilogue, [])) == plain
    for form in EPILOGUE_FORMS:
        assert opcodes(check(plain_mma, epilogue_by(form), [])) == plain


def test_17_a_stage_per_k_step_waits_for_its_input_too():
    """Scales that come with the operands are read although this role has not waited for them."""
    fields = {"mma_shape": (64, 32, 32), "scheduler": "static", "num_clc_pipeline_stages": 0}
    problem = blockwise(64, 32, 300, **fields)
    role = role_texts(problem.launch)["epilogue"]
    assert role.count("mbarrier.try_wait") == 2, "for the tensor core, and for the operands"
    problem.check("random", 4)


def test_18_functions_see_the_batch():
    """A function of (row, column) is the same for all matrices of a batch."""
    config = MatmulConfig(**SMALL)
    made = arrays(config, 20, 24, 64, 3, seed=None)
    epilogue = Epilogue(function=lambda acc, at: acc + at.batch.to("f32") * 16.0)
    run(made.bind(matmul, made.result, 20, 24, 64, 3, epilogue=epilogue))
    assert same(made.d, made.sums + 16 * np.arange(3)[:, None, None])


@pytest.mark.parametrize("register", [True, False], ids=["registers", "shared memory"])
def test_19_the_residual_is_added_after_the_function_in_every_mode(register):
    """In one mode the author's function sees the residual, in the other it does not."""
    epilogue = Epilogue(function=lambda acc, at: acc * 3.0)
    config = config_of((64, 16, 1), c_type="f32", register_based_epilogue=register)
    written, source = test_tile_writer_auxiliary.run(config, "residual", 70, 19, epilogue=epilogue)
    written.check(3 * written.sums + test_tile_writer_auxiliary.BETA * source)


@EVERY_FAMILY
def test_20_tmem_is_waited_for_and_fenced(name):
    """Registers used before the load that fills them has ended; a hand-over without fences."""
    pending, loads = set(), 0
    for op in instructions(family(name)):
        if op.opcode.startswith("tcgen05.ld"):
            pending |= set(registers_of(op)) - {op.operands[1].base.name}
            loads += 1
        elif op.opcode.startswith("tcgen05.wait::ld"):
            pending.clear()
        else:
            assert not pending & set(registers_of(op)), op
    assert loads
    role = role_texts(family(name))["epilogue"]
    for load in re.finditer(r"tcgen05\.ld", role):
        before = role[: load.start()]
        assert before.rindex("tcgen05.fence::after_thread_sync") > before.rindex("mbarrier.try_wait")
    behind = role[role.rindex("tcgen05.ld") :]
    assert behind.index("tcgen05.fence::before_thread_sync") < behind.index("mbarrier.arrive")


@EVERY_FAMILY
def test_21_writers_of_shared_memory_fence_it(name):
    """The thread that starts a copy fences, behind the barrier, for what all the others have written."""
    role = [op for op in instructions(family(name)) if op.opcode != "bar.warp.sync"]
    stores = [at for at, op in enumerate(role) if re.match(r"cp\.async\.bulk\.tensor\.\dd\.global", op.opcode)]
    assert stores
    for at in stores:
        back = [op.opcode for op in role[:at]][::-1]
        barrier, fence = back.index("bar.sync"), back.index("fence.proxy.async.shared::cta")
        written = next(place for place, op in enumerate(back) if op.startswith(("stmatrix", "st.shared")))
        assert barrier < fence < written
        assert role[at - 1 - fence].guard is None, "every thread does"


def test_22_a_residual_fits_a_folded_accumulator():
    """A source that is read with the rows of another layout, past the end of its buffer."""
    for layout, swapped in (((128, 48, 2), False), ((128, 48, 2), True), ((256, 32, 2), False)):
        config = config_of(layout, swapped=swapped)
        sizes = (51, 70) if swapped else (70, 51)
        written, source = test_tile_writer_auxiliary.run(config, "residual", *sizes)
        written.check(written.sums + test_tile_writer_auxiliary.BETA * source)


@pytest.mark.parametrize("c_type", ["bf16", "f32", "e4m3"])
def test_23_clipped_tiles_are_put_back_in_order_for_every_type(c_type):
    """Rows copied by threads out of a swizzled buffer, and the swizzle undone for types of two bytes only."""
    test_tile_writer_bounds.run(config_of((64, 32, 1), c_type=c_type), 70, 41)


@EVERY_FAMILY
def test_24_shared_memory_is_counted_to_the_byte(name):
    """A response of 128 bits counted as 128 bytes, and a struct whose size is not compared with the hardware's."""
    launched, config = prepared(name)
    assert 0 <= config.shared_bytes - launched.shared_bytes <= GRANULE * 8, "what was budgeted is what is used"
    assert config.shared_bytes <= MACHINES["sm_100a"].shared_per_block
    more = config.replace(num_pipeline_stages=config.num_pipeline_stages * 99)
    assert any("bytes of shared memory" in rejected or "TMEM" in rejected for rejected in violations(more))
    answers = [each for each in config.shared_arrays(1, epilogue_load=False) if each.name == "clc_responses"]
    assert [each.element_bytes for each in answers] == [WORK_RESPONSE_BYTES] == [16]


def test_25_no_swizzle_is_a_swizzle_like_any_other():
    """A mode without a pattern that half of the code takes for 0 bytes wide and half for 16."""
    assert (SWIZZLES["none"].bits, GRANULE) == (0, 16)
    for c_type, swapped in (("e4m3", False), ("e4m3", True), ("bf16", False)):
        config = config_of((64, 16, 1), c_type=c_type, swapped=swapped, c_swizzle="none")
        write(config, 33, 40).check()


def test_26_an_element_is_stored_regardless_of_its_neighbours():
    """A fragment left when the lower of two rows is outside C, although the upper one is inside: N % 16 == 8."""

    def store(value, at, out):
        out[at.row, at.column] = value

    for m, n in ((19, 72), (24, 8)):
        out = np.full((m, n), np.nan, np.float32)
        named = (("out", Operand("view")),)
        written = write(
            config_of((128, 16, 1), swapped=True, c_type="f32"),
            m,
            n,
            options=lambda given, named=named: {"epilogue": Epilogue(store=store, operands=named).bound(**given)},
            operands={"out": out},
            tma=False,
        )
        np.testing.assert_array_equal(out, written.sums)


@EVERY_FAMILY
def test_27_the_barrier_of_the_whole_cta_is_left_to_it(name):
    """Some warps meet at barrier 0, and so does the whole CTA. Each meeting has a number, and one count."""
    meetings = {}
    for text in role_texts(family(name)).values():
        for number, count in re.findall(r"bar\.(?:sync|arrive) (\d+), (\d+);", text):
            meetings.setdefault(int(number), set()).add(int(count))
    assert meetings
    assert 0 not in meetings
    assert all(len(each) == 1 for each in meetings.values()), meetings


def test_28_all_problems_are_reported_in_one_error():
    """Rules asserted here and there, or nowhere, and one at a time."""
    wrong = {"num_accum_pipeline_stages": 3, "prefetch_tiles_n": 7, "num_pipeline_stages": 5, "k_group_size": 2}
    rejected = violations(MatmulConfig(**wrong, num_split_k=3), Problem(64, 64, 3 * 64))
    for words in (
        "accumulators of 256 columns 170 columns apart: overlap",
        "prefetch_tiles_n=7",
        "multiple of k_group_size",
        "has 2 groups of K tiles",
    ):
        assert any(words in each for each in rejected), (words, rejected)
    wide = BlockScaledMatmulConfig(mma_shape=(256, 256, 32), num_accum_pipeline_stages=2, num_pipeline_stages=1)
    assert any("columns of TMEM" in each for each in violations(wide))


def test_29_arrivals_that_free_an_input_stage_are_counted_by_role():
    """As many local arrivals as there are CTAs, right only because of who else does not multicast."""
    problem = blockwise(130, 40, 300, mma_shape=(64, 32, 32), cluster_shape=(2, 2, 1), num_pipeline_stages=2)
    problem.check("random", 2)
    commits, lanes = 2 + 2 - 1, 4 * 4
    assert commits + lanes in counts(print_module(problem.launch.program))


def test_30_scales_for_every_allowed_width():
    """Whole chunks of 128 columns were copied: none for a tile of 64, too few for one of 160 or 192."""
    for columns in (64, 96, 160, 192):
        scaled(40, 2 * columns - 7, 160, mma_shape=(128, columns, 32), c_type="bf16").check()
    for columns in (136, 176):
        assert violations(BlockScaledMatmulConfig(mma_shape=(256, columns, 32)))


def test_31_without_clc_stages_no_role_is_throttled():
    """A ring without stages is waited on and arrived at, in the memory that follows it."""
    for group, rows in ((1, 64), (2, 256)):
        config = MatmulConfig(cta_group=group, mma_shape=(rows, 32, 16), num_clc_pipeline_stages=0)
        made = arrays(config, rows + 3, 40, 100, seed=None)
        bound = made.bind(matmul, made.result, rows + 3, 40, 100, 1)
        run(bound, ("random", 5))
        assert same(made.d, made.sums)
        assert "scheduler" not in role_texts(bound)
        assert not any("clc" in str(statement) for statement in bound.program.kernels[0].body)


def test_32_masks_follow_the_rank():
    """The mask of the first CTA in every CTA."""
    for x, y, group in ((4, 4, 2), (2, 2, 1), (8, 2, 2), (1, 4, 1)):
        cluster = cluster_of(x, y, group)
        for place in cluster.places:
            own = 1 << cluster.rank_of(place)
            for mask in (cluster.sharing_a, cluster.sharing_b, cluster.pair, cluster.sharing, cluster.alone):
                assert int(mask.of(*place)) & own
    blockwise(130, 70, 200, mma_shape=(64, 32, 32), cluster_shape=(2, 2, 1)).check("reverse")


def test_every_defect_has_a_test():
    numbers = {
        int(name.split("_")[1]): function.__doc__
        for name, function in globals().items()
        if re.match(r"test_\d\d_", name)
    }
    assert sorted([*numbers, *DOES_NOT_APPLY]) == list(range(1, 34))
    assert all((sentence or "").rstrip().endswith(".") for sentence in (*numbers.values(), *DOES_NOT_APPLY.values()))
