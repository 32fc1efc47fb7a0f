"""Tensor memory of a CTA: allocation, and what warps load from and store to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.facts.fragments import MOVE_REGISTER_LIMIT, TENSOR_MOVES
from warploom.facts.tensor_memory import QUADRANT
from warploom.machine.accumulators import tensor_load, tensor_store
from warploom.machine.asynchrony import Operation
from warploom.machine.group import WARP, Waitable
from warploom.machine.registry import Run, executes
from warploom.ptx.isa.table import Op
from warploom.ptx.model import Vector

if TYPE_CHECKING:
    from warploom.machine.cta import Cta
    from warploom.machine.group import Group

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]

_LANE_SHIFT = 16
_COLUMN_MASK = 0xFFFF
_LANE_MASK = 0x3FFF
_SMALLEST = 32
POISON = 0xFFFFFFFF


class TensorMemory(Waitable):
    """128 lanes of 512 columns, and who owns which columns."""

    __slots__ = ("allocations", "columns", "cta", "largest", "owner", "permit", "words")

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        machine = cta.grid.machine
        self.cta = cta
        self.columns = machine.tensor_columns
        self.words: Words = np.full((machine.tensor_lanes, self.columns), POISON, np.uint32)
        self.owner = np.zeros(self.columns, np.bool_)
        self.allocations: dict[int, int] = {}
        self.permit = True
        self.largest = self.columns

    def describe(self) -> str:
        taken = ", ".join(f"{base}+{size}" for base, size in sorted(self.allocations.items()))
        return f"tensor memory: allocated columns {taken or 'none'} of {self.columns}"

    def free_base(self, size: int) -> int | None:
        """The first aligned run of free columns."""
        return next((base for base in range(0, self.columns, size) if not self.owner[base : base + size].any()), None)

    def take(self, base: int, size: int) -> None:
        self.owner[base : base + size] = True
        self.allocations[base] = size
        self.largest = size

    def give_back(self, base: int, size: int) -> None:
        if self.allocations.get(base) != size:
            raise Diag.TENSOR_MEMORY.error(what=f"tcgen05.dealloc of {size} columns at {base} frees no allocation; {self.describe()}")
        del self.allocations[base]
        self.owner[base : base + size] = False
        self.notify()

    def require(self, column: int, count: int, what: str) -> None:
        """Every column of an access must be allocated."""
        if column + count > self.columns or not self.owner[column : column + count].all():
            raise Diag.TENSOR_MEMORY.error(
                what=f"{what} touches columns {column} to {column + count - 1}, which are not all allocated; {self.describe()}"
            )


def tensor_memory(cta: Cta) -> TensorMemory:
    """The CTA's tensor memory, made when first used."""
    memory = cta.state.get("tensor_memory")
    if memory is None:
        memory = cta.state["tensor_memory"] = TensorMemory(cta)
        cta.at_end.append(_check_freed)
    found: TensorMemory = memory
    return found


def _check_freed(cta: Cta) -> None:
    memory = tensor_memory(cta)
    if memory.allocations:
        raise Diag.TENSOR_MEMORY.error(what=f"{cta.name} ended without tcgen05.dealloc; {memory.describe()}")


def split_address(address: int) -> tuple[int, int]:
    """(lane, column) of a tensor-memory address."""
    return (address >> _LANE_SHIFT) & _LANE_MASK, address & _COLUMN_MASK


def pair_of(cta: Cta) -> list[Cta]:
    """The two CTAs of a pair: ranks 2i and 2i + 1 of the cluster."""
    ctas, even = cta.cluster.ctas, cta.rank & ~1
    if even + 1 >= len(ctas):
        raise Diag.BAD_PARTICIPATION.error(text="cta_group::2", needs="a cluster with a peer CTA", found="one CTA")
    return [ctas[even], ctas[even + 1]]


def whole_warps(g: Group, mask: Array | None, op: Op) -> None:
    """`.sync.aligned`: all live lanes of the warp take part."""
    live = g.mask if mask is None else mask
    if live is None:
        return
    for number, found in enumerate(live.reshape(-1, WARP).sum(axis=1).tolist()):
        needed = g.cta.live[g.first_warp + number]
        if found not in (0, needed):
            raise Diag.BAD_PARTICIPATION.error(text=op.instruction.opcode, needs=f"all {needed} lanes of the warp", found=str(found))


def one_value(value: Any, g: Group, mask: Array | None, what: str) -> int:
    """An operand that must be the same in all lanes that execute."""
    if isinstance(value, int):
        return value
    live = value[g.active if mask is None else mask]
    if (live != live[0]).any():
        raise Diag.TENSOR_MEMORY.error(what=f"{what} differs among the lanes of {g.name}.")
    return int(live[0])


