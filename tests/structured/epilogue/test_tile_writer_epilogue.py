"""Functions of the author's: the same values at the same places, however C is computed and stored."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.structured.writing import NUMPY, ONE_OF_EACH, PAIRS, SCHEDULES, assemble, config_of, empty, opcodes, run

from warploom.diagnostics import TraceError
from warploom.structured import Epilogue, Operand

M, N = 45, 37
NAMED = (
    ("row", Operand("row")),
    ("column", Operand("column")),
    ("tile", Operand("tile")),
    ("scale", Operand("scalar")),
)


def weighed(acc, at, row, column, tile, scale):
    """Every kind of operand, and where the element belongs."""
    return acc * scale + row + column * 2.0 + tile + (at.row * 100 + at.column).to("f32")


def operands(m=M, n=N):
    rng = np.random.default_rng()
    return {
        "row": rng.integers(-4, 5, n).astype(np.float32),
        "column": rng.integers(-4, 5, m).astype(ml_dtypes.bfloat16),
        "tile": rng.integers(-4, 5, (m, n)).astype(np.float16),
        "scale": 2.0,
    }


def weighed_by_numpy(sums, given):
    wide = {name: np.asarray(value).astype(np.float32) for name, value in given.items()}
    rows, columns = np.indices(sums.shape[-2:])
    added = wide["row"] + 2 * wide["column"][:, None] + wide["tile"]
    return sums * 2 + added + rows * 100 + columns


def with_epilogue(**fields):
    def options(given):
        return {"epilogue": Epilogue(**fields).bound(**given)}

    return options


MODES = {
    "registers": {"tma": True, "register": True},
    "shared memory": {"tma": True, "register": False},
    "direct": {"tma": False, "register": True},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("layout", ONE_OF_EACH, ids=str)
def test_a_function_sees_its_element_and_its_operands(layout, swapped, mode):
    modes = MODES[mode]
    config = config_of(layout, swapped=swapped, c_type="f32", register_based_epilogue=modes["register"])
    given = operands()
    written = run(
        config, M, N, options=with_epilogue(function=weighed, operands=NAMED), operands=given, tma=modes["tma"]
    )
    written.check(weighed_by_numpy(written.sums, given))


@pytest.mark.parametrize("c_type", list(NUMPY))
@pytest.mark.parametrize("register", [True, False], ids=["registers", "shared memory"])
def test_results_are_rounded_once_in_every_type_and_mode(c_type, register):
    """A function whose result is between two numbers of the type, unless its argument had been rounded before."""

    def function(acc, at):
        return acc * 0.0625 + 1.0 / 3.0

    for layout, swapped in [((128, 32, 1), False), ((128, 64, 2), True)]:
        config = config_of(layout, swapped=swapped, c_type=c_type, register_based_epilogue=register)
        written = run(config, 35, 48, options=with_epilogue(function=function))
        exact = (written.sums * np.float32(0.0625)).astype(np.float32) + np.float32(1 / 3)
        written.check(exact)


def test_a_shared_memory_epilogue_goes_through_shared_memory():
    register, shared = (config_of((64, 16, 1), register_based_epilogue=each) for each in (True, False))
    few, many = (opcodes(run(each, 20, 24).launch).count("ld.shared.v4.f32") for each in (register, shared))
    assert (few, many) == (0, 2)


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("c_type", ["bf16", "f32", "e4m3"])
def test_a_store_function_owns_the_store_of_every_element_and_of_no_other(c_type, swapped):
    """N % 16 == 8 among the sizes: a fragment whose lower rows lie outside still has its upper ones."""

    def store(value, at, out, mark):
        out[at.batch, at.row, at.column] = value
        mark.atomic("add", 1, at.row, at.column)

    for layout, (m, n) in [((128, 16, 1), (19, 72)), ((128, 48, 2), (21, 72)), ((64, 8, 1), (24, 21))]:
        config = config_of(layout, swapped=swapped, c_type=c_type)
        out, mark = empty((3, m, n), c_type), np.zeros((m, n), np.uint32)
        named = (("out", Operand("view")), ("mark", Operand("view")))

        def body(writer, stage, tile, shape, given):
            writer.write_batched(stage, (*tile, 1), shape)

        given = {"out": out, "mark": mark}
        options = with_epilogue(store=store, operands=named)
        written = run(config, m, n, body=body, options=options, operands=given, tma=False)
        np.testing.assert_array_equal(out[1].astype(np.float32), written.sums)
        assert (mark == 1).all()
        assert np.isnan(written.c.astype(np.float32)).all()
        assert np.isnan(out[::2].astype(np.float32)).all()


def test_functions_see_the_batch():
    def function(acc, at, offset):
        return acc + at.batch.to("f32") * 10.0 + offset

    def body(writer, stage, tile, shape, given):
        writer.write_batched(stage, (*tile, 2), shape)

    offsets = np.random.default_rng().integers(-9, 9, (3, 24)).astype(np.float32)
    for register in (True, False):
        config = config_of((64, 16, 1), c_type="f32", register_based_epilogue=register)
        options = with_epilogue(function=function, operands=(("offset", Operand("row")),))
        written = run(config, 30, 24, body=body, options=options, operands={"offset": offsets}, shape=(3, 30, 24))
        expected = np.full((3, 30, 24), np.nan, np.float32)
        expected[2] = written.sums + 20 + offsets[2]
        written.check(expected)


@pytest.mark.parametrize("register", [True, False], ids=["registers", "shared memory"])
def test_the_residual_is_added_last_and_the_bias_first(register):
    """D = function(activation(alpha·acc + bias)) + beta·residual."""
    rng = np.random.default_rng()
    m, n = 33, 40
    bias = rng.integers(-5, 6, n).astype(np.float32)
    residual = rng.integers(-5, 6, (m, n)).astype(np.float32)

    def function(acc, at):
        return acc * acc

    for layout, swapped in PAIRS:
        config = config_of(layout, swapped=swapped, c_type="f32", register_based_epilogue=register)
        options = with_epilogue(
            alpha=0.5, bias=Operand("row"), activation="relu", function=function, beta=-2.0, residual=Operand("tile")
        )
        written = run(config, m, n, options=options, operands={"bias": bias, "residual": residual})
        written.check(np.maximum(0.5 * written.sums + bias, 0) ** 2 - 2 * residual)


def test_lambdas_under_the_names_of_the_page():
    def transforms(acc, at):
        return acc * 3.0

    config = config_of((64, 16, 1))
    options = {"elementwise_compute_lambda_fn": transforms}
    written = run(config, 20, 24, options=lambda operands: options)
    written.check(written.sums * 3)

    def owns(value, at):
        assert value.type == "bf16"

    options = {"elementwise_lambda_fn": owns}
    written = run(config, 20, 24, options=lambda operands: options)
    assert np.isnan(written.c.astype(np.float32)).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shared_memory_epilogues_under_any_schedule(schedule):
    config = config_of((128, 48, 1), swapped=True, register_based_epilogue=False)
    given = operands(60, 130)
    written = run(
        config, 60, 130, options=with_epilogue(function=weighed, operands=NAMED), operands=given, schedule=schedule
    )
    written.check(weighed_by_numpy(written.sums, given))


def test_heavy_epilogues_assemble_without_spills():
    options = with_epilogue(bias=Operand("row"), activation="gelu", residual=Operand("tile"))
    m, n = 128, 32
    given = {"bias": np.zeros(n, np.float32), "residual": np.zeros((m, n), ml_dtypes.bfloat16)}
    for register in (True, False):
        config = config_of((128, 32, 1), register_based_epilogue=register)
        written = run(config, m, n, options=options, operands=given, tiles=(1, 1))
        exact = np.float64(written.sums)
        from math import erf

        gelu = np.array([x * 0.5 * (1 + erf(x / 2**0.5)) for x in exact.ravel()]).reshape(exact.shape)
        np.testing.assert_allclose(written.c.astype(np.float64), gelu, rtol=2**-8, atol=1e-5)
        assemble(written.launch)


def test_a_function_must_give_a_device_value():
    with pytest.raises(TraceError, match="BAD_EPILOGUE") as found:
        run(config_of((64, 8, 1)), 8, 8, options=with_epilogue(function=lambda acc, at: None))
    assert "returned None; it must be a device value" in str(found.value)


def test_operands_without_a_source_are_refused():
    epilogue = Epilogue(function=lambda acc, at, x: acc + x, operands=(("x", Operand("row")),))
    with pytest.raises(TraceError, match="`x` has no source"):
        run(config_of((64, 8, 1)), 8, 8, options=lambda operands: {"epilogue": epilogue})
