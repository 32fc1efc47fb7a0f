"""Prepared programs as bytes: parsed, decoded, analysed and compiled once, then read back by later processes.

Bytes are valid for the sources and the Python that wrote them, and must come from a trusted place: they hold code.
The tables of native code name their kernels, which an engine keeps itself, and are valid for its version.
"""

from __future__ import annotations

import pickle
from typing import Any

from warploom.machine.translate.functions import made
from warploom.machine.translate.translator import Program
from warploom.ptx.analysis.control_flow import Block, Flow
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Kernel

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
        program.module, program.kernel, _written(program), program.flow.exit, program.layout, program.file,
        program.recipes, [numbers[id(op)] for op in program.runs.values()], program.batches, program.stored,
        program.longest, analyses,
    )  # fmt: skip
    return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)


def _written(program: Program) -> tuple[Any, ...]:
    """The blocks, and their instructions as columns: the place in the kernel (or the instruction, if it is not there),
    the row of the table, the modifiers, the slots and their operands. This is faster than objects.
    """
    places = {id(statement): at for at, statement in enumerate(program.kernel.body or ())}
    ops, slots = program.ops, dict[tuple[str, ...], tuple[str, ...]]()
    names = [tuple(op.operands) for op in ops]
    return (
        [(len(block.ops), block.targets, block.next) for block in program.flow.blocks],
        [places.get(id(op.instruction), op.instruction) for op in ops],
        [op.form for op in ops],
        [op.modifiers for op in ops],
        [slots.setdefault(each, each) for each in names],
        [tuple(op.operands.values()) for op in ops],
    )


def _blocks(kernel: Kernel, written: tuple[Any, ...]) -> tuple[Block, ...]:
    """The blocks again."""
    blocks, places, *columns = written
    body = kernel.body or ()
    instructions = [body[each] if type(each) is int else each for each in places]
    rows = zip(instructions, *columns, strict=True)
    ops = [
        Op(one, form, modifiers, dict(zip(names, values, strict=True))) for one, form, modifiers, names, values in rows
    ]
    found, at = list[Block](), 0
    for index, (count, targets, following) in enumerate(blocks):
        found.append(Block(index, ops[at : at + count], targets, following))
        at += count
    return tuple(found)


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
    longest: int,
    analyses: dict[str, Any],
) -> Program:
    flow = Flow(_blocks(kernel, blocks), exit_)
    program = Program(module, kernel, flow, layout, file, recipes=recipes, stored=stored, longest=longest)
    program.__dict__ |= analyses
    for recipe, name in recipes.items():
        program.functions[name] = made(recipe)
    for number in runs:
        program.meaning(program.ops[number])
    for batch in batches:
        program.together(*batch)
    return program
