"""Short forms as calls of NumPy: the results of their functions on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.machine.engine.every_form import Case, cases, operands

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics.bits import settle_lanes
from warploom.machine.semantics.array_text import Call, Leaf
from warploom.machine.semantics.functions import array_function, short

LANES, SAMPLE = 512, 500
ALWAYS = (
    "add",
    "sub",
    "mul",
    "mad",
    "min",
    "max",
    "and",
    "or",
    "xor",
    "not",
    "shl",
    "shr",
    "selp",
    "setp",
    "bfe",
    "neg",
)


def value(part: Leaf | Call, given: dict[str, Any]) -> Any:
    """The result of calls, or an operand read as its kind."""
    if isinstance(part, Call):
        dtype = {"dtype": part.dtype} if part.dtype else {}
        function = np.where if part.name == "select" else getattr(np, part.name)
        return function(*[value(each, given) for each in part.operands], **dtype)
    kind = {"u": "u", "s": "i", "f": "f", "p": "?"}[part.kind]
    if not part.name:
        return np.array(part.literal, f"u{part.bits // 8}").view(f"{kind}{part.bits // 8}")
    return given[part.name] if kind == "?" else given[part.name].view(f"{kind}{part.bits // 8}")


def is_plain(case: Case) -> bool:
    """True for a form whose operands have types of their own size."""
    return all(type_ == "pred" or type_ in ELEMENT_TYPES for type_ in case.inputs)


def test_short_forms_give_the_results_of_their_functions() -> None:
    random, found = np.random.default_rng(), dict[str, int]()
    every = [case for case in cases() if is_plain(case)]
    few = [case for case in every if case.family in ALWAYS]
    chosen = [few[at] for at in random.choice(len(few), SAMPLE, replace=False)]
    chosen += [every[at] for at in random.choice(len(every), SAMPLE, replace=False)]
    chosen += 20 * [case for case in every if case.family == "shr"]  # few are short, and only with some literals
    for case in chosen:
        arrays: list[Any] = operands(case.inputs, LANES, random)
        literals: list[int | None] = [None] * len(arrays)
        if len(arrays) > 1 and random.random() < 0.7:  # the last operand is a small literal, or any
            number = int(random.integers(0, 40)) if random.random() < 0.8 else int(arrays[-1][0])
            if ELEMENT_TYPES.get(case.inputs[-1], ELEMENT_TYPES["f32"]).kind in ("signed", "unsigned", "bits"):
                literals[-1] = number
                arrays[-1] = np.full_like(arrays[-1], number)
        text = short(case.family, dict(case.modifiers), case.inputs, tuple(literals))
        if text is None:
            continue
        given = {f"x{number}": array for number, array in enumerate(arrays)}
        with np.errstate(all="ignore"):
            wanted = array_function(case.family, dict(case.modifiers), case.inputs)(*[each.copy() for each in arrays])
            got = value(text, given)
            if isinstance(text, Call) and text.settles:
                settle_lanes(got, None)
        if isinstance(text, Leaf):  # it is extended or cut by the move
            got = got.astype(f"{'i' if text.kind == 's' else 'u'}{wanted.itemsize}")
        assert np.array_equal(got.view(wanted.dtype), wanted), case
        found[case.family] = found.get(case.family, 0) + 1
    assert sum(found.values()) > 100
    assert {"add", "setp", "shr", "min"} <= set(found)
