"""The instructions that touch the registers of a `tcgen05.ld` which may still be under way.

A register dependency is respected without `tcgen05.wait::ld` (PTX ISA 9.7.16.6.4, intra-thread ordering): such an
instruction waits for the load. The memory that the load reads must not be reused before the wait, or before an
instruction that reads one of its registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from warploom.ptx.analysis.control_flow import Block, Flow
from warploom.ptx.analysis.operand_registers import read, registers_of, written
from warploom.ptx.isa.table import Op

_LOAD, _WAIT = "tcgen05.ld", "tcgen05.wait"


def uses_of_pending_loads(flow: Flow) -> frozenset[int]:
    """The instructions, by the identity of their `Op`, that some path reaches between a load and the wait for it."""
    found: set[int] = set()
    entering: dict[int, frozenset[str]] = {}
    ahead = [(each.index, frozenset[str]()) for each in flow.blocks if _has_loads(each)]
    while ahead:
        index, pending = ahead.pop()
        known = entering.get(index)
        if known is not None and pending <= known:
            continue
        entering[index] = pending = pending | (known or frozenset())
        for op in flow.blocks[index].ops:
            if pending and not pending.isdisjoint((*read(op), *written(op))):
                found.add(id(op))
                pending = frozenset()
            pending = _after(op, pending)
        if pending:
            ahead += [(successor, pending) for successor in flow.blocks[index].successors]
    return frozenset(found)


def _has_loads(block: Block) -> bool:
    """True for a block with a load of TMEM."""
    return any(op.form.family == _LOAD for op in block.ops)


def _after(op: Op, pending: frozenset[str]) -> frozenset[str]:
    """The registers that loads may still write after an instruction."""
    if op.family == _WAIT and op["what"] == "ld":
        return frozenset()
    return pending | frozenset(registers_of(op.operands["d"])) if op.family == _LOAD else pending


class _Loads(NamedTuple):
    """Loads that are under way, by the identity of their `Op`, and the registers through which a read shows their end.

    A register that something else has written meanwhile shows nothing.
    """

    pending: frozenset[int]
    registers: Mapping[str, int]

    def merged(self, other: _Loads) -> _Loads:
        """The state where two paths meet: a register counts if it shows the end of its load on both."""
        shown = {
            name: load
            for name, load in (*self.registers.items(), *other.registers.items())
            if self._shows(name, load) and other._shows(name, load)
        }
        return _Loads(self.pending | other.pending, shown)

    def _shows(self, name: str, load: int) -> bool:
        return self.registers[name] == load if name in self.registers else load not in self.pending


_NONE = _Loads(frozenset(), {})


def loads_read_by(flow: Flow) -> dict[int, frozenset[int]]:
    """For each instruction that reads registers of loads which may be under way: these loads, all by the identity of
    their `Op`. Such a load is complete with the instruction, if it is under way on the path that was taken.
    """
    entering: dict[int, _Loads] = {}
    ahead = [(each.index, _NONE) for each in flow.blocks if _has_loads(each)]
    while ahead:
        index, state = ahead.pop()
        known = entering.get(index)
        state = state if known is None else known.merged(state)
        if state == known:
            continue
        entering[index] = state
        after = [each for _, each in _states(flow, index, state)][-1:] or [state]
        if after[0].pending:
            ahead += [(successor, after[0]) for successor in flow.blocks[index].successors]
    found: dict[int, frozenset[int]] = {}
    for index, entry in entering.items():
        before = entry
        for op, state in _states(flow, index, entry):
            if before.pending and (done := _read_by(op, before)):
                found[id(op)] = done
            before = state
    return found


def _read_by(op: Op, state: _Loads) -> frozenset[int]:
    """The loads that an instruction shows to be complete."""
    if op.instruction.guard:
        return frozenset()
    return frozenset(state.registers[name] for name in read(op) if name in state.registers)


def _states(flow: Flow, index: int, state: _Loads) -> Iterator[tuple[Op, _Loads]]:
    """The instructions of a block, and the state after each."""
    for op in flow.blocks[index].ops:
        pending, registers = state
        if done := _read_by(op, state):
            pending, registers = pending - done, {name: at for name, at in registers.items() if at not in done}
        if op.family == _WAIT and op["what"] == "ld":
            pending, registers = _NONE
        elif changed := [name for name in written(op) if name in registers]:
            registers = {name: at for name, at in registers.items() if name not in changed}
        if op.family == _LOAD:
            pending |= {id(op)}
            registers = {**registers, **dict.fromkeys(registers_of(op.operands["d"]), id(op))}
        state = _Loads(pending, registers)
        yield op, state