@executes("tcgen05.alloc")
def alloc(op: Op) -> Run:
    """Take columns, wait until there are enough, and store their address to shared memory."""
    together = op["group"] == "cta_group::2"

    def run(g: Group, mask: Array | None, address: Any, columns: Any) -> bool:
        whole_warps(g, mask, op)
        size = one_value(columns, g, mask, "The column count")
        memory = tensor_memory(g.cta)
        _check_size(memory, size)
        ctas = pair_of(g.cta) if together else [g.cta]
        base = _allocate_together(g, ctas, size) if together else _allocate(g, memory, size)
        if base is None:
            return False
        g.grid.effects += 1
        where = one_value(address, g, mask, "The destination address")
        g.cta.shared.write(where, base, 4, None, "`tcgen05.alloc`", g.first_warp)
        return True

    return run


def _check_size(memory: TensorMemory, size: int) -> None:
    if size < _SMALLEST or size > memory.columns or size & (size - 1):
        raise Diag.TENSOR_MEMORY.error(what=f"tcgen05.alloc of {size} columns: it takes a power of two from {_SMALLEST} to {memory.columns}.")
    if not memory.permit:
        raise Diag.TENSOR_MEMORY.error(what="tcgen05.alloc after tcgen05.relinquish_alloc_permit.")
    if size > memory.largest:
        raise Diag.TENSOR_MEMORY.error(what=f"tcgen05.alloc of {size} columns after one of {memory.largest}: sizes must not grow.")


def _allocate(g: Group, memory: TensorMemory, size: int) -> int | None:
    base = memory.free_base(size)
    if base is None:
        g.wait(memory)
        return None
    memory.take(base, size)
    return base


class _PairRequest(Waitable):
    """An allocation that both CTAs of a pair ask for."""

    __slots__ = ("answers", "asked", "size")

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[int] = set()
        self.answers: dict[int, int] = {}
        self.size = 0

    def describe(self) -> str:
        return f"tcgen05.alloc.cta_group::2 of {self.size} columns: asked by CTA rank {sorted(self.asked)} of the pair"


def _allocate_together(g: Group, ctas: list[Cta], size: int) -> int | None:
    request: _PairRequest = g.cta.cluster.state.setdefault(("alloc", ctas[0].rank), _PairRequest())
    mine = g.cta.rank
    if mine in request.answers:
        return request.answers.pop(mine)
    if request.asked and request.size != size:
        raise Diag.TENSOR_MEMORY.error(what=f"The CTAs of a pair ask for {request.size} and {size} columns.")
    request.asked.add(mine)
    request.size = size
    memories = [tensor_memory(cta) for cta in ctas]
    if len(request.asked) == len(ctas):
        free = (b for b in range(0, memories[0].columns, size) if not any(m.owner[b : b + size].any() for m in memories))
        base = next(free, None)
        if base is None:
            g.wait(memories[0])
            return None
        for memory, cta in zip(memories, ctas, strict=True):
            memory.take(base, size)
            request.answers[cta.rank] = base
        request.asked.clear()
        request.notify()
        return request.answers.pop(mine)
    g.wait(request)
    return None


@executes("tcgen05.dealloc")
def dealloc(op: Op) -> Run:
    """Give columns back."""

    def run(g: Group, mask: Array | None, address: Any, columns: Any) -> None:
        whole_warps(g, mask, op)
        _, column = split_address(one_value(address, g, mask, "The address"))
        g.grid.effects += 1
        tensor_memory(g.cta).give_back(column, one_value(columns, g, mask, "The column count"))

    return run


@executes("tcgen05.relinquish")
def relinquish(op: Op) -> Run:
    """The CTA will allocate no more."""

    def run(g: Group, mask: Array | None) -> None:
        whole_warps(g, mask, op)
        tensor_memory(g.cta).permit = False

    return run


