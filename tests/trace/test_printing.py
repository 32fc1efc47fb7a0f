"""`device_print` and `device_assert` on the emulator, and as ptxas takes them."""

from __future__ import annotations

import inspect
import pickle

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import accepted

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.trace import (
    Array,
    cta_index,
    device_assert,
    device_print,
    f32,
    f64,
    kernel,
    loop,
    s8,
    s32,
    s64,
    thread,
    u64,
    when,
)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_values_of_every_kind(schedule):
    @kernel
    def shows(x: Array[f32], n: s32, small: s8, large: s64, huge: u64, wide: f64):
        i = thread()
        with when(i < 3):
            device_print("x =", x[i], "100%", i, n, small, large, huge, wide, x[i] > 0.0, x[i].to("bf16"), 7, None)
        device_print("done", sep="", end="|")

    x = np.array([1.5, -0.1, 3e20], np.float32)
    bound = shows.bind(x, -5, -7, -(1 << 40), 1 << 63, 0.1, grid=1, block=32)
    run = launch(bound, schedule=schedule)
    assert run.printed.count("done|") == 32
    lines = [line.replace("done|", "") for line in run.printed.splitlines() if "x =" in line]
    bf16 = [f"{each:.9g}" for each in x.astype(ml_dtypes.bfloat16).astype(np.float64)]
    expected = [
        f"x = {value:.9g} 100% {i} -5 -7 {-(1 << 40)} {1 << 63} {0.1:.17g} {int(value > 0)} {bf16[i]} 7 None"
        for i, value in enumerate(x.tolist())
    ]
    assert sorted(lines) == sorted(expected)
    accepted(bound)


def test_a_called_kernel_prints(capsys):
    @kernel
    def hello(n: s32):
        with when(thread() == 0):
            for k in loop(n):
                device_print("CTA", cta_index(), "iteration", k)

    hello[2, 32](2)
    assert sorted(capsys.readouterr().out.splitlines()) == [f"CTA {c} iteration {k}" for c in (0, 1) for k in (0, 1)]


def test_the_output_of_a_kernel_that_fails_is_printed(capsys):
    """It is often what explains the failure."""

    @kernel
    def fails(x: Array[s32]):
        with when(thread() == 3):
            device_print("x =", x[thread()])
            device_assert(x[thread()] < 0, "x must be negative")

    with pytest.raises(WarploomError) as caught:
        fails[1, 32](np.arange(32, dtype=np.int32))
    assert caught.value.code == "TRAP"
    assert capsys.readouterr().out == "x = 3\n"
    assert caught.value.printed == pickle.loads(pickle.dumps(caught.value)).printed == "x = 3\n"


def test_an_assertion_names_its_message_and_line():
    @kernel
    def checked(x: Array[s32], n: s32):
        i = thread()
        device_assert(x[i] < n, "x must be below n")  # HERE
        x[i] = x[i] + 1

    x = np.arange(32, dtype=np.int32)
    bound = checked.bind(x, 32, grid=1, block=32)
    launch(bound)
    np.testing.assert_array_equal(x, np.arange(1, 33))
    accepted(bound)
    with pytest.raises(WarploomError) as caught:
        checked[1, 32](x, 32)
    lines, start = inspect.getsourcelines(checked.__wrapped__)
    line = start + next(at for at, text in enumerate(lines) if "HERE" in text)
    assert caught.value.code == "TRAP"
    assert caught.value.loc.line == line
    assert f"assertion `x must be below n` failed in `checked`, {__file__}:{line}" in str(caught.value)


def test_assertions_known_while_tracing():
    @kernel
    def known(x: Array[s32], *, size: int):
        device_assert(size % 8 == 0, "size must be a multiple of 8")

    launch(known.bind(np.zeros(4, np.int32), size=16, grid=1, block=32))
    with pytest.raises(WarploomError, match="fails while tracing: size must be a multiple of 8"):
        known.bind(np.zeros(4, np.int32), size=17, grid=1, block=32)
