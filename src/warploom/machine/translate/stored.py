"""Prepared programs as bytes: parsed, decoded, analysed and compiled once, then read back by later processes.

Bytes are valid for the sources and the Python that wrote them, and must come from a trusted place: they hold code.
Native texts are not stored; an engine keeps its kernels itself.
"""

from __future__ import annotations

import gc
import marshal
import pickle
from typing import Any

from warploom.machine.translate.functions import made
from warploom.machine.translate.translator import Program, Text
from warploom.ptx.analysis.control_flow import Flow

_DAMAGE = (pickle.UnpicklingError, ValueError, EOFError, AttributeError, ImportError, LookupError, TypeError)


def packed(program: Program) -> bytes:
    """A program with its texts."""
    numbers = program.numbers
    texts = [
        (name, marshal.dumps(text.parts), [-1 if op is None else numbers[id(op)] for op in text.ops], text.source)
        for name, text in program.reference_texts().items()
    ]
    state = (
        program.module, program.kernel, program.flow.blocks, program.flow.exit, program.layout, program.file,
        program.recipes, [numbers[id(op)] for op in program.runs.values()], texts,
    )  # fmt: skip
    return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> Program | None:
    """A program that was packed; None for anything else, which is then replaced."""
    collects = gc.isenabled()
    gc.disable()  # thousands of small objects that all stay
    try:
        state = pickle.loads(data)  # noqa: S301  (the cache reads private files of this user only)
        return _restored(*state)
    except _DAMAGE:
        return None
    finally:
        if collects:
            gc.enable()


def _restored(
    module: Any, kernel: Any, blocks: Any, exit_: int, layout: Any, file: str, recipes: Any, runs: Any, texts: Any
) -> Program:
    program = Program(module, kernel, Flow(blocks, exit_), layout, file, recipes=recipes)
    ops = [op for block in blocks for op in block.ops]
    for name, parts, numbers, source in texts:
        lines = tuple([None if number < 0 else ops[number] for number in numbers])
        program.add_text(name, Text(marshal.loads(parts), lines, source))  # noqa: S302  (as above)
    for recipe, name in recipes.items():
        program.functions[name] = made(recipe)
    for number in runs:
        program.meaning(ops[number])
    return program
