"""Comparisons: the grammar against NumPy, its limits, and that no Python can be executed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warploom.compare import FUNCTIONS, Comparison, Type, grammar, type_of
from warploom.compare.grammar import parse
from warploom.compare.shaping import REAL_TYPES
from warploom.diagnostics import WarploomError

RNG = np.random.default_rng()
BUFFERS = {
    "a": RNG.normal(size=(5, 7)).astype(np.float32),
    "b": RNG.normal(size=(9, 7)).astype(ml_dtypes.bfloat16),
    "h": RNG.uniform(0.1, 3, (5, 7)).astype(np.float16),
    "i": RNG.integers(-100, 100, (5, 7), dtype=np.int8),
    "u": RNG.integers(0, 1 << 32, (5, 7), dtype=np.uint32),
    "t": RNG.integers(0, 2, (5, 7)).astype(bool),
    "batch": RNG.normal(size=(2, 3, 4, 5)),
    "packed": RNG.integers(0, 256, (3, 4), dtype=np.uint8),
    "s": np.float32(2.5) * np.ones(()),
}
VALUES = {
    name: array if array.dtype == bool else array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
    for name, array in BUFFERS.items()
}
TYPES = {name: type_of(array) for name, array in BUFFERS.items()}


def evaluate(text: str) -> np.ndarray:
    """The value of an expression, found through comparisons alone: an output that agrees with it exactly."""
    comparison = Comparison.read(f"({text}) == ({text})", TYPES)
    from warploom.compare.comparison import _Evaluation

    with np.errstate(all="ignore"):
        return _Evaluation(text, BUFFERS, lambda name: BUFFERS[name]).of(comparison.left)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


A, B, H, I, U, T, BATCH = (VALUES[name] for name in ("a", "b", "h", "i", "u", "t", "batch"))  # noqa: E741
ERF = np.vectorize(math.erf)
CASES = {
    "a @ b.T": A @ B.T,
    "a + h * 2 - 1 / h": A + H * 2 - 1 / H,
    "-a * -a": A * A,
    "--a": A,
    "2 - 3 - 4": np.asarray(-5),
    "8 / 4 / 2": np.asarray(1.0),
    "2 + 3 * 4": np.asarray(14),
    "7 // 2 + 7 % 4": np.asarray(6),
    "i * i": I * I,
    "i @ i.T": I @ I.T,
    "i / 3": I / 3,
    "cast(u * 2654435761, 'uint32')": ((BUFFERS["u"].astype(object) * 2654435761) % (1 << 32)).astype(np.int64),
    "t + t": T.astype(int) * 2,
    "a[1:4, ::2]": A[1:4, ::2],
    "a[-1]": A[-1],
    "a[:, None, 3]": A[:, None, 3],
    "a[::-1]": A[::-1],
    "a - max(a, 1)[:, None]": A - A.max(1)[:, None],
    "sum(a)": A.sum(),
    "sum(i, axis=0)": I.sum(0),
    "mean(a, -1)": A.mean(-1),
    "min(h, 0)": H.min(0),
    "argmax(a, 1)": A.argmax(1),
    "argmin(a, 1)": A.argmin(1),
    "cumsum(i, 1)": I.cumsum(1),
    "softmax(a, axis=0)": softmax(A, 0),
    "softmax(a @ b.T, 1)": softmax(A @ B.T, 1),
    "where(a > 0, a, 0)": np.maximum(A, 0),
    "where((i % 2) == 0, i, -i)": np.where(I % 2 == 0, I, -I),
    "relu(a)": np.maximum(A, 0),
    "abs(i)": np.abs(I),
    "maximum(a, h) + minimum(a, h)": np.maximum(A, H) + np.minimum(A, H),
    "exp(a) + exp2(a)": np.exp(A) + np.exp2(A),
    "log(h) * log2(h)": np.log(H) * np.log2(H),
    "sqrt(h) * rsqrt(h)": np.sqrt(H) * (1 / np.sqrt(H)),
    "tanh(a) + sin(a) + cos(a)": np.tanh(A) + np.sin(A) + np.cos(A),
    "erf(a)": ERF(A),
    "gelu(a)": A / 2 * (1 + ERF(A * math.sqrt(0.5))),
    "gelu_tanh(a)": A / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (A + 0.044715 * A * A * A))),
    "silu(a)": A / (1 + np.exp(-A)),
    "sigmoid(a)": 1 / (1 + np.exp(-A)),
    "floor(a) + ceil(a) + round(a)": np.floor(A) + np.ceil(A) + np.rint(A),
    "reshape(a, 7, -1)": A.reshape(7, 5),
    "transpose(batch, 0, 1, 3, 2) @ batch": BATCH.transpose(0, 1, 3, 2) @ BATCH,
    "batch @ batch[0, 0].T": BATCH @ BATCH[0, 0].T,
    "a @ b[0]": A @ B[0],
    "a[0] @ b.T": A[0] @ B.T,
    "a[0] @ b[0]": A[0] @ B[0],
    "repeat(a, 3, axis=1)": np.repeat(A, 3, 1),
    "arange(7) * a": np.arange(7) * A,
    "s * a": 2.5 * A,
    "1.5e1 + .5": np.asarray(15.5),
}


@pytest.mark.parametrize("text", CASES)
def test_functions_agree_with_numpy(text):
    value = evaluate(text)
    assert value.shape == CASES[text].shape
    np.testing.assert_array_equal(value, CASES[text])


def test_every_function_is_tried():
    text = " ".join([*CASES, "cast(", "unpack_e2m1(", "<", "<=", ">", ">=", "!=", "negative"])
    assert [name for name in FUNCTIONS if name not in text and name != "transpose"] == []


@pytest.mark.parametrize("symbol", ["<", "<=", ">", ">=", "==", "!="])
def test_relations_give_booleans(symbol):
    expected = {"<": I < 3, "<=": I <= 3, ">": I > 3, ">=": I >= 3, "==": I == 3, "!=": I != 3}[symbol]
    np.testing.assert_array_equal(evaluate(f"where(i {symbol} 3, 1, 0)"), expected.astype(int))


def test_unpacks_the_low_half_first():
    codes = BUFFERS["packed"]
    table = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    expected = np.empty((3, 8))
    expected[:, 0::2], expected[:, 1::2] = table[codes & 15], table[codes >> 4]
    np.testing.assert_array_equal(evaluate("unpack_e2m1(packed)"), expected)


@pytest.mark.parametrize("dtype", [t for t in REAL_TYPES if t not in ("float64", "float32")])
def test_cast_rounds_once(dtype):
    """Midpoints of neighbouring values and the doubles just next to them: the nearer one, and at a tie the even code."""
    target = np.dtype(getattr(ml_dtypes, dtype, dtype))
    codes = np.arange(16 if dtype == "float4_e2m1fn" else 1 << 8 * target.itemsize).astype(f"u{target.itemsize}")
    with np.errstate(invalid="ignore"):
        values = codes.view(target).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    for x, expected in (
        (np.nextafter(middle, -np.inf), low),
        (np.nextafter(middle, np.inf), high),
        (middle, np.where(_code(low, target) % 2 == 0, low, high)),
    ):
        comparison = Comparison.read(f"y == cast(x, '{dtype}')", {"x": type_of(x), "y": type_of(expected)})
        assert comparison.mismatch({"x": x, "y": expected}, None) is None


def _code(values: np.ndarray, target: np.dtype) -> np.ndarray:
    return values.astype(target).view(f"u{target.itemsize}").astype(np.int64)


def test_cast_to_integers_goes_towards_zero_and_saturates():
    x = np.array([1.9, -1.9, 300.0, -300.0, np.nan, np.inf, -np.inf, 127.5, 1e30])
    for dtype in ("int8", "uint8", "int64", "uint64", "int32"):
        limits = np.iinfo(dtype)
        exact = [0 if np.isnan(v) else limits.max if v == np.inf else limits.min if v == -np.inf else int(v) for v in x]
        expected = np.array([min(max(v, limits.min), limits.max) for v in exact], dtype).astype(np.int64)
        comparison = Comparison.read(f"y == cast(x, '{dtype}')", {"x": type_of(x), "y": type_of(expected)})
        assert comparison.mismatch({"x": x, "y": expected}, None) is None


def test_mismatch_has_the_first_position_and_the_largest_error():
    x = np.zeros((3, 4), np.float32)
    y = x.copy()
    y[1, 2], y[2, 0] = 0.5, -3
    mismatch = Comparison.read("y == x", {"x": type_of(x), "y": type_of(y)}).mismatch({"x": x, "y": y}, None)
    assert (mismatch.count, mismatch.total, mismatch.where) == (2, 12, (1, 2))
    assert (mismatch.left, mismatch.right, mismatch.largest_error) == (0.5, 0.0, 3.0)
    assert "2 of 12" in str(mismatch)
    assert "[1, 2]" in str(mismatch)


@pytest.mark.parametrize(
    ("rtol", "atol", "agrees"), [(0, 0, False), (0.1, 0, True), (0, 0.5, False), (0, 1, True), (0.05, 0.6, True)]
)
def test_tolerance(rtol, atol, agrees):
    buffers = {"x": np.array([10.0]), "y": np.array([11.0])}
    types = {name: type_of(array) for name, array in buffers.items()}
    mismatch = Comparison.read("y == x", types, rtol=rtol, atol=atol).mismatch(buffers, None)
    assert (mismatch is None) == agrees


def test_nan_and_infinity():
    x = np.array([np.nan, np.inf, -np.inf, 1.0])
    types = {"x": type_of(x), "y": type_of(x)}
    compare = Comparison.read("y == x", types, rtol=1, atol=1)
    assert compare.mismatch({"x": x, "y": x}, None).where == (0,)
    assert Comparison.read("y == x", types, equal_nan=True).mismatch({"x": x, "y": x}, None) is None
    other = np.array([0.0, np.inf, np.inf, 1.0])
    assert compare.mismatch({"x": x, "y": other}, None).count == 2
    assert Comparison.read("y == x", types, equal_nan=True).mismatch({"x": x, "y": other}, None).count == 2


def test_integers_are_compared_exactly():
    x = np.array([1 << 62], np.int64)
    mismatch = Comparison.read("y == x", {"x": type_of(x), "y": type_of(x)}).mismatch({"x": x, "y": x + 1}, None)
    assert mismatch.count == 1


def test_initial_is_the_buffer_before_the_run():
    x = np.arange(4.0)
    compare = Comparison.read("x == initial(x) + 1", {"x": type_of(x)})
    assert compare.mismatch({"x": x + 1}, lambda name: x) is None
    assert compare.mismatch({"x": x}, lambda name: x).count == 4


ERRORS = {
    "a": "`==`",
    "a = b": "`=` where `==` was expected (column 3)",
    "a == b": "shape",
    "a == missing": "no buffer `missing`",
    "a == softmx(a)": "did you mean `softmax`",
    "a == __import__('os')": "no function `__import__`",
    "a == a.__class__": "'.' is not allowed here (column 7)",
    "a == a.T.T.x": "is not allowed here",
    "a == (lambda: 0)()": "where `)` was expected",
    "a == [1, 2]": "expected",
    "a == a[b]": "an integer, a slice or None",
    "a == a[1.5]": "expected",
    "a == a[-]": "an integer",
    "a == a[9]": "out of bounds",
    "a == a[::0]": "zero",
    "a == a[0, 0, 0]": "too many indices",
    "a == a @ b": "do not match for `@`",
    "a == 1 @ a": "needs an axis",
    "a == a + b": "broadcast",
    "a == sum(a, 5)": "no axis 5",
    "a == sum(a, a)": "must be an integer literal",
    "a == sum(a, 'x')": "must be an integer literal",
    "a == sum('x')": "must be a number or an array",
    "a == sum()": "takes (x, axis)",
    "a == sum(a, axis=0, axis=1)": "given twice",
    "a == sum(axis=0, a)": "a named argument",
    "a == sum(a, wrong=0)": "takes (x, axis)",
    "a == cast(a, 'int3')": "is not a type",
    "a == cast(a, int8)": "must be a quoted type name",
    "a == reshape(a, 3, 3)": "do not fill",
    "a == transpose(a, 0, 0)": "not an order",
    "a == repeat(a, 0)": "repeats",
    "a == initial(1)": "a buffer",
    "a == initial(a": "`)`",
    "a == unpack_e2m1(a)": "integer buffer",
    "a == 99999999999999999999": "64 bits",
    "a == " + "(" * 40: "nested deeper",
    "a == " + "-" * 40 + "a": "nested deeper",
    "a == " + "a" * 2000: "characters",
    "a == a" + "+a" * 200: "tokens, at most",
    "a == a" + ".T" * 400: "tokens, at most",
    "arange(99999999999) == 1": "intermediate values",
    "arange(400000) @ (arange(400000)[:, None] * arange(400000)) == 1": "intermediate values",
    "sum(reshape(arange(100000000), 10000, 10000) @ reshape(arange(100000000), 10000, 10000)) == 0": "would take about",
    "sum(erf(erf(arange(170000000)))) == 0": "would take about",
    "a == a; a": "is not allowed here",
    "a == a\x00": "is not allowed here",
    'a == "unfinished': "is not allowed here",
    "": "the end",
}


@pytest.mark.parametrize("text", ERRORS)
def test_refuses_with_a_reason(text):
    with pytest.raises(WarploomError) as caught:
        Comparison.read(text, TYPES)
    assert caught.value.code == "BAD_EXPRESSION"
    assert ERRORS[text] in caught.value.what


WORDS = [
    *FUNCTIONS,
    *BUFFERS,
    "initial",
    "None",
    "eval",
    "(",
    ")",
    "[",
    "]",
    ",",
    ":",
    ".T",
    "==",
    "=",
    "1",
    "2.5",
    "'float16'",
    "axis",
]


@given(st.lists(st.sampled_from(WORDS), max_size=24))
def test_any_text_gives_a_result_or_a_catalogued_error(words):
    try:
        comparison = Comparison.read(" ".join(words), TYPES, rtol=1.0)
    except WarploomError as error:
        assert error.code == "BAD_EXPRESSION"
    else:
        comparison.mismatch(BUFFERS, lambda name: BUFFERS[name])


OPERATIONS = {
    "({} + {})": np.add,
    "({} - {})": np.subtract,
    "({} * {})": np.multiply,
    "({} / {})": np.true_divide,
    "maximum({}, {})": np.maximum,
    "(-{})": lambda x, y: -x,
    "({}).T.T": lambda x, y: x,
}


@st.composite
def expressions(draw, depth=3):
    """A well-formed expression over 5×7 buffers, as text, with Python's own meaning of it."""
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from(["a", "h", "i", "t", "2", "0.5", "s"]))
        return name, VALUES[name] * 1 if name in VALUES else np.asarray(float(name) if "." in name else int(name))
    left, x = draw(expressions(depth=depth - 1))
    right, y = draw(expressions(depth=depth - 1))
    text, meaning = draw(st.sampled_from(sorted(OPERATIONS.items())))
    with np.errstate(all="ignore"):
        return text.format(left, right), meaning(x, y)


