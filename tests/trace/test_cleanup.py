"""Random programs of assignments, loops and branches compute what Python computes, whatever the clean-up takes out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from warploom import launch
from warploom.trace import Variable, kernel, loop, min_, otherwise, s32, thread, when

NAMES = "abc"
LANES = 32


def wrapped(x):
    return (x + 2**31) % 2**32 - 2**31


leaf = st.one_of(
    st.tuples(st.just("variable"), st.sampled_from(NAMES)),
    st.tuples(st.just("kept"), st.integers(0, 5)),
    st.tuples(st.just("number"), st.integers(-5, 5)),
    st.just(("lane",)),
    st.just(("n",)),
)
expression = st.recursive(
    leaf, lambda inner: st.tuples(st.sampled_from(["add", "sub", "mul", "min", "xor"]), inner, inner), max_leaves=4
)
assignment = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(NAMES), expression),
    st.tuples(st.just("add"), st.sampled_from(NAMES), expression),
    st.tuples(st.just("keep"), expression),
)
statement = st.recursive(
    assignment,
    lambda inner: st.one_of(
        st.tuples(st.just("loop"), st.integers(0, 3), st.booleans(), st.lists(inner, max_size=4)),
        st.tuples(st.just("when"), expression, st.lists(inner, max_size=4), st.lists(inner, max_size=3)),
    ),
    max_leaves=12,
)


class Reference:
    """The program on one lane, in Python."""

    def __init__(self, lane, n):
        self.lane, self.n = lane, n
        self.held = dict.fromkeys(NAMES, 0)

    def value(self, e, kept):
        match e:
            case ("variable", name):
                return self.held[name]
            case ("kept", index):
                return kept[index % len(kept)] if kept else 1
            case ("number", number):
                return number
            case ("lane",):
                return self.lane
            case ("n",):
                return self.n
        left, right = self.value(e[1], kept), self.value(e[2], kept)
        combined = {
            "add": left + right, "sub": left - right, "mul": left * right, "min": min(left, right), "xor": left ^ right
        }  # fmt: skip
        return wrapped(combined[e[0]])

    def run(self, block, kept):
        kept = list(kept)
        for each in block:
            match each:
                case ("set", name, e):
                    self.held[name] = self.value(e, kept)
                case ("add", name, e):
                    self.held[name] = wrapped(self.held[name] + self.value(e, kept))
                case ("keep", e):
                    kept.append(self.value(e, kept))
                case ("loop", count, known, inner):
                    for index in range(count if known else self.n):
                        self.run(inner, [*kept, index])
                case ("when", condition, then, other):
                    self.run(then if self.value(condition, kept) > 0 else other, kept)


class Device:
    """The same program, traced."""

    def __init__(self, n):
        self.n = n
        self.held = {name: Variable("s32", 0) for name in NAMES}

    def value(self, e, kept):
        match e:
            case ("variable", name):
                return self.held[name]
            case ("kept", index):
                return kept[index % len(kept)] if kept else self.n * 0 + 1
            case ("number", number):
                return self.n * 0 + number
            case ("lane",):
                return thread().to("s32")
            case ("n",):
                return self.n
        left, right = self.value(e[1], kept), self.value(e[2], kept)
        match e[0]:
            case "add":
                return left + right
            case "sub":
                return left - right
            case "mul":
                return left * right
            case "min":
                return min_(left, right)
        return left ^ right

    def run(self, block, kept):
        kept = list(kept)
        for each in block:
            match each:
                case ("set", name, e):
                    self.held[name].set(self.value(e, kept))
                case ("add", name, e):
                    self.held[name] += self.value(e, kept)
                case ("keep", e):
                    kept.append(self.value(e, kept).get())
                case ("loop", count, known, inner):
                    for index in loop(count if known else self.n):
                        self.run(inner, [*kept, index])
                case ("when", condition, then, other):
                    with when(self.value(condition, kept) > 0):
                        self.run(then, kept)
                    if other:
                        with otherwise():
                            self.run(other, kept)


@settings(max_examples=50)
@given(program=st.lists(statement, min_size=1, max_size=6), n=st.integers(0, 3))
def test_random_programs(program, n):
    @kernel
    def traced(out, n: s32):
        device = Device(n)
        device.run(program, [])
        for row, variable in enumerate(device.held.values()):
            out[row, thread()] = variable

    out = np.zeros((len(NAMES), LANES), np.int32)
    launch(traced.bind(out, n, grid=(1, 1, 1), block=(LANES, 1, 1)))
    for lane in range(LANES):
        reference = Reference(lane, n)
        reference.run(program, [])
        assert out[:, lane].tolist() == list(reference.held.values()), f"lane {lane}"
