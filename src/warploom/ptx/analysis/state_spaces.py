"""State spaces of accesses that name a variable: they must be the variable's."""

from __future__ import annotations

from dataclasses import replace

from warploom.diagnostics import Diag, Loc
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Address, Kernel, Module, Symbol

_ACCESSES = frozenset({"ld", "ldu", "st", "atom", "red"})
_GENERIC = frozenset({"global", "shared", "local"})
"""The state spaces that generic addresses reach."""


def in_their_spaces(ops: tuple[Op, ...], module: Module, kernel: Kernel, file: str) -> tuple[Op, ...]:
    """The instructions of a kernel; an access without a state space that names a variable gets the variable's.

    This is how ptxas reads `ld.b32 %r1, [v]` with `v` in shared memory. Like ptxas it refuses accesses to a variable of
    another state space.
    """
    spaces: dict[str, str] = {}
    replaced: dict[int, Op] = {}
    for number, op in enumerate(ops):
        address = op.operands.get("a") if op.form.family in _ACCESSES else None
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            continue
        if not spaces:
            spaces = {each.name: each.space for each in (*module.variables, *kernel.variables, *kernel.params)}
        space = op["space"].partition("::")[0]
        declared = spaces.get(address.base.name, space)
        if declared not in ((space,) if space else _GENERIC):
            what = f"`{address.base.name}` is a variable in .{declared}"
            takes = f"an address in .{space}" if space else "a generic address, or .global, .shared or .local"
            where = op.instruction.loc or Loc(file, op.instruction.line)
            raise Diag.BAD_OPERANDS.error(where, text=op.instruction.text, what=what, takes=takes)
        if not space and declared != "global":
            replaced[number] = replace(op, modifiers={**op.modifiers, "space": declared})
    return tuple(replaced.get(number, op) for number, op in enumerate(ops)) if replaced else ops