@given(expressions())
def test_random_expressions_agree_with_numpy(expression):
    text, expected = expression
    np.testing.assert_array_equal(evaluate(text), expected)


def test_the_static_type_is_the_type_of_the_value():
    """The type computed before the run is that of the result."""
    for text in CASES:
        comparison = Comparison.read(f"{text} == {text}", TYPES)
        from warploom.compare.comparison import _Typing

        promised = _Typing(text, TYPES).of(comparison.left)
        value = evaluate(text)
        kind = {"b": "boolean", "i": "integer", "f": "real"}[value.dtype.kind]
        assert promised == Type(value.shape, kind), text


def test_str_parses_back():
    assert parse("c == a@b.T") == parse(" c==( a ) @ (b.T) ")
    assert parse("c == a - b - a") != parse("c == a - (b - a)")


def test_the_documentation_has_the_same_grammar_and_functions():
    page = (Path(__file__).parents[2] / "docs" / "launch-files.md").read_text("utf-8")
    rules = [line.strip() for line in grammar.__doc__.splitlines() if " = " in line]
    assert len(rules) == 9
    for rule in rules:
        assert rule in page
    named = set(re.findall(r"`(\w+)[`(]", page.partition("| functions | |")[2]))
    assert [name for name in FUNCTIONS if name.isidentifier() and name != "negative" and name not in named] == []