class _Move:
    """What ld and st have in common: the shape, and the lanes each warp of a group reaches."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.shape, self.repeats = op["shape"], int(op["count"][1:])
        self.packed = bool(op["pack"] or op["unpack"])
        move = TENSOR_MOVES[self.shape]
        self.registers = move.registers * self.repeats
        self.width = move.columns * self.repeats * (2 if self.packed else 1)
        self.lanes = move.lanes
        listed = op.operands.get("d") or op.operands.get("b")
        given = len(listed.items) if isinstance(listed, Vector) else 1
        if given != self.registers or self.registers > MOVE_REGISTER_LIMIT:
            raise Diag.BAD_OPERANDS.error(
                op.instruction.loc,
                text=op.instruction.opcode,
                what=f"the list has {given} registers",
                takes=f"{self.registers} registers, at most {MOVE_REGISTER_LIMIT}",
            )

    def places(self, g: Group, mask: Array | None, address: Any, half: int) -> list[tuple[int, int]]:
        """(lane, column) for each warp of the group, checked against its quadrant and the allocation."""
        whole_warps(g, mask, self.op)
        memory = tensor_memory(g.cta)
        out = []
        for number in range(g.warps):
            part = address if isinstance(address, int) else address[number * WARP : (number + 1) * WARP]
            lane, column = split_address(one_value(part, g, mask if mask is not None and g.warps == 1 else None, "The address") if g.warps == 1 else _same(part))
            quadrant = (g.first_warp + number) % 4
            if lane // QUADRANT != quadrant or lane % QUADRANT + self.lanes > QUADRANT:
                raise Diag.TENSOR_MEMORY.error(
                    what=f"`{self.op.instruction.opcode}` at lane {lane}: warp {g.first_warp + number} reaches lanes "
                    f"{QUADRANT * quadrant} to {QUADRANT * quadrant + QUADRANT - 1} only."
                )
            memory.require(column, self.width, f"`{self.op.instruction.opcode}`")
            if self.shape == "16x32bx2":
                memory.require(column + half, self.width, f"`{self.op.instruction.opcode}`")
            out.append((lane, column))
        return out


def _same(part: Any) -> int:
    if isinstance(part, int):
        return part
    if (part != part[0]).any():
        raise Diag.TENSOR_MEMORY.error(what="The address differs among the lanes of a warp.")
    return int(part[0])


@executes("tcgen05.ld")
def load(op: Op) -> Run:
    """Tensor memory to registers; the values are those at issue, since a register dependency is respected."""
    move = _Move(op)

    def run(g: Group, mask: Array | None, address: Any, half: int = 0) -> Any:
        places = move.places(g, mask, address, half)
        words = tensor_memory(g.cta).words
        if move.shape == "32x32b" and g.lanes == len(words) and not move.packed and all(p[1] == places[0][1] for p in places):
            column = places[0][1]
            table = words[:, column : column + move.repeats].T
        else:
            parts = [
                tensor_load(words, move.shape, move.repeats, lane, column, split=half, packed=move.packed)
                for lane, column in places
            ]
            table = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return table if isinstance(op.operands["d"], Vector) else table[0]

    return run


@executes("tcgen05.st")
def store(op: Op) -> Run:
    """Registers to tensor memory, asynchronously: tcgen05.wait::st tells when."""
    move = _Move(op)
    splits = move.shape == "16x32bx2"

    def run(g: Group, mask: Array | None, address: Any, *rest: Any) -> None:
        half, values = (rest[0], rest[1]) if splits else (0, rest[0])
        places = move.places(g, mask, address, half)
        table = np.empty((move.registers, g.lanes), np.uint32)
        for row, value in zip(table, values if isinstance(values, tuple) else (values,), strict=True):
            row[:] = value
        words = tensor_memory(g.cta).words

        def write() -> None:
            for number, (lane, column) in enumerate(places):
                part = table[:, number * WARP : (number + 1) * WARP]
                tensor_store(words, move.shape, move.repeats, lane, column, part, split=half, packed=move.packed)

        stores: _Stores = g.cta.state.setdefault(("tensor_stores", g.first_warp), _Stores())
        operation = Operation(f"{g.cta.name} {g.name} tcgen05.st", write, stores.last)
        stores.add(operation)
        g.grid.submit(operation)

    return run


class _Stores(Waitable):
    """The tensor-memory stores of one warp that are under way."""

    __slots__ = ("last", "open")

    def __init__(self) -> None:
        super().__init__()
        self.last: Operation | None = None
        self.open: list[Operation] = []

    def add(self, operation: Operation) -> None:
        operation.then.append(self)
        self.last = operation
        self.open.append(operation)

    def describe(self) -> str:
        return f"tcgen05.wait::st: {sum(not operation.done for operation in self.open)} stores incomplete"


@executes("tcgen05.wait")
def wait(op: Op) -> Run:
    """Wait until this warp's loads or stores of tensor memory are done."""
    stores = op["what"] == "st"

    def run(g: Group, mask: Array | None) -> bool:
        whole_warps(g, mask, op)
        if stores:
            for warp in range(g.first_warp, g.first_warp + g.warps):
                pending: _Stores | None = g.cta.state.get(("tensor_stores", warp))
                if pending is not None:
                    pending.open = [operation for operation in pending.open if not operation.done]
                    if pending.open:
                        g.wait(pending)
                        return False
        return True

    return run


@executes("tcgen05.fence")
def fence(op: Op) -> Run:
    """Orders tensor-memory accesses across threads: for observers, the machine needs no act."""
    return lambda g, mask: None
