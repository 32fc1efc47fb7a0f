"""Semantics of arithmetic instructions with a side result: the carry flag, and the predicate of `lop3.BoolOp`.

All other arithmetic is written into the translated source (`translate/arithmetic.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.dtypes import storage_of
from warploom.machine.core.registry import Run, executes
from warploom.machine.semantics.functions import array_function
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]


@executes("add.cc", "addc", "sub.cc", "subc", "mad.cc", "madc")
def carry(op: Op) -> Run:
    """Arithmetic through the carry flag that every thread has."""
    signature = {name: text for name, text in op.modifiers.items() if text is not None}
    reads, writes = op.family in ("addc", "subc", "madc"), op.family.endswith(".cc") or bool(op["cc"])
    count = 3 if op.family.startswith("mad") else 2
    function = array_function(op.family, signature, (*(op["type"],) * count, *("pred",) * reads))
    dtype = storage_of(op["type"])

    def run(g: Group, mask: Array | None, *operands: Any) -> Any:
        flags: Array | None = g.warpgroup.state.get("carry")
        if flags is None:
            flags = g.warpgroup.state["carry"] = np.zeros(g.warpgroup.lanes, np.bool_)
        mine = flags[g.first_lane : g.first_lane + g.lanes]
        values = [value if isinstance(value, np.ndarray) else np.full(g.lanes, value, dtype) for value in operands]
        result = function(*values, mine) if reads else function(*values)
        if writes:
            result, out = result
            np.copyto(mine, out, where=True if mask is None else mask)
        return result

    return run


@executes("lop3.bool")
def lop3_bool(op: Op) -> Run:
    """A three-input logic function, and whether any bit of it is set, combined with a predicate."""
    both = np.logical_or if op["bool"] == "or" else np.logical_and

    def run(g: Group, mask: Array | None, a: Any, b: Any, c: Any, lut: int, q: Any) -> Any:
        arrays = [np.full(g.lanes, value, np.uint32) if isinstance(value, int) else value for value in (a, b, c)]
        result = array_function("lop3", {"type": "b32"}, ("b32", "b32", "b32", ""), (None, None, None, lut))(*arrays)
        nonzero = both(result != 0, q)
        if all(isinstance(value, int) for value in (a, b, c, q)):
            return int(result[0]), bool(nonzero[0])
        return result, nonzero

    return run
