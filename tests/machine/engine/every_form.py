"""Every arithmetic form of the instruction tables, and its results by the engine and by the reference."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import warploom.ptx.isa.arithmetic  # noqa: F401  (enters the rows of the table)
from warploom.machine.engine.context import ITEM_BYTES, SPECIALS, Context, Regions, table_of
from warploom.machine.engine.control_kernels import Escape
from warploom.machine.engine.kernels import HEAD_WORDS, Arithmetic, Masks, Row, Scalar, constant_word
from warploom.machine.engine.native import Engine
from warploom.machine.memory.byte_memory import FlatMemory, GlobalMemory, padded
from warploom.machine.semantics.forms import FAMILIES, semantics
from warploom.machine.semantics.functions import array_function
from warploom.machine.semantics.numpy_ops import NumpyOps
from warploom.machine.semantics.vectors import UnsupportedError
from warploom.machine.translate.register_layout import FILES
from warploom.ptx.isa.table import BITS, FORMS, Form

Array = npt.NDArray[Any]

OWN_TESTS = frozenset({"mov", "mov.pack", "mov.unpack"})
"""Families that translated source moves without a function."""
_FILE = {1: "p", 8: "h", 16: "h", 32: "a", 64: "b"}
_FLOATS = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_FIELDS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
_CHOICE = re.compile(r"\{\.?([a-z0-9_]+)(\??)\}")


@dataclass(frozen=True)
class Case:
    """A form: its modifiers, the types of its operands (`immediate` for a literal) and of its result."""

    family: str
    modifiers: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return " ".join([self.family, *(f"{name}={text}" for name, text in self.modifiers)])


def _spellings(form: Form) -> Iterator[dict[str, str]]:
    """Every choice of the modifiers of a row of the table."""
    parts = _CHOICE.findall(form.template)
    options = [[*form.choices.get(name, (name,)), *([""] if maybe else [])] for name, maybe in parts]
    for chosen in itertools.product(*options):
        yield {name: text for (name, _), text in zip(parts, chosen, strict=True) if text}


def cases() -> list[Case]:
    """Every form that has native semantics."""
    found: dict[Case, None] = {}
    for row in FORMS:
        if row.family not in FAMILIES - OWN_TESTS:
            continue
        for chosen in _spellings(row):
            types = [chosen.get(slot.type[1:-1], "") if slot.type.startswith("{") else slot.type for slot in row.slots]
            inputs = tuple(
                type_ if slot.kind == "in" else slot.kind
                for slot, type_ in zip(row.slots, types, strict=True)
                if slot.kind in ("in", "pred", "immediate")
            )
            if semantics(row.family, chosen) is not None:
                found[Case(row.family, tuple(sorted(chosen.items())), inputs, types[0])] = None
    return list(found)


def _bits(type_: str) -> int:
    return 1 if type_ == "pred" else BITS[type_]


def _corners(type_: str) -> list[int]:
    """Operands at which semantics change."""
    if type_ == "pred":
        return [0, 1]
    top = (1 << BITS[type_]) - 1
    element = type_.removesuffix("x2")
    if element not in _FIELDS:
        near = [0, 1, 2, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 0x7F, 0x80, 0xFF, 0x100]
        return [value & top for value in (*near, top, top - 1, top >> 1, (top >> 1) + 1)]
    exponent, mantissa = _FIELDS[element]
    size, last = 1 + exponent + mantissa, 1 << mantissa
    one, infinity = ((1 << (exponent - 1)) - 1) << mantissa, ((1 << exponent) - 1) << mantissa
    found = [0, 1, 2, last - 1, last, last + 1, one, one - 1, one + 1, one | last >> 1, one + last, infinity - 1]
    found += [infinity, infinity + 1, infinity | last >> 1, (1 << (size - 1)) - 1]
    found += [one + (k << mantissa) for k in (-12, -2, 2, 3, 7, 8, 11, 15)]
    found = [value & ((1 << (size - 1)) - 1) for value in found]
    found += [value | 1 << (size - 1) for value in found]
    if element == type_:
        return found
    return [low | high << size for low, high in itertools.product(found[::3], found[1::3])]


def operands(types: tuple[str, ...], count: int, random: np.random.Generator) -> list[Array]:
    """Corner operands in all combinations, as far as they fill half of the lanes, and random ones.

    Random floats are any bits, or numbers up to 16, where sums cancel; random integers any bits, or small.
    """
    picks = list(itertools.islice(itertools.product(*map(_corners, types)), 1 << 16))
    chosen = random.choice(len(picks), min(len(picks), count // 2), replace=False)
    found = []
    for number, type_ in enumerate(types):
        corners = np.array([picks[at][number] for at in chosen], np.uint64)
        rest = count - len(corners)
        values = random.integers(0, 2**64, rest, np.uint64)
        if type_ in _FLOATS:
            near = random.uniform(-16, 16, rest).astype(_FLOATS[type_]).view(f"u{BITS[type_] // 8}")
        else:
            near = random.integers(0, 70, rest).astype(np.uint64)
        array = np.concatenate([corners, np.where(random.random(rest) < 0.4, near.astype(np.uint64), values)])
        bits = _bits(type_)
        found.append((array & np.uint64((1 << bits) - 1)).astype("?" if bits == 1 else f"u{bits // 8}"))
    return found


def native_form(case: Case, masks: Masks) -> Arithmetic:
    """The kernel of a form whose operands are rows, except literals."""
    inputs = tuple(
        (Scalar(), "i32") if type_ == "immediate" else (Row(_FILE[_bits(type_)]), f"i{_bits(type_)}")
        for type_ in case.inputs
    )
    file = _FILE[_bits(case.output)]
    return Arithmetic(case.family, case.modifiers, inputs, ((file, False),) * (1 + (case.family == "setp")), masks)


def run_native(engine: Engine, form: Arithmetic, arrays: list[Any], before: Array, guard: Array | None) -> list[Array]:
    """Execute one kernel on rows (integers for scalars); the rows of its results, which contained `before`."""
    rows: dict[str, list[Array]] = {file: [] for file in FILES}
    words: list[int] = []
    scalars: list[tuple[int, int]] = []

    def enter(file: str, array: Array) -> int:
        rows[file].append(array)
        return (len(rows[file]) - 1) * ITEM_BYTES[file]

    for (operand, _), array in zip(form.inputs, arrays, strict=True):
        if isinstance(operand, Row):
            words.append(enter(operand.file, array))
        else:
            scalars.append((HEAD_WORDS + len(words), int(array)))
            words.append(0)
    places = []
    for out in form.outputs:
        assert out is not None
        words.append(enter(out[0], before))
        places.append((out[0], len(rows[out[0]]) - 1))
    if guard is not None:
        words += [enter("p", guard), 0]
    record = np.zeros(form.words + HEAD_WORDS + len(scalars), np.uint64)
    record[:HEAD_WORDS] = engine.routine(form).address, 1
    record[HEAD_WORDS : form.words] = words
    record[form.words : form.words + HEAD_WORDS] = engine.routine(Escape()).address, 2
    for number, (at, value) in enumerate(scalars, form.words + HEAD_WORDS):
        record[at], record[number] = constant_word(8 * number), value
    count = len(before)
    files = {file: np.array(some, FILES[file]).reshape(-1, count) for file, some in rows.items()}
    specials = {name: np.zeros(count, np.uint32) for name in SPECIALS}
    context = Context(files, table_of(specials), 0, count, Regions(GlobalMemory()))
    context.bind(
        FlatMemory(padded(16), 0, 16, "shared"),
        None,
        0,
        None,
        np.zeros(16, np.uint64),
        count,
        *np.zeros((2, 8), np.int64),
        0,
    )
    assert engine.run(context.address, record.ctypes.data) == 2
    return [files[file][row] for file, row in places]


@dataclass
class Results:
    """The results of a form: of the function on arrays, of its operations one by one (None without a fused
    multiply-add) and of native code (None where it has none)."""

    arrays: list[Any]
    expected: list[Array]
    numpy: list[Array] | None
    native: list[Array] | None

    def differences(self) -> str:
        """The first difference; empty without one."""
        for who, found in (("NumPy", self.numpy), ("native", self.native)):
            for got, want in zip(found or (), self.expected, strict=False):
                where = np.flatnonzero(got != want.astype(got.dtype))
                if len(where):
                    at = where[0]
                    given = [hex(int(each if isinstance(each, int) else each[at])) for each in self.arrays]
                    return f"{who}: {len(where)} lanes; {given} → {int(got[at]):#x}, not {int(want[at]):#x}"
        return ""


def results(engine: Engine, case: Case, count: int, random: np.random.Generator) -> Results:
    """Execute a form in all ways; the lanes of native code are guarded, and the others must keep their bits."""
    arrays: list[Any] = operands(tuple(each for each in case.inputs if each != "immediate"), count, random)
    for at, type_ in enumerate(case.inputs):
        if type_ == "immediate":
            arrays.insert(at, int(random.integers(0, 256)))
    pair = {"pair": "1"} if case.family == "setp" else {}
    types = tuple("" if type_ == "immediate" else type_ for type_ in case.inputs)
    literals = tuple(each if isinstance(each, int) else None for each in arrays)
    reference = array_function(case.family, {**dict(case.modifiers), **pair}, types, literals)
    function = semantics(case.family, dict(case.modifiers))
    assert function is not None
    ops = NumpyOps()
    values = [ops.constant("i32", each) if isinstance(each, int) else ops.value(each) for each in arrays]
    with np.errstate(all="ignore"):
        made = reference(*[each for each in arrays if not isinstance(each, int)])
        expected = list(made) if isinstance(made, tuple) else [made]
        try:
            lowered = [each.ref for each in function(*values)]
        except UnsupportedError:
            lowered = None
    masks = Masks(guard=bool(random.integers(2)))
    form = native_form(case, masks)
    if engine.kernel(form) is None:
        return Results(arrays, expected, lowered, None)
    before = random.integers(0, 2, count).astype(expected[0].dtype)
    guard = random.random(count) < 0.5 if masks.guard else None
    native = run_native(engine, form, arrays, before, guard)
    if guard is not None:
        for got, want in zip(native, expected, strict=False):
            got[~guard] = np.where(got == before.astype(got.dtype), want, ~want)[~guard]
    return Results(arrays, expected, lowered, native)
