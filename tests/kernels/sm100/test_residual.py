"""Matmul with an epilogue-load role against NumPy: subtiles, whole tiles and rows, in every layout and at odd sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok
from tests.kernels.plain_problems import (
    NUMPY,
    SCHEDULES,
    arrays,
    cases,
    integers,
    mapped,
    run,
    same,
    spaced,
    waits_before_it_reads,
)

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.kernels.sm100.matmul import matmul
from warploom.kernels.sm100.residual import residual
from warploom.structured.config import MatmulConfig, Problem, violations
from warploom.structured.epilogue.epilogue import Epilogue, Operand
from warploom.structured.epilogue.epilogue_loads import matrix_box

LAYOUTS = [(1, 64), (1, 128), (2, 128), (2, 256)]


def source_of(made):
    """The epilogue input: a matrix of D's shape, or a row."""
    d, is_row = made.d, made.config.epilogue_is_1d
    shape = (*d.shape[:-2], d.shape[-1]) if is_row else d.shape
    return spaced(integers(np.random.default_rng(), shape, made.config.c_type))


def bound_to(made, source, epilogue, beta, **options):
    config, problem = made.config, made.problem
    given_ = source if config.epilogue_is_1d else mapped(source, matrix_box(config), config.epi_load_swizzle)
    sizes = (problem.m, problem.n, problem.k, problem.batch)
    operands = {} if beta is None else {"beta": beta}
    return made.bind(residual, given_, made.result, *sizes, operands=operands, epilogue=epilogue, **options)


def check(config, m, n, k, batch=1, *, beta=-2.0, activation=None, schedule=("eager", 0), sms=8):
    made = arrays(config, m, n, k, batch, seed=None)
    source = source_of(made)
    is_row = config.epilogue_is_1d
    bound = bound_to(made, source, Epilogue(activation=activation), None if is_row else beta, sms=sms)
    run(bound, schedule, sms)
    added = source.astype(np.float32)

    def active(sums):
        return sums if activation is None else np.maximum(sums, 0)

    expected = active(made.sums + added[..., None, :]) if is_row else active(made.sums) + np.float32(beta) * added
    assert same(made.d, expected)
    return bound


@pytest.mark.parametrize("is_row", [False, True], ids=["matrix", "row"])
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize(("group", "rows"), LAYOUTS)
def test_every_layout_adds_the_residual_after_the_activation(group, rows, swapped, is_row):
    config = MatmulConfig(
        cta_group=group,
        mma_shape=(rows, 48, 16),
        AB_swapped=swapped,
        use_tma_epilogue_load=True,
        epilogue_is_1d=is_row,
    )
    m, n = (49, rows + 1) if swapped else (rows + 1, 49)
    bound = check(config, m, n, 2 * config.BK - 3, activation="relu")
    if swapped != is_row:
        assemble_ok(bound)


MATRICES = cases(7, seed=1, use_tma_epilogue_load=True)
ROWS = cases(4, seed=2, use_tma_epilogue_load=True, epilogue_is_1d=True)


@pytest.mark.parametrize("case", MATRICES + ROWS, ids=str)
def test_any_configuration_adds_the_residual(case):
    check(case.config, case.m, case.n, case.k, case.batch, schedule=case.schedule, sms=case.sms)


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_beta_scales_the_residual(beta):
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), use_tma_epilogue_load=True)
    check(config, 70, 40, 64, beta=beta, activation="relu")


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_any_number_of_stages(stages):
    config = MatmulConfig(
        cta_group=1,
        mma_shape=(64, 64, 16),
        output_tile_shape=(64, 16),
        use_tma_epilogue_load=True,
        num_tma_epilogue_pipeline_stages=stages,
    )
    check(config, 130, 72, 64)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_many_short_tiles_keep_their_order(schedule):
    """Main loads run ahead by more tiles than a parity bit can count, and no tile follows the last one."""
    config = MatmulConfig(cta_group=1, mma_shape=(64, 16, 16), use_tma_epilogue_load=True)
    check(config, 64, 7 * 16, 64, schedule=schedule, sms=1)


class Loads:
    """The warps that issue tensor loads, in order."""

    def __init__(self):
        self.warps = []

    def on_event(self, event):
        if event.kind == "issue" and "cp.async.bulk.tensor" in event.source.text:
            self.warps.append(event.agent.warp)


def test_the_residual_is_loaded_after_the_prologue_and_not_after_all_of_k():
    fields = {"mma_shape": (64, 16, 16), "num_pipeline_stages": 2, "use_tma_epilogue_load": True}
    config = MatmulConfig(cta_group=1, **fields)
    made, loads = arrays(config, 64, 16, 8 * config.BK, seed=None), Loads()
    bound = bound_to(made, source_of(made), Epilogue(), 1.0, sms=1)
    launch(bound, observers=[loads], sms=1)
    names = list(config.roles)
    first = {name: sum(list(config.roles.values())[: names.index(name)]) for name in names}
    main, epilogue_load = (
        [at for at, warp in enumerate(loads.warps) if warp == first[name]] for name in ("load", "epilogue_load")
    )
    assert len(main) == 16
    assert main[3] < epilogue_load[0] < main[-1]  # A and B of two K tiles first


@settings(max_examples=8)
@given(n=st.integers(1, 150), batch=st.integers(1, 2))
@pytest.mark.parametrize("c_type", ["bf16", "f32"])
def test_a_row_of_any_length_keeps_its_end(c_type, n, batch):
    config = MatmulConfig(
        cta_group=1,
        mma_shape=(64, 64, 16),
        c_type=c_type,
        use_tma_epilogue_load=True,
        epilogue_is_1d=True,
        use_tma_store=False,
    )
    check(config, 3, n, 16, batch)


def test_rows_that_are_not_tma_compatible_are_read_by_threads():
    """The rule for a residual: C's type and rows of whole 16 bytes go through the role; all else is an operand."""
    n = 61
    loading = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), use_tma_epilogue_load=True)
    assert any("rows of C 122 bytes apart" in rejected for rejected in violations(loading, Problem(70, n, 64)))
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), use_tma_store=False)
    made = arrays(config, 70, n, 64, seed=None)
    source = np.random.default_rng().integers(-9, 9, (70, n)).astype(np.float32)
    epilogue = Epilogue(activation="relu", residual=Operand("tile"), beta=0.5)
    run(made.bind(matmul, made.result, 70, n, 64, 1, epilogue=epilogue, operands={"residual": source}))
    assert same(made.d, np.maximum(made.sums, 0) + 0.5 * source)


def test_a_row_that_is_not_aligned_or_of_another_type_is_refused():
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), use_tma_epilogue_load=True, epilogue_is_1d=True)
    made = arrays(config, 64, 32, 64)
    wrong = np.zeros(200, np.float32)[3:67:2]
    with pytest.raises(
        WarploomError, match=r"C\'s is \.bf16; its elements are not contiguous; its alignment is 4 bytes"
    ):
        bound_to(made, wrong, None, None)
    with pytest.raises(WarploomError, match="the source must be a tensor map for a matrix"):
        bound_to(made, mapped(np.zeros((64, 32), NUMPY["bf16"]), (64, 32), "64B"), None, None)


@pytest.mark.parametrize("is_row", [False, True], ids=["matrix", "row"])
def test_every_role_that_reads_waits_for_the_previous_grid(is_row):
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), use_tma_epilogue_load=True, epilogue_is_1d=is_row)
    made = arrays(config, 64, 32, 64)
    bound = bound_to(made, source_of(made), None, None)
    waits_before_it_reads(bound, ("load", "epilogue_load", "epilogue"))
