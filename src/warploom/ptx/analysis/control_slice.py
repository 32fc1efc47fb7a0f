"""The control slice: the registers that determine branches, addresses and signals of a kernel.

Registers outside the slice are data: a proof about synchronisation need not compute them, and a state recurs when
the slice does. Values that come from memory are in the slice by their address; `loads` names the instructions they
come from, so that a proof can state its assumptions about them.
"""

from __future__ import annotations

from dataclasses import dataclass

from warploom.ptx.analysis.control_flow import BRANCHES, LEAVES, Flow
from warploom.ptx.analysis.operand_registers import registers_of, written
from warploom.ptx.isa.table import Op

_INPUTS = ("in", "pred", "address", "tensor", "ins", "inout", "rows", "arguments")
_SIGNALS = frozenset({"arrives", "expects", "completes", "waits", "syncs", "commits", "drains", "allocates", "frees"})


@dataclass(frozen=True, slots=True)
class ControlSlice:
    """Registers that reach branches, addresses and signals, and the loads that feed them."""

    registers: frozenset[str]
    loads: tuple[Op, ...]


def control_slice(flow: Flow) -> ControlSlice:
    """Compute the slice: guards of effects and branches, addresses, operands of signals, and their dependencies."""
    ops = [op for block in flow.blocks for op in block.ops]
    defines: dict[str, list[Op]] = {}
    for op in ops:
        for name in written(op):
            defines.setdefault(name, []).append(op)
    registers: set[str] = set()
    work = [name for op in ops for name in _seeds(op)]
    loads: dict[int, Op] = {}
    while work:
        name = work.pop()
        if name in registers:
            continue
        registers.add(name)
        for op in defines.get(name, ()):
            if any(effect.verb == "reads" for effect in op.form.effects):
                loads[id(op)] = op
            work += _inputs(op)
    return ControlSlice(frozenset(registers), tuple(loads.values()))


def _seeds(op: Op) -> list[str]:
    """The registers of one instruction that affect control rather than data."""
    steers = op.family in BRANCHES | LEAVES
    signals = any(effect.verb in _SIGNALS for effect in op.form.effects)
    found: list[str] = []
    if (steers or op.form.effects) and op.instruction.guard is not None:
        found.append(op.instruction.guard.register.name)
    for slot in op.form.slots:
        if slot.kind in ("address", "tensor") or (slot.kind in ("in", "pred", "ins") and (steers or signals)):
            found += registers_of(op.operands[slot.name])
    return found


def _inputs(op: Op) -> list[str]:
    found = [op.instruction.guard.register.name] if op.instruction.guard is not None else []
    for slot in op.form.slots:
        if slot.kind in _INPUTS:
            found += registers_of(op.operands[slot.name])
    return found
