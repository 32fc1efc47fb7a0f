"""Errors of tracing and their lines: every message of the tracing part of the catalogue."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from warploom import diagnostics
from warploom.diagnostics import PtxError, TraceError, WarploomError
from warploom.trace import (
    At,
    Variable,
    While,
    abs_,
    emit,
    exp,
    f32,
    fma,
    kernel,
    literal,
    loop,
    max_,
    otherwise,
    pack,
    round_pair,
    s32,
    select,
    shared,
    shuffle,
    special,
    thread,
    unpack,
    when,
    widening_product,
)

HERE = "HERE"


def trace(function):
    """The error of tracing a function, and the line of the function that is marked."""
    with pytest.raises(WarploomError) as caught:
        kernel(function).bind(np.zeros(64, np.float32), 3, grid=(1, 1, 1), block=(32, 1, 1))
    return caught.value


def reported(function, code, *words):
    """Tracing raises this error, at the line marked HERE, with these words."""
    error = trace(function)
    text = str(error)
    assert error.code == code, text
    for word in words:
        assert word in text, text
    assert "do: " in text
    lines, start = inspect.getsourcelines(function)
    marked = [start + at for at, line in enumerate(lines) if f"# {HERE}" in line]
    assert [error.loc.line] == marked, text
    assert error.loc.file == inspect.getsourcefile(function)
    return error


def test_python_if_on_a_device_value():
    def if_(x, n: s32):
        if n > 3:  # HERE
            x[0] = 1.0

    def while_(x, n: s32):
        while n:  # HERE
            pass

    def and_(x, n: s32):
        _ = (n > 3) and (n < 5)  # HERE

    def range_(x, n: s32):
        for _ in range(n):  # HERE
            pass

    for function in (if_, while_, and_, range_):
        reported(function, "BRANCH_ON_DEVICE_VALUE", "not known while tracing", "with when(condition):")


def test_loops_left_early():
    def break_(x, n: s32):
        for _ in loop(n):
            break  # HERE

    def return_(x, n: s32):
        for _ in loop(n):
            x[0] = 1.0
            return  # HERE

    def inner(x, n: s32):
        for _ in loop(n):
            for _ in loop(2):
                break  # HERE

    def within_branch(x, n: s32):
        for _ in loop(n, unroll=2):
            with when(n > 2):
                break  # HERE

    def while_(x, n: s32):
        for _ in While(lambda: n > 3):
            break  # HERE

    for function in (break_, return_, inner, within_branch, while_):
        reported(function, "LEFT_LOOP_EARLY", "leaves the body of a device", "with when(...):")


def test_exceptions_pass_through_unchanged():
    def own(x, n: s32):
        for _ in loop(n):
            with when(n > 2):
                raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        kernel(own).bind(np.zeros(64, np.float32), 3, grid=(1, 1, 1), block=(32, 1, 1))


def test_values_out_of_their_scope():
    def after_loop(x, n: s32):
        for k in loop(n):
            last = k * 2
        x[0] = last.to("f32")  # HERE

    def after_branch(x, n: s32):
        with when(n > 3):
            y = x[0] + 1.0
        x[1] = y  # HERE

    def other_side(x, n: s32):
        with when(n > 3):
            y = x[0] + 1.0
        with otherwise():
            x[1] = y  # HERE

    def variable(x, n: s32):
        with when(n > 3):
            y = Variable("f32", 0.0)
        y += 1.0  # HERE

    for function in (after_loop, after_branch, other_side, variable):
        reported(function, "VALUE_OUT_OF_SCOPE", "after the end of that", "store it in a variable")


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda x, n: x[0] + n, "`add` of .f32 and .s32"),
        (lambda x, n: n < x[0], "`lt` of .s32 and .f32"),
        (lambda x, n: n == "three", "a .s32 compared with 'three'"),
        (lambda x, n: x[0] & 3, "`and` of .f32"),
        (lambda x, n: x[0] % 3.0, "`rem` of .f32"),
        (lambda x, n: n / 2, "integers divide with `//`"),
        (lambda x, n: x[0] // 2, "floats divide with `/`"),
        (lambda x, n: n + 0.5, "0.5 is not a .s32"),
        (lambda x, n: when(n).__enter__(), "when() of a .s32; compare it first"),
        (lambda x, n: next(While(lambda: n)), "While() of a .s32"),
        (lambda x, n: select(n, 1, n), "`select` needs a predicate"),
        (lambda x, n: select(n > 3, 1, 2), "a device value on one side"),
        (lambda x, n: select(n > 3, n, x[0]), "`select` of .s32 and .f32"),
        (lambda x, n: Variable("f32", n), "a .s32 assigned to a .f32 variable"),
        (lambda x, n: x[0].bits("u16"), "the bits of a .f32 read as .u16"),
        (lambda x, n: x[0].to("e2m1"), "a .f32 converted to .e2m1"),
        (lambda x, n: x[0].to("e4m3", rounding="rz"), "a .e4m3 rounds to nearest even and stays finite"),
        (lambda x, n: x[0].to("f64").to("e5m2"), "convert it to .f32 first"),
        (lambda x, n: x[0].to("e4m3") + 1.0, "`add` of .e4m3"),
        (lambda x, n: round_pair(x[0], x[0], "e4m3x4"), "a .e4m3x4 rounded from .f32"),
        (lambda x, n: exp(n), "`exp` of .s32"),
        (lambda x, n: fma(n > 3, True, True), "`fma` of .pred"),
        (lambda x, n: abs_(n > 3), "`abs` of .pred"),
        (lambda x, n: max_(n > 3, n < 3), "`max` of .pred"),
        (lambda x, n: pack(n, n), "2 .s32 in one register"),
        (lambda x, n: unpack(n), "the parts of a .s32"),
        (lambda x, n: round_pair(n, n), "a .bf16x2 rounded from .s32"),
        (lambda x, n: pack(x[0].to("f16"), x[1].to("f16")) < 3, "unpack it first"),
        (lambda x, n: widening_product(x[0], x[0]), "`widening_product` of .f32"),
        (lambda x, n: shuffle(n, "left", 1), "a shuffle `left` of .s32"),
        (lambda x, n: loop(1, 2, 3), "loop() with 3 bounds"),
        (lambda x, n: loop(n, step=0, unroll=0, peel=-1), "step 0; unroll=0; peel=-1"),
        (lambda x, n: loop(x[0]), "a loop over .f32"),
        (lambda x, n: loop(2.5), "a loop over floats"),
        (lambda x, n: loop(n, n.to("u64")), "`loop` of .s32 and .u64"),
        (lambda x, n: emit("bar.sync", "zero"), "'zero' cannot be an operand"),
        (lambda x, n: emit("nanosleep.u32", 1.5), "the number 1.5 for a"),
        (lambda x, n: emit("bar.sync", 0, guard=n), "a guard is a predicate"),
        (lambda x, n: literal(1.5, "s32"), "1.5 is not a .s32"),
    ],
)
def test_types_that_do_not_fit(act, says):
    def wrong(x, n: s32):
        act(x, n)

    error = trace(wrong)
    assert error.code == "TYPE_MISMATCH"
    assert says in str(error)


def test_outside_a_kernel():
    for act, what in (
        (thread, "`%tid.x`"),
        (lambda: loop(3), "loop()"),
        (lambda: shared("f32", 4), "shared()"),
        (lambda: emit("bar.sync", 0), "`bar.sync`"),
        (lambda: Variable("f32", 0.0), "A variable"),
        (lambda: otherwise().__enter__(), "otherwise()"),
    ):
        with pytest.raises(TraceError) as caught:
            act()
        assert str(caught.value).startswith(f"OUTSIDE_KERNEL: {what} was used outside a kernel")
        assert caught.value.loc.file == __file__


def test_otherwise_without_when():
    def alone(x, n: s32):
        with otherwise():  # HERE
            x[0] = 1.0

    def too_late(x, n: s32):
        with when(n > 3):
            x[0] = 1.0
        x[1] = 2.0
        with otherwise():  # HERE
            x[0] = 2.0

    for function in (alone, too_late):
        reported(function, "OTHERWISE_WITHOUT_WHEN", "no `when(...)` block directly before it", "directly after")


def test_unknown_instructions_name_the_nearest():
    def unknown(x, n: s32):
        emit("mbarrier.inti.shared::cta.b64", At(special("tid.x")), 1)  # HERE

    def modifier(x, n: s32):
        emit("ld.global.f33", At(special("tid.x")))  # HERE

    reported(unknown, "UNKNOWN_INSTRUCTION", "`mbarrier.inti.shared::cta.b64`", "nearest known form is `mbarrier.in")
    assert isinstance(
        reported(modifier, "UNKNOWN_INSTRUCTION", "`ld.global.f33`", "nearest known form is `ld"), PtxError
    )


def test_instructions_of_another_target():
    def blackwell(x, n: s32):
        emit("tcgen05.fence::before_thread_sync")  # HERE

    reported(blackwell, "WRONG_TARGET", "requires sm_100a", ".target sm_90a")


def test_operands_of_the_wrong_kind():
    def missing(x, n: s32):
        emit("mbarrier.init.shared::cta.b64", At(special("tid.x")))  # HERE

    def not_an_address(x, n: s32):
        emit("mbarrier.init.shared::cta.b64", n, 1)  # HERE

    def too_many(x, n: s32):
        emit("bar.sync", 0, 32, 5)  # HERE

    def too_narrow(x, n: s32):
        emit("shl.b64", n, 3)  # HERE

    reported(missing, "BAD_OPERANDS", "it has 1 operands", "count")
    reported(not_an_address, "BAD_OPERANDS", "is not an address")
    reported(too_many, "BAD_OPERANDS", "operands")
    reported(too_narrow, "BAD_OPERANDS", "is a .b32 register where a is .b64")


def test_every_tracing_message_is_met_by_a_test():
    files = [*Path(__file__).parent.glob("test_*.py"), *Path(__file__).parents[1].glob("structured/**/test_*.py")]
    text = "".join(file.read_text("utf-8") for file in files)
    codes = {entry.name for entry, kind in diagnostics._KIND.items() if issubclass(kind, TraceError)}
    assert codes <= set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", text))


def test_results_of_a_kernel_are_not_read_by_python():
    def convert(x, n: s32):
        _ = [1, 2, 3][n]  # HERE

    reported(convert, "BRANCH_ON_DEVICE_VALUE")
    assert f32 == "f32"
