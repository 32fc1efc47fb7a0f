"""The epilogue graph by itself: what it may be, and its arithmetic in float32 and in narrower types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.structured.writing import config_of, run

from warploom.diagnostics import TraceError
from warploom.structured import Epilogue, Operand
from warploom.structured.epilogue.epilogue import ACTIVATIONS


def test_all_problems_are_reported_together():
    with pytest.raises(TraceError, match="BAD_EPILOGUE") as found:
        Epilogue(
            bias=Operand("diagonal"),
            activation="softmax",
            dtype="f64",
            operands=(("a b", Operand("row")), ("x", Operand("row")), ("x", Operand("tile"))),
        )
    text = str(found.value)
    assert "6 problem" in text
    for word in (
        "diagonal",
        "softmax",
        "f64",
        "given twice",
        "`a b` is not an identifier",
        "need a function that reads them",
    ):
        assert word in text


def test_it_is_a_value_until_it_is_bound():
    def function(acc, at, x):
        return acc * x

    one, other = (Epilogue(function=function, operands=(("x", Operand("row")),), activation="relu") for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


def test_binding_names_that_it_does_not_have():
    with pytest.raises(TraceError, match="no operand named bias, y"):
        Epilogue(beta=2.0).bound(bias=1.0, y=1.0, alpha=3.0)


REFERENCE = {
    "relu": lambda x: np.maximum(x, 0),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(__import__("math").erf)(x / np.sqrt(2))),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    config = config_of((64, 8, 1), c_type="f32")
    options = {"epilogue": Epilogue(activation=name, alpha=0.25)}
    written = run(config, 40, 8, options=lambda operands: options)
    np.testing.assert_allclose(written.c, REFERENCE[name](written.sums * 0.25), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_narrower_epilogue_rounds_at_every_step(dtype):
    """The reference's way: the accumulator is rounded first, and each operation after it."""
    narrow = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}[dtype]
    rng = np.random.default_rng()
    m, n = 40, 24
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(narrow)

    def function(acc, at):
        assert acc.type == dtype
        return acc * acc

    epilogue = Epilogue(
        alpha=1 / 3, bias=Operand("row"), function=function, beta=0.7, residual=Operand("tile"), dtype=dtype
    )
    config = config_of((64, 24, 1), c_type=dtype)
    options = {"epilogue": epilogue}

    def bound(operands):
        return {"epilogue": options["epilogue"].bound(**operands)}

    written = run(config, m, n, options=bound, operands={"bias": bias, "residual": residual})
    value = (written.sums * np.float32(1 / 3)).astype(narrow) + bias.astype(narrow)
    value = value * value + residual * narrow(0.7)
    assert value.dtype == narrow
    np.testing.assert_array_equal(written.c.astype(np.float32), value.astype(np.float32))


def test_float32_rounds_alpha_and_bias_together_and_beta_and_residual_too():
    rng = np.random.default_rng()
    m, n = 24, 16
    bias, residual = (rng.standard_normal(shape).astype(np.float32) for shape in (n, (m, n)))
    alpha, beta = np.float32(1 / 3), np.float32(0.7)
    epilogue = Epilogue(alpha=float(alpha), bias=Operand("row"), beta=float(beta), residual=Operand("tile"))
    written = run(
        config_of((64, 16, 1), c_type="f32"),
        m,
        n,
        options=lambda operands: {"epilogue": epilogue.bound(**operands)},
        operands={"bias": bias, "residual": residual},
    )
    linear = (np.float64(written.sums) * np.float64(alpha) + bias).astype(np.float32)
    expected = (np.float64(residual) * np.float64(beta) + linear).astype(np.float32)
    np.testing.assert_array_equal(written.c, expected)


def test_alpha_and_beta_may_be_launch_parameters():
    epilogue = Epilogue(residual=Operand("column"))
    column = np.arange(24, dtype=np.float32)
    written = run(
        config_of((64, 16, 1)),
        24,
        16,
        options=lambda operands: {"epilogue": epilogue.bound(**operands)},
        operands={"alpha": 2.0, "beta": -1.0, "residual": column},
    )
    written.check(written.sums * 2 - column[:, None])


def test_an_operand_is_read_once_for_each_place_that_it_has():
    from tests.structured.writing import opcodes

    def function(acc, at, row, column):
        return acc + row + column

    named = (("row", Operand("row")), ("column", Operand("column")))
    config = config_of((128, 64, 1), c_type="f32")
    given = {"row": np.zeros(64, np.float32), "column": np.zeros(128, np.float32)}
    written = run(
        config,
        128,
        64,
        options=lambda operands: {"epilogue": Epilogue(function=function, operands=named).bound(**operands)},
        operands=given,
        tiles=(1, 1),
    )
    loads = opcodes(written.launch).count("ld.global.f32")
    filling = 8
    assert loads - filling == 64 // 4 + 4, "a quarter of the columns, and four rows"
