"""The control flow of a kernel: basic blocks, immediate post-dominators, natural loops.

A block ends at a branch, and a new one begins at a label and at every instruction that may have to wait, so that a
warp which wakes up starts again exactly there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from warploom.diagnostics import Diag, Loc
from warploom.ptx.isa.table import Op, decode
from warploom.ptx.model import BranchTargets, Instruction, Kernel, Label, Symbol

LEAVES = frozenset({"ret", "exit", "trap"})
BRANCHES = frozenset({"bra", "brx"})


@dataclass(slots=True)
class Block:
    """A run of instructions entered only at its top; `next` is where it falls through to, None after the last."""

    index: int
    ops: list[Op] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    next: int | None = None

    @property
    def successors(self) -> tuple[int, ...]:
        return tuple(self.targets) + (() if self.next is None else (self.next,))


@dataclass(frozen=True)
class Flow:
    """The blocks of a kernel; `exit` is one empty block behind all others, where every path ends."""

    blocks: tuple[Block, ...]
    exit: int

    @cached_property
    def reachable(self) -> frozenset[int]:
        """The blocks that some path from the entry meets."""
        seen, stack = {0}, [0]
        while stack:
            for successor in self.blocks[stack.pop()].successors:
                if successor not in seen:
                    seen.add(successor)
                    stack.append(successor)
        return frozenset(seen)

    @cached_property
    def joins(self) -> tuple[int, ...]:
        """The immediate post-dominator of every block: where lanes that part ways there meet again."""
        predecessors: list[list[int]] = [[] for _ in self.blocks]
        for block in self.blocks:
            for successor in block.successors:
                predecessors[successor].append(block.index)
        order = self._postorder_backwards(predecessors)
        rank = {block: position for position, block in enumerate(order)}
        join = [self.exit] * len(self.blocks)
        known = {self.exit}
        changed = True
        while changed:
            changed = False
            for index in reversed(order):
                if index == self.exit:
                    continue
                candidates = [s for s in self.blocks[index].successors if s in known and s in rank]
                if not candidates:
                    continue
                new = candidates[0]
                for other in candidates[1:]:
                    new = _meet(new, other, join, rank)
                if index not in known or join[index] != new:
                    join[index] = new
                    known.add(index)
                    changed = True
        return tuple(join)

    def _postorder_backwards(self, predecessors: list[list[int]]) -> list[int]:
        order: list[int] = []
        seen = {self.exit}
        stack: list[tuple[int, int]] = [(self.exit, 0)]
        while stack:
            index, at = stack[-1]
            if at < len(predecessors[index]):
                stack[-1] = (index, at + 1)
                before = predecessors[index][at]
                if before not in seen:
                    seen.add(before)
                    stack.append((before, 0))
            else:
                order.append(index)
                stack.pop()
        return order

    def region(self, index: int) -> frozenset[int]:
        """The blocks that lanes may run apart in after parting at the end of a block: up to, not including, its join."""
        join, seen = self.joins[index], set[int]()
        stack = [s for s in self.blocks[index].successors if s != join]
        while stack:
            at = stack.pop()
            if at not in seen:
                seen.add(at)
                stack += [s for s in self.blocks[at].successors if s != join]
        return frozenset(seen)

    @cached_property
    def back_edges(self) -> frozenset[tuple[int, int]]:
        """Edges to a block that is still being walked: the loops of the kernel."""
        colour: dict[int, int] = {0: 1}
        found: set[tuple[int, int]] = set()
        stack: list[tuple[int, int]] = [(0, 0)]
        while stack:
            index, at = stack[-1]
            successors = self.blocks[index].successors
            if at == len(successors):
                colour[index] = 2
                stack.pop()
                continue
            stack[-1] = (index, at + 1)
            successor = successors[at]
            if colour.get(successor) == 1:
                found.add((index, successor))
            elif successor not in colour:
                colour[successor] = 1
                stack.append((successor, 0))
        return frozenset(found)


def _meet(a: int, b: int, join: list[int], rank: dict[int, int]) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = join[a]
        while rank[b] < rank[a]:
            b = join[b]
    return a


def build(kernel: Kernel, file: str = "<ptx>") -> Flow:
    """Cut a kernel's body into blocks."""
    registers = dict(kernel.registers)
    blocks = [Block(0)]
    labels: dict[str, int] = {}
    tables = {s.name: s.targets for s in kernel.body or () if isinstance(s, BranchTargets)}

    def begin() -> Block:
        if blocks[-1].ops:
            blocks.append(Block(len(blocks)))
        return blocks[-1]

    closed = False
    for statement in kernel.body or ():
        if isinstance(statement, Label):
            block = begin()
            labels[statement.name] = block.index
            closed = False
        elif isinstance(statement, Instruction):
            op = decode(statement, registers, file)
            if closed or op.form.blocks:
                begin()
            blocks[-1].ops.append(op)
            closed = op.family in BRANCHES or op.family in LEAVES
    if blocks[-1].ops:
        blocks.append(Block(len(blocks)))
    exit_ = blocks[-1].index
    for block in blocks[:-1]:
        last = block.ops[-1] if block.ops else None
        falls = last is None or last.family not in BRANCHES | LEAVES or last.instruction.guard is not None
        block.next = block.index + 1 if falls else None
        if last is not None and last.family in LEAVES:
            block.targets = [exit_]
        elif last is not None and last.family in BRANCHES:
            names = _names(last, tables, file)
            missing = [name for name in names if name not in labels]
            if missing:
                raise Diag.UNDECLARED.error(_where(last, file), name=missing[0])
            block.targets = [labels[name] for name in names]
    return Flow(tuple(blocks), exit_)


def _names(op: Op, tables: dict[str, tuple[str, ...]], file: str) -> tuple[str, ...]:
    target = op.operands["target" if op.family == "bra" else "table"]
    assert isinstance(target, Symbol)
    if op.family == "bra":
        return (target.name,)
    if target.name not in tables:
        raise Diag.UNDECLARED.error(_where(op, file), name=target.name)
    return tables[target.name]


def _where(op: Op, file: str) -> Loc:
    return op.instruction.loc or Loc(file, op.instruction.line)
