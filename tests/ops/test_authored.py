"""Equality of user epilogues: a new lambda costs no new trace, a changed number does."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import numpy as np
import pytest
from tests.ops.references import exact, integers

from warploom.kernels.sm100.matmul import matmul as kernel
from warploom.ops import matmul
from warploom.ops.planning.arrays import Violations
from warploom.ops.planning.user_functions import user_function
from warploom.structured.config import MatmulConfig
from warploom.trace import relu

SMALL = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16))
FACTOR = 2
A, B = integers(20, 24), integers(24, 30)


def compared(function):
    return user_function("epilogue", function, (), Violations("matmul"))


def scaled(acc, at):
    return helper(acc) * 2


def helper(acc):
    return acc + FACTOR


def by(factor):
    return lambda acc, at: acc * factor


def run(function, **options):
    return exact(matmul(A, B, epilogue=function, out_dtype=np.float32, config=SMALL, **options))


def traces(call):
    """Count the traces of a kernel."""
    before = set(kernel._traces)
    call()
    return len(set(kernel._traces) - before)


def test_a_lambda_in_a_loop_is_traced_once():
    run(lambda acc, at: acc * 7)
    assert traces(lambda: [run(by(7.5)) for _ in range(3)]) == 1


def test_captured_numbers_are_part_of_the_key():
    for factor in (3, 4, 3.0, -0.0):
        np.testing.assert_array_equal(run(by(factor)), exact(A) @ exact(B) * factor)


def test_a_global_number_that_changes(monkeypatch):
    np.testing.assert_array_equal(run(scaled), (exact(A) @ exact(B) + 2) * 2)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    np.testing.assert_array_equal(run(scaled), (exact(A) @ exact(B) + 5) * 2)


def test_mutable_state_is_traced_each_time():
    held = {"factor": 3}
    np.testing.assert_array_equal(run(lambda acc, at: acc * held["factor"]), exact(A) @ exact(B) * 3)
    held["factor"] = 5
    np.testing.assert_array_equal(run(lambda acc, at: acc * held["factor"]), exact(A) @ exact(B) * 5)


def test_methods_and_partial_functions():
    class Scaler:
        factor = 3

        def __call__(self, acc, at):
            return acc * self.factor

        def method(self, acc, at):
            return acc * self.factor

    def power(acc, at, times):
        return acc * times

    for function in (Scaler(), Scaler().method, partial(power, times=3)):
        np.testing.assert_array_equal(run(function), exact(A) @ exact(B) * 3)


def test_operands_are_given_by_name():
    def one(acc, at, *, x, y=2):
        return acc * x + y

    def many(acc, at, **operands):
        return acc * operands["x"]

    np.testing.assert_array_equal(run(one, operands={"x": 3}), exact(A) @ exact(B) * 3 + 2)
    np.testing.assert_array_equal(run(many, operands={"x": 3}), exact(A) @ exact(B) * 3)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (by(2), by(2), True),
        (by(2), by(3), False),
        (by(0.0), by(-0.0), False),
        (by(1), by(True), False),
        (by((1, 2)), by((1, 2)), True),
        (by("x"), by("y"), False),
        (by(relu), by(relu), True),
        (by(by(2)), by(by(3)), False),
        (by(by(2)), by(by(2)), True),
        (by(np.float32(2)), by(np.float32(2)), True),
        (partial(scaled, at=1), partial(scaled, at=2), False),
        (scaled, helper, False),
    ],
)
def test_equal_functions(one, other, same):
    first, second = compared(one), compared(other)
    assert (first == second) is same
    if same:
        assert hash(first) == hash(second)


def test_functions_that_capture_objects_have_no_hash():
    assert hash(compared(by([1]))) != hash(compared(by([2])))
    with pytest.raises(TypeError):
        hash(compared(by(object())))


def change_a_module():
    settings = ModuleType("settings")
    settings.factor = 2
    space = {"settings": settings}
    exec("def function(acc, at):\n    return acc * settings.factor", space)
    return space["function"], lambda: setattr(settings, "factor", 3)


def change_a_module_in_a_closure():
    settings = ModuleType("settings")
    settings.factor = 2
    return lambda acc, at: acc * settings.factor, lambda: setattr(settings, "factor", 3)


def change_a_class():
    class Settings:
        factor = 2

    return lambda acc, at: acc * Settings.factor, lambda: setattr(Settings, "factor", 3)


def change_a_helper_of_another_module():
    space = {"FACTOR": 2}
    exec("def helper(value):\n    return value * FACTOR", space)
    other = space["helper"]
    return lambda acc, at: other(acc), lambda: space.update(FACTOR=3)


def change_a_default():
    held = [2]

    def inner(value):
        return value * held[0]

    def change():
        held[0] = 3

    return lambda acc, at, inner=inner: inner(acc), change


def change_an_instance():
    class Scaler:
        factor = 2

        def method(self, acc, at):
            return acc * self.factor

    scaler = Scaler()
    return scaler.method, lambda: setattr(scaler, "factor", 3)


CHANGES = (
    change_a_module,
    change_a_module_in_a_closure,
    change_a_class,
    change_a_helper_of_another_module,
    change_a_default,
    change_an_instance,
)


@pytest.mark.parametrize("changing", CHANGES, ids=lambda each: each.__name__)
def test_objects_that_an_epilogue_uses_may_change(changing):
    function, change = changing()
    np.testing.assert_array_equal(run(function), exact(A) @ exact(B) * 2)
    change()
    np.testing.assert_array_equal(run(function), exact(A) @ exact(B) * 3)
