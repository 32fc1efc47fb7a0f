"""Functions of NumPy, PyTorch, `math` and Python itself on device values: they work, or the error says what does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.trace.harness import elementwise
from tests.trace.test_errors import reported

from warploom.trace import kernel, s32, wgmma_accumulator

RNG = np.random.default_rng()
X = RNG.uniform(0.25, 4.0, 97).astype(np.float32)
Y = RNG.uniform(-4.0, 4.0, 97).astype(np.float32)

UNARY = {
    name: getattr(np, name)
    for name in (
        "exp", "exp2", "log", "log2", "sqrt", "sin", "cos", "tanh", "reciprocal", "absolute", "negative", "square",
        "expm1", "log1p",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_numpy_functions_of_one_value(name):
    found = elementwise([UNARY[name]], X, dtype=np.float32)
    np.testing.assert_allclose(found[0], UNARY[name](X.astype(np.float64)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "minimum", "maximum", "fmin", "fmax"])
def test_numpy_functions_of_two_values(name):
    function = getattr(np, name)
    y = Y.copy()
    y[:3] = np.nan
    found = elementwise([function, lambda a, b: function(np.float32(1.5), a)], X, y, dtype=np.float32)
    np.testing.assert_array_equal(found[0], function(X, y))
    np.testing.assert_array_equal(found[1], function(np.float32(1.5), X))


def test_selections():
    functions = [
        lambda a, b: np.where(b < 0, a, b),
        lambda a, b: np.clip(b, -1.0, 1.0),
        lambda a, b: np.less(a, b).to("f32"),
    ]
    found = elementwise(functions, X, Y, dtype=np.float32)
    np.testing.assert_array_equal(found, [np.where(Y < 0, X, Y), np.clip(Y, -1, 1), (X < Y).astype(np.float32)])


def test_powers():
    exponents = (0, 1, 2, 3, 7, -1, -2, 0.5, -0.5, 1.5, 2.0)
    functions = [*(lambda a, b, p=p: a**p for p in exponents), lambda a, b: 2**a, lambda a, b: a**b]
    found = elementwise(functions, X, Y, dtype=np.float32)
    wide, y = X.astype(np.float64), Y.astype(np.float64)
    for row, expected in zip(found, [*(wide**p for p in exponents), 2**wide, wide**y], strict=True):
        np.testing.assert_allclose(row, expected, rtol=2e-5)
    whole = RNG.integers(-9, 9, 64).astype(np.int32)
    np.testing.assert_array_equal(elementwise([lambda a: a**3, lambda a: a**0], whole, dtype=np.int32)[0], whole**3)


def test_builtins():
    functions = [abs, lambda a: round(a).to("f32"), lambda a: math.floor(a).to("f32"), lambda a: math.ceil(a).to("f32")]
    found = elementwise([*functions, lambda a: math.trunc(a).to("f32")], Y, dtype=np.float32)
    np.testing.assert_array_equal(found, [np.abs(Y), np.rint(Y), np.floor(Y), np.ceil(Y), np.trunc(Y)])


def test_torch_functions():
    torch = pytest.importorskip("torch")
    gelu = torch.nn.functional.gelu
    functions = {
        "relu": (torch.relu, torch.relu),
        "sigmoid": (torch.sigmoid, torch.sigmoid),
        "silu": (torch.nn.functional.silu,) * 2,
        "gelu": (gelu, gelu),
        "gelu_tanh": (lambda a: gelu(a, approximate="tanh"),) * 2,
        "clamp": (lambda a: torch.clamp(a, min=-1.0, max=0.5),) * 2,
        "where": (lambda a: torch.where(a < 0, a * 2.0, a),) * 2,
        "pow": (lambda a: torch.pow(a, 3), lambda a: torch.pow(a, 3)),
        "erf": (torch.erf, torch.erf),
        "maximum": (lambda a: torch.maximum(a, -a),) * 2,
    }
    found = elementwise([each for each, _ in functions.values()], Y, dtype=np.float32)
    for row, (name, (_, expected)) in zip(found, functions.items(), strict=True):
        wide = expected(torch.from_numpy(Y.astype(np.float64))).numpy()
        np.testing.assert_allclose(row, wide, rtol=2e-5, atol=5e-6, err_msg=name)


def test_fragments():
    torch = pytest.importorskip("torch")

    @kernel
    def traced(x):
        value = wgmma_accumulator(8)
        value.set(2.0)
        sums = value.read()
        for result in (np.exp(sums), torch.relu(sums), sums**2, abs(sums), 1.0 / sums, np.maximum(sums, 0.5)):
            assert result.layout == sums.layout
            x[0] = result.values[0]

    traced.bind(np.zeros(4, np.float32), grid=1, block=128)


def test_functions_that_the_device_lacks():
    def arctan(x, n: s32):
        x[0] = np.arctan(x[0])  # HERE

    def with_array(x, n: s32):
        x[0] = np.add(x[0], np.zeros(4, np.float32))  # HERE

    def other(x, n: s32):
        x[0] = np.median(x[0])  # HERE

    reported(arctan, "NOT_ON_DEVICE", "`numpy.arctan`", "exp, exp2")
    reported(with_array, "NOT_ON_DEVICE", "with a NumPy array", "as parameters of the kernel")
    reported(other, "NOT_ON_DEVICE", "`numpy.median`")


def test_math_names_the_function_to_use():
    def exp(x, n: s32):
        x[0] = math.exp(x[0])  # HERE

    def power(x, n: s32):
        x[0] = math.pow(x[0], 2)  # HERE

    def gamma(x, n: s32):
        x[0] = math.gamma(x[0])  # HERE

    def float_(x, n: s32):
        x[0] = float(x[0])  # HERE

    reported(exp, "NOT_ON_DEVICE", "`math.exp`", "`exp` of warploom.trace")
    reported(power, "NOT_ON_DEVICE", "`math.pow`", "`x ** y`")
    reported(gamma, "NOT_ON_DEVICE", "`math.gamma`", "such as exp, log, sqrt, tanh")
    reported(float_, "NOT_ON_DEVICE", "float()", "such as exp, log, sqrt, tanh")


def test_min_and_max_name_theirs():
    def smallest(x, n: s32):
        x[0] = min(x[0], x[1])  # HERE

    def largest(x, n: s32):
        x[0] = max(0.0, x[1])  # HERE

    reported(smallest, "BRANCH_ON_DEVICE_VALUE", "use `min_(a, b)`")
    reported(largest, "BRANCH_ON_DEVICE_VALUE", "use `max_(a, b)`")
