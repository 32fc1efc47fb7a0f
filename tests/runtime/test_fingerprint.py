"""Equal fingerprints mean equal traces; values that may differ have different ones, unknown values have none."""

from __future__ import annotations

import enum
import functools
import math
import os
import reprlib
import subprocess
import sys
import threading
import types
from dataclasses import dataclass, field, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.runtime import sample

import warploom
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.runtime import fingerprint
from warploom.trace import sigmoid

ROOT = Path(__file__).parents[2]


def made(source: str, **space):
    """A function from text, as if it had been loaded again."""
    exec(compile(source, "author.py", "exec"), space)
    return space["f"]


DIFFERENT_VALUES = [
    None, True, False, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, math.inf, math.nan, 1j, "", "a", b"", b"a", ..., (), (1,), (1, 2), ((1,), 2),
    [], [1], {}, {1: 2}, {2: 1}, {1: 2, 3: 4}, {3: 4, 1: 2}, set(), {1}, frozenset(), frozenset({1}), range(3), range(1, 3), slice(3),
    np.float32(1), np.float64(1), np.int32(1), np.bool_(True), ml_dtypes.bfloat16(1), np.dtype("f4"), np.dtype(">f4"),
    np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn), np.dtype([("a", "f4")]), np.float32, ml_dtypes.bfloat16, int,
    float, len, min, math.sqrt, math.exp, sigmoid, warploom.launch, sample.helper, sample.Mode.FAST, sample.Mode.EXACT, sample.Mode,
    sample.Config(), sample.Config(129), sample.Config(mode=sample.Mode.EXACT), sample.Config, sample.Slotted(),
    sample.Slotted(np.dtype("f8")), sample.Config().method, sample.Config(64).method, functools.partial(min, 1),
    functools.partial(min, 2), functools.partial(max, 1), functools.partial(min, default=1), ELEMENT_TYPES["f32"], ELEMENT_TYPES["bf16"],
]  # fmt: skip


def test_different_values_have_different_fingerprints():
    prints = [fingerprint(value) for value in DIFFERENT_VALUES]
    assert [value for value, digest in zip(DIFFERENT_VALUES, prints, strict=True) if digest is None] == []
    for index, digest in enumerate(prints):
        assert prints.index(digest) == index, (DIFFERENT_VALUES[index], DIFFERENT_VALUES[prints.index(digest)])


def test_several_values_are_not_one_tuple_of_them_nor_joined():
    prints = {fingerprint(1, 2), fingerprint((1, 2)), fingerprint(12), fingerprint(2, 1), fingerprint()}
    assert len(prints) == 5


UNKNOWN = [
    np.zeros(3),
    object(),
    threading.Lock(),
    types.SimpleNamespace(a=1),
    sample,
    math,
    iter([1]),
    sample.reads_array,
    sample.reads_environment,
    sample.draws,
    np.dtype(object),
    (1, [np.zeros(1)]),
    {"a": object()},
    lambda: open("x"),  # noqa: SIM115, PTH123
    lambda: globals()["x"],
    lambda x=sample.ARRAY: x,
    lambda: np.random.default_rng().random(),
    functools.partial(min, np.zeros(1)),
]


@pytest.mark.parametrize("value", UNKNOWN, ids=lambda value: getattr(value, "__name__", type(value).__name__))
def test_unknown_values_have_none(value):
    assert fingerprint(value) is None


def test_a_captured_value_counts():
    def scaled(by):
        return lambda x: x * by

    assert fingerprint(scaled(2)) == fingerprint(scaled(2))
    assert len({fingerprint(scaled(by)) for by in (1, 1.0, 2, "2", None)}) == 5
    assert fingerprint(scaled(np.zeros(1))) is None
    assert fingerprint(scaled(scaled(2))) != fingerprint(scaled(scaled(3)))


def test_defaults_keywords_and_attributes_count():
    prints = [
        fingerprint(made(f"def f(x{rest}): return x")) for rest in ("", "=1", "=2", ", *, k=1", ", *, k=2", ", /")
    ]
    assert len({*prints}) == 6
    marked = made("def f(x): return x")
    marked.mark = 1
    assert fingerprint(marked) not in (None, prints[0])


def test_code_constants_names_and_lines_count():
    sources = ["x + 1", "x + 2", "x - 1", "x.real", "x.imag", "(lambda: x + 1)()", "(lambda: x + 2)()"]
    prints = [fingerprint(made(f"def f(x): return {source}")) for source in sources]
    assert len({*prints}) == len(sources)
    assert fingerprint(made("\ndef f(x): return x + 1")) != prints[0]  # PTX carries the lines
    assert fingerprint(made("def f(x): return x + 1")) == prints[0]


def test_globals_count_and_only_those_that_are_read():
    source = "def f(x): return x * scale"
    assert fingerprint(made(source, scale=2)) == fingerprint(made(source, scale=2, other=np.zeros(1)))
    assert fingerprint(made(source, scale=2)) != fingerprint(made(source, scale=3))
    assert fingerprint(made(source, scale=np.zeros(1))) is None
    inside = "def f(x): return [y * scale for y in x]"
    assert fingerprint(made(inside, scale=2)) != fingerprint(made(inside, scale=3))
    assert fingerprint(made("def f(x): return x.scale", scale=np.zeros(1))) is not None


