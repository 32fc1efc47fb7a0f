"""The default family against NumPy, bit for bit: shapes, types, memory orders, clusters, stages, sizes and schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok, sass_of
from tests.kernels.plain_problems import OPTIONS, arrays, cases, run, same, waits_before_it_reads

from warploom.kernels.sm100.matmul import matmul
from warploom.structured.config import MatmulConfig
from warploom.structured.epilogue.epilogue import Epilogue, Operand

CASES = cases(44, seed=6)


def launched(config, m, n, k, batch=1, *, epilogue=None, operands=None, schedule=("eager", 0), sms=8, seed=None):
    """The problem and the launch after it ran."""
    made = arrays(config, m, n, k, batch, seed=seed)
    bound = made.bind(matmul, made.result, m, n, k, batch, epilogue=epilogue, operands=operands, sms=sms)
    run(bound, schedule, sms)
    return made, bound


def check(case):
    made, bound = launched(case.config, case.m, case.n, case.k, case.batch, schedule=case.schedule, sms=case.sms)
    assert same(made.d, made.sums)
    return bound


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_exact(case):
    check(case)


def test_the_cases_have_every_option():
    for name, values in OPTIONS.items():
        missing = set(values) - {case.drawn[name] for case in CASES}
        assert not missing, f"{name}: {missing}"
    assert {case.config.cluster_shape[:2] for case in CASES} >= {(1, 1), (2, 1), (4, 4), (4, 2)}
    assert any(case.config.num_pipeline_stages == 1 for case in CASES)
    assert any(case.config.num_pipeline_stages == 16 for case in CASES)


@pytest.mark.parametrize("case", CASES[::12], ids=str)
def test_it_assembles_without_a_spill(case):
    made = arrays(case.config, case.m, case.n, case.k, case.batch)
    assemble_ok(made.bind(matmul, made.result, case.m, case.n, case.k, case.batch))


CODES = [(1, "bf16", "UTCHMMA"), (2, "bf16", "UTCHMMA"), (2, "e4m3", "UTCQMMA"), (1, "tf32", "UTCHMMA")]


@pytest.mark.parametrize(("group", "dtype", "multiplies"), CODES)
def test_sass_has_the_expected_instructions(group, dtype, multiplies):
    made = arrays(MatmulConfig(cta_group=group, a_type=dtype), 64, 64, 128)
    code = sass_of(made.bind(matmul, made.result, 64, 64, 128, 1))
    assert code.count(multiplies) >= 4
    assert code.count(multiplies, "2CTA") == (code.count(multiplies) if group == 2 else 0)
    assert all(code.count(each) for each in ("LDTM", "UTMALDG", "UTMASTG"))
    assert not code.count("LDL")
    assert not code.count("STL")


@settings(max_examples=8)
@given(st.integers(0, 1 << 32))
def test_any_configuration_is_exact(seed):
    check(cases(1, seed)[0])


EPILOGUES = [
    ({"bias": Operand("row"), "activation": "relu"}, "bias", lambda sums, bias: np.maximum(sums + bias, 0)),
    ({"residual": Operand("tile"), "beta": -0.5}, "residual", lambda sums, residual: sums - 0.5 * residual),
    (
        {"function": lambda value, at, factor: value * factor, "operands": (("factor", Operand("column")),)},
        "factor",
        np.multiply,
    ),
]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("fields", "name", "expected"), EPILOGUES, ids=[name for _, name, _ in EPILOGUES])
def test_an_epilogue_reads_its_operands_from_global_memory_at_any_odd_size(fields, name, expected, swapped):
    config = MatmulConfig(cta_group=2, mma_shape=(128, 64, 16), AB_swapped=swapped, use_tma_store=False)
    m, n, k, batch = 131, 67, 75, 2
    rng = np.random.default_rng()
    shape = {"bias": (n,), "residual": (batch, m, n), "factor": (m,)}[name]
    given_ = rng.integers(-4, 5, shape).astype(np.float32)
    made, _ = launched(config, m, n, k, batch, epilogue=Epilogue(**fields), operands={name: given_})
    assert same(made.d, expected(made.sums, given_[:, None] if name == "factor" else given_))


def test_a_user_function_may_replace_the_store():
    config = MatmulConfig(cta_group=1, mma_shape=(128, 32, 16), c_type="f32", use_tma_store=False)
    m, n, k = 130, 37, 64
    twice = np.full((m, n), np.nan, np.float32)

    def store(value, at, twice):
        twice[at.row, at.column] = value + value

    epilogue = Epilogue(store=store, operands=(("twice", Operand("view")),))
    made, _ = launched(config, m, n, k, epilogue=epilogue, operands={"twice": twice})
    assert same(twice, 2 * made.sums)
    assert np.isnan(made.d).all()


def test_every_role_that_reads_waits_for_the_previous_grid():
    config = MatmulConfig(cta_group=1, mma_shape=(128, 64, 16))
    made = arrays(config, 64, 64, 64)
    waits_before_it_reads(made.bind(matmul, made.result, 64, 64, 64, 1), ("load", "epilogue"))


def test_one_trace_serves_all_sizes():
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16))
    first, second = (launched(config, m, n, k, batch)[1] for m, n, k, batch in ((64, 32, 64, 1), (100, 40, 200, 1)))
    assert first.program is second.program
