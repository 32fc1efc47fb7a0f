"""Prepared programs as bytes: parsed, decoded, analysed and compiled once, then read back by later processes.

Bytes are valid for the sources and the Python that wrote them, and must come from a trusted place: they hold code.
The tables of native code name their kernels, which an engine keeps itself, and are valid for its version.
"""

from __future__ import annotations

import pickle
from typing import Any

from warploom.machine.translate.functions import made
from warploom.machine.translate.translator import Program
from warploom.ptx.analysis.control_flow import Flow

_DAMAGE = (pickle.UnpicklingError, ValueError, EOFError, AttributeError, ImportError, LookupError, TypeError)
_ANALYSES = (
    "_alive", "_symbols", "blocks_after_loads", "has_async_proxy", "meets_alone", "slots", "specials", "unwritten"
)  # fmt: skip
"""Cached properties of a program that refer to nothing by its identity."""


def packed(program: Program) -> bytes:
    """A program with its stored texts, and the analyses that have been made of it."""
    numbers = program.numbers
    analyses = {name: program.__dict__[name] for name in _ANALYSES if name in program.__dict__}
    state = (
        program.module, program.kernel, program.flow.blocks, program.flow.exit, program.layout, program.file,
        program.recipes, [numbers[id(op)] for op in program.runs.values()], program.batches, program.stored,
        analyses,
    )  # fmt: skip
    return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> Program | None:
    """A program that was packed; None for anything else, which is then replaced."""
    try:
        state = pickle.loads(data)  # noqa: S301  (the cache reads private files of this user only)
        return _restored(*state)
    except _DAMAGE:
        return None


def _restored(
    module: Any,
    kernel: Any,
    blocks: Any,
    exit_: int,
    layout: Any,
    file: str,
    recipes: Any,
    runs: list[int],
    batches: list[tuple[int, int, int]],
    stored: Any,
    analyses: dict[str, Any],
) -> Program:
    program = Program(module, kernel, Flow(blocks, exit_), layout, file, recipes=recipes, stored=stored)
    program.__dict__ |= analyses
    for recipe, name in recipes.items():
        program.functions[name] = made(recipe)
    for number in runs:
        program.meaning(program.ops[number])
    for batch in batches:
        program.together(*batch)
    return program
