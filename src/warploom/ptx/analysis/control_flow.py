"""The control flow of a kernel: basic blocks, immediate post-dominators, natural loops.

A block ends at a branch, and a new one begins at a label and at every instruction that may have to wait, so that a
warp that wakes up resumes exactly there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from warploom.diagnostics import Diag, Loc
from warploom.ptx.analysis.operand_registers import Uses
from warploom.ptx.isa.table import Op, decode
from warploom.ptx.syntax.model import BranchTargets, Instruction, Kernel, Label, Symbol

LEAVES = frozenset({"ret", "exit", "trap"})
BRANCHES = frozenset({"bra", "brx"})
_ENDS = BRANCHES | LEAVES
_LONGEST = 1024
"""The longest block in instructions, so that its translation stays small."""


@dataclass(slots=True)
class _Effort:
    """Remaining steps of a search over the blocks, so that the analysis of any kernel takes bounded time."""

    left: int = 3_000_000


@dataclass(slots=True)
class Block:
    """Instructions entered only at the first; `next` is the fall-through block, None after the last."""

    index: int
    ops: list[Op] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    next: int | None = None

    @property
    def successors(self) -> tuple[int, ...]:
        return tuple(self.targets) + (() if self.next is None else (self.next,))


@dataclass(frozen=True)
class Flow:
    """The blocks of a kernel; `exit` is one empty block after all others, where every path ends."""

    blocks: tuple[Block, ...]
    exit: int

    @cached_property
    def uses(self) -> tuple[tuple[Uses, ...], ...]:
        """The registers that the instructions of each block use."""
        return tuple(tuple([Uses.of(op) for op in block.ops]) for block in self.blocks)

    def forget_uses(self) -> None:
        """Keep of `uses` what liveness needs: they take as much memory as the program."""
        assert len(self.touched) == len(self.blocks)
        del self.__dict__["uses"]

    @cached_property
    def touched(self) -> tuple[tuple[set[str], set[str]], ...]:
        """For each block the registers that it reads before it writes them, and those that it writes in any case."""
        found = []
        for block, uses in zip(self.blocks, self.uses, strict=True):
            used, killed = set[str](), set[str]()
            for op, each in zip(block.ops, uses, strict=True):
                used.update([name for name in each.read if name not in killed])
                if op.instruction.guard is None:
                    killed.update(each.written)
            found.append((used, killed))
        return tuple(found)

    @cached_property
    def reachable(self) -> frozenset[int]:
        """The blocks that are reachable from the entry."""
        return frozenset(self._after(0))

    @cached_property
    def exit_blocks(self) -> frozenset[int]:
        """The blocks in which a lane only exits the kernel."""
        bare = [block for block in self.blocks if len(block.ops) == 1 and block.next is None]
        return frozenset((self.exit, *(block.index for block in bare if block.ops[0].family in ("ret", "exit"))))

    @cached_property
    def reconvergence(self) -> tuple[int, ...]:
        """The reconvergence point of lanes that diverge at the end of a block: its immediate post-dominator.

        Paths on which lanes only exit the kernel do not count, as long as another path leads to the end: lanes that do
        not take an early return or a failed assertion still reconverge.
        """
        successors = self._staying()
        predecessors: list[list[int]] = [[] for _ in self.blocks]
        for index, each in enumerate(successors):
            for successor in each:
                predecessors[successor].append(index)
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
                candidates = [s for s in successors[index] if s in known and s in rank]
                if not candidates:
                    continue
                new = candidates[0]
                for other in candidates[1:]:
                    new = _meet(new, other, join, rank)
                if index not in known or join[index] != new:
                    join[index] = new
                    known.add(index)
                    changed = True
        return tuple(self.exit if at in self.exit_blocks else at for at in join)

    def _staying(self) -> list[tuple[int, ...]]:
        """The successors of every block, without paths on which lanes only exit if another path leads to the end."""
        kept = [tuple(dict.fromkeys(block.successors)) for block in self.blocks]
        left: dict[int, tuple[int, ...]] = {}
        effort = _Effort()
        for index, successors in enumerate(kept):
            leaving = [s for s in successors if len(successors) > 1 and self._leaves(s, index, effort)]
            if leaving and len(leaving) < len(successors):
                left[index] = successors
                kept[index] = tuple(s for s in successors if s not in leaving)
        while left:
            lost = left.keys() & self.reachable - self._reaching(kept)
            if not lost:
                break
            effort.left -= len(kept)
            for latest in [max(lost)] if effort.left > 0 else lost:
                kept[latest] = left.pop(latest)
        return kept

    def _leaves(self, index: int, source: int, effort: _Effort) -> bool:
        """Return True if all paths from `source` through a block only lead out of the kernel.

        Other paths must never meet them, and no instruction on them may need the other lanes.
        """
        others = [other for other in self.blocks[source].successors if other != index] if effort.left > 0 else []
        effort.left -= len(others)
        tail: set[int] = set()
        while index not in self.exit_blocks:
            effort.left -= 1
            after = self.blocks[index].successors
            if len(after) != 1 or index in tail or index in self._collective or effort.left < 0:
                return False
            tail.add(index)
            index = after[0]
        return not tail or not any(self._meets(other, tail, source, effort) for other in others)

    @cached_property
    def _collective(self) -> frozenset[int]:
        """The blocks with an instruction that may need lanes other than those that reach it together."""
        blocks = (
            block for block in self.blocks if any(op.form.blocks or op.form.issuer != "thread" for op in block.ops)
        )
        return frozenset(block.index for block in blocks)

    def _meets(self, index: int, tail: set[int], without: int, effort: _Effort) -> bool:
        """Return True if a block reaches some of `tail` on paths that avoid `without`, or the search takes too long."""
        seen, stack = {index}, [index]
        while stack:
            at = stack.pop()
            effort.left -= 1
            if at in tail or effort.left < 0:
                return True
            for successor in self.blocks[at].successors:
                if successor not in seen and successor != without:
                    seen.add(successor)
                    stack.append(successor)
        return False

    def _after(self, index: int) -> set[int]:
        """A block and every block reachable from it."""
        seen, stack = {index}, [index]
        while stack:
            for successor in self.blocks[stack.pop()].successors:
                if successor not in seen:
                    seen.add(successor)
                    stack.append(successor)
        return seen

    def _reaching(self, successors: list[tuple[int, ...]]) -> frozenset[int]:
        """The blocks from which the exit can be reached."""
        before: list[list[int]] = [[] for _ in successors]
        for index, each in enumerate(successors):
            for successor in each:
                before[successor].append(index)
        seen, stack = {self.exit}, [self.exit]
        while stack:
            for index in before[stack.pop()]:
                if index not in seen:
                    seen.add(index)
                    stack.append(index)
        return frozenset(seen)

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
        """The blocks that lanes diverged after a block may execute separately: those before its reconvergence point."""
        join, seen = self.reconvergence[index], set[int]()
        stack = [s for s in self.blocks[index].successors if s != join]
        while stack:
            at = stack.pop()
            if at not in seen:
                seen.add(at)
                stack += [s for s in self.blocks[at].successors if s != join]
        return frozenset(seen)

    @cached_property
    def back_edges(self) -> frozenset[tuple[int, int]]:
        """Back edges, in a depth-first walk: the loops of the kernel."""
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


def build(
    kernel: Kernel,
    file: str = "<ptx>",
    ops: tuple[Op, ...] | None = None,
    begins: Callable[[Op], bool] | None = None,
) -> Flow:
    """Split a kernel's body into blocks; `ops` are its instructions if they have been decoded already.

    A block also ends before each instruction for which `begins` is true.
    """
    registers = dict(kernel.registers)
    decoded = iter(ops) if ops is not None else (decode(each, registers, file) for each in kernel.instructions)
    blocks = [Block(0)]
    labels: dict[str, int] = {}
    tables = {s.name: s.targets for s in kernel.body or () if isinstance(s, BranchTargets)}

    def begin() -> Block:
        if blocks[-1].ops:
            blocks.append(Block(len(blocks)))
        return blocks[-1]

    closed = False
    # Compilers write a label for every line of debug information: only those that are named begin a block.
    named = {part.name for each in kernel.instructions for part in each.operands if isinstance(part, Symbol)}
    named |= {name for targets in tables.values() for name in targets}
    for statement in kernel.body or ():
        if isinstance(statement, Label) and statement.name in named:
            block = begin()
            labels[statement.name] = block.index
            closed = False
        elif isinstance(statement, Instruction):
            op = next(decoded)
            ops_ = blocks[-1].ops
            if closed or op.form.blocks or len(ops_) == _LONGEST or (begins is not None and begins(op)):
                ops_ = begin().ops
            ops_.append(op)
            closed = op.form.family in _ENDS
    if blocks[-1].ops:
        blocks.append(Block(len(blocks)))
    exit_ = blocks[-1].index
    for block in blocks[:-1]:
        last = block.ops[-1] if block.ops else None
        falls = last is None or last.family not in _ENDS or last.instruction.guard is not None
        block.next = block.index + 1 if falls else None
        if last is not None and last.family in ("ret", "exit"):
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