def test_functions_that_are_called_count(monkeypatch):
    names = ("calls_helper", "nested", "helper")
    before = [fingerprint(getattr(sample, name)) for name in names]
    assert None not in before
    monkeypatch.setattr(sample, "SCALE", 3.0)
    for name, old in zip(names, before, strict=True):
        assert fingerprint(getattr(sample, name)) not in (None, old)


def test_attributes_of_a_module_count(monkeypatch):
    def user(x):
        return sample.helper(x)

    before = fingerprint(user)
    assert before is not None
    monkeypatch.setattr(sample, "ARRAY", object())
    assert fingerprint(user) == before
    monkeypatch.setattr(sample, "helper", sample.odd)
    assert fingerprint(user) not in (None, before)


def test_names_of_warploom_and_numpy_stand_for_themselves():
    assert fingerprint(lambda acc: warploom.trace.sigmoid(acc) * np.float32(2) + math.pi) is not None


def test_functions_that_call_each_other_end():
    prints = {fingerprint(sample.even), fingerprint(sample.odd)}
    assert None not in prints
    assert len(prints) == 2
    loop: list[object] = [1]
    loop.append(loop)
    assert fingerprint(loop) is not None


def test_the_behaviour_of_a_class_counts(monkeypatch):
    before = fingerprint(sample.Config())
    assert before == fingerprint(sample.Config())
    monkeypatch.setattr(sample, "SCALE", 5.0)  # the property reads it
    assert fingerprint(sample.Config()) not in (None, before)
    monkeypatch.undo()
    mode = fingerprint(sample.Mode.FAST)
    monkeypatch.setattr(sample.Mode, "twice", sample.helper)
    assert fingerprint(sample.Mode.FAST) not in (None, mode)


def test_a_cached_property_does_not_count_and_other_attributes_are_unknown():
    config = sample.Config()
    before = fingerprint(config)
    assert config.slow == 129
    assert fingerprint(config) == before
    object.__setattr__(config, "extra", 1)
    assert fingerprint(config) is None
    assert fingerprint(replace(sample.Config(), rows=7)) not in (None, before)


def test_annotations_count():
    def source(kind):
        return f"def f(x: {kind}): return x"

    assert fingerprint(made(source("int"))) != fingerprint(made(source("float")))
    late = "from __future__ import annotations\n" + source("kind")
    assert fingerprint(made(late, kind=int)) not in (None, fingerprint(made(late, kind=float)))


def test_a_function_that_writes_globals_or_imports_is_unknown():
    assert fingerprint(made("def f():\n global x\n x = 1")) is None
    assert fingerprint(made("def f():\n import os\n return os")) is None


def test_too_much_and_too_deep_are_unknown():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert fingerprint(deep) is None
    assert fingerprint(list(range(10_000))) is None


def test_another_process_agrees():
    code = (
        "from tests.runtime import sample; from warploom.runtime import fingerprint; import numpy as np\n"
        "print(fingerprint({'b', 'a', 'c'}, sample.Config(3), sample.calls_helper, sample.even, sample.nested, np.dtype('f2')))"
    )
    told = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        told.add(run.stdout.strip())
    assert len(told) == 1
    assert told != {"None"}


@dataclass
class Scaling:
    """A value with fields that do not take part in comparisons."""

    factor: float = field(compare=False)

    def __call__(self, acc, at):
        return acc * self.factor


class Listed(list):
    pass


class Paired(tuple):  # noqa: SLOT001  attributes are the case
    pass


class Chosen(set):
    pass


class Level(enum.Enum):
    LOW = 1


class Bound(functools.partial):
    pass


class Slotted:
    __slots__ = ("hidden",)


@dataclass
class Inheriting(Slotted):
    shown: int = 0


def test_a_field_that_is_not_compared_counts():
    assert fingerprint(Scaling(2.0)) not in (None, fingerprint(Scaling(3.0)))


def test_a_wrapped_method_of_a_dataclass_is_not_overlooked_if_its_author_wrote_it():
    """From Python 3.13 on, `dataclass` wraps its own `__repr__` with `reprlib`, whose wrapper has no fingerprint."""

    def printing(text):
        @dataclass(repr=False)
        class Printing:
            @reprlib.recursive_repr()
            def __repr__(self):
                return text

        return Printing()

    assert fingerprint(printing("a")) is None


HOLDERS = {
    "list": Listed([1]),
    "tuple": Paired([1]),
    "set": Chosen([1]),
    "member": Level.LOW,
    "partial": Bound(max, 1),
    "slot": Inheriting(),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_attributes_of_a_value_are_not_overlooked(kind):
    """Two values of equal contents may behave differently: neither has a fingerprint."""
    holder = HOLDERS[kind]
    found = set()
    for number in (2.0, 3.0):
        setattr(holder, "hidden" if kind == "slot" else "factor", number)
        found.add(fingerprint(holder))
    assert found == {None}


def test_a_class_may_call_its_members_as_python_does():
    def of(factor):
        class Author:
            __factor__ = factor

            @property
            def __twice__(self):
                return 2 * factor

            @staticmethod
            def __plain__():
                return factor

        return Author

    assert fingerprint(of(2.0)) not in (None, fingerprint(of(3.0)))
    for name in ("__factor__", "__twice__", "__plain__"):
        one, other = of(2.0), of(2.0)
        setattr(other, name, vars(of(3.0))[name])
        assert fingerprint(one) != fingerprint(other), name
