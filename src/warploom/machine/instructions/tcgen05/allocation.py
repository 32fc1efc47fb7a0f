"""`tcgen05.alloc`, `tcgen05.dealloc` and `tcgen05.relinquish_alloc_permit`: who owns which columns of TMEM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.hardware.tmem import SMALLEST_ALLOCATION
from warploom.machine.core.group import Waitable
from warploom.machine.core.participation import whole_warps
from warploom.machine.core.registry import Run, executes
from warploom.machine.instructions.mbarrier import shared_address
from warploom.machine.tensor.tmem import Tmem, check_group, group_of, pair_of, split_address, tmem_of
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]


def _one_value(value: Any, g: Group, mask: Array | None, op: Op, what: str) -> int:
    """An operand that must be the same in all lanes that execute."""
    if isinstance(value, int):
        return value
    live = value if mask is None else value[mask]
    if (live != live[0]).any():
        raise Diag.TENSOR_MEMORY.error(what=f"`{op.instruction.opcode}`: {what} differs among the lanes of {g.name}.")
    return int(live[0])


def _warps(g: Group, mask: Array | None, op: Op) -> int:
    """The number of warps of a group that execute an instruction; each does it once."""
    chosen = whole_warps(g, mask, op)
    return g.warps if chosen is None else int(np.count_nonzero(chosen))


@executes("tcgen05.alloc")
def alloc(op: Op) -> Run:
    """Take columns, wait until there are enough, and store their address to shared memory."""
    group, what = group_of(op), f"`{op.instruction.opcode}`"

    def run(g: Group, mask: Array | None, address: Any, columns: Any) -> bool:
        warps = _warps(g, mask, op)
        size = _one_value(columns, g, mask, op, "the column count")
        where = shared_address(_one_value(address, g, mask, op, "the destination"))
        check_group(g.cta, group)
        if g.token is None:
            _check_size(tmem_of(g.cta), size)
            g.token = 0
        while g.token < warps:
            base = _allocate(g, size) if group == 1 else _allocate_together(g, size)
            if base is None:
                return False
            g.grid.effects += 1
            tmem_of(g.cta).origins[base] = op
            g.cta.shared.write(where, base, 4, None, what, g.number)
            g.token += 1
        g.token = None
        return True

    return run


def _check_size(memory: Tmem, size: int) -> None:
    broken = []
    if size < SMALLEST_ALLOCATION or size > memory.columns or size & (size - 1):
        broken.append(f"it takes a power of two from {SMALLEST_ALLOCATION} to {memory.columns}")
    if not memory.permit:
        broken.append("tcgen05.relinquish_alloc_permit was executed before")
    if size > memory.largest:
        broken.append(f"one of {memory.largest} came before, and sizes must not grow")
    if broken:
        raise Diag.TENSOR_MEMORY.error(what=f"tcgen05.alloc of {size} columns: {'; '.join(broken)}.")


def _free_base(memories: tuple[Tmem, ...], size: int) -> int | None:
    """The first aligned run of columns that is free in every memory."""
    bases = range(0, memories[0].columns, size)
    return next((base for base in bases if all(memory.is_free(base, size) for memory in memories)), None)


def _wait_for_columns(g: Group, memories: tuple[Tmem, ...]) -> None:
    g.wait(memories[0])
    for memory in memories[1:]:
        memory.waiters.append(g)


def _allocate(g: Group, size: int) -> int | None:
    memory = tmem_of(g.cta)
    base = _free_base((memory,), size)
    if base is None:
        _wait_for_columns(g, (memory,))
        return None
    memory.take(base, size)
    return base


class _Pair(Waitable):
    """The state that the two CTAs of a pair share: who asks for columns, what they got, and what each has freed."""

    __slots__ = ("answers", "asked", "freed", "size")

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[int, Group] = {}
        self.answers: dict[int, int] = {}
        self.freed: dict[int, int] = {}
        self.size = 0

    def describe(self) -> str:
        if self.asked:
            return f"tcgen05.alloc.cta_group::2 of {self.size} columns: asked for by CTA rank {list(self.asked)}"
        return f"tcgen05.dealloc.cta_group::2: deallocations by CTA rank: {self.freed}"


def _pair(cta: Cta) -> _Pair:
    pair: _Pair = cta.cluster.state.setdefault(("tcgen05", cta.rank & ~1), _Pair())
    return pair


def _allocate_together(g: Group, size: int) -> int | None:
    """One warp of each CTA of a pair asks; both get the same columns."""
    pair, mine = _pair(g.cta), g.cta.rank
    if pair.asked.get(mine, g) is not g:
        g.wait(pair)
        return None
    if mine in pair.answers:
        del pair.asked[mine]
        pair.notify()
        return pair.answers.pop(mine)
    if pair.asked and pair.size != size and not pair.answers:
        raise Diag.TENSOR_MEMORY.error(what=f"The CTAs of a pair ask for {pair.size} and {size} columns.")
    pair.asked[mine] = g
    pair.size = size
    memories = tuple(tmem_of(cta) for cta in pair_of(g.cta))
    if len(pair.asked) < len(memories) or pair.answers:
        g.wait(pair)
        return None
    base = _free_base(memories, size)
    if base is None:
        _wait_for_columns(g, memories)
        return None
    for memory in memories:
        memory.take(base, size)
        pair.answers[memory.cta.rank] = base
    pair.notify()
    del pair.answers[mine], pair.asked[mine]
    return base


@executes("tcgen05.dealloc")
def dealloc(op: Op) -> Run:
    """Give columns back.

    With cta_group::2 the instruction may wait for the peer's; it does wherever warps run apart, so that a kernel which
    relies on either shows.
    """
    group = group_of(op)

    def run(g: Group, mask: Array | None, address: Any, columns: Any) -> bool:
        warps = _warps(g, mask, op)
        check_group(g.cta, group)
        if g.token is None:
            lane, column = split_address(_one_value(address, g, mask, op, "the address"))
            size = _one_value(columns, g, mask, op, "the column count")
            memory = tmem_of(g.cta)
            memory.settle()
            if lane:
                raise Diag.TENSOR_MEMORY.error(what=f"tcgen05.dealloc at lane {lane}: an allocation begins at lane 0.")
            for _ in range(warps):
                memory.give_back(column, size)
            g.grid.effects += 1
            if group == 1 or g.cta.mode.convoys:
                return True
            pair = _pair(g.cta)
            g.token = pair.freed[g.cta.rank] = pair.freed.get(g.cta.rank, 0) + 1
            pair.notify()
        pair = _pair(g.cta)
        if pair.freed.get(g.cta.rank ^ 1, 0) < g.token:
            g.wait(pair)
            return False
        g.token = None
        return True

    return run


@executes("tcgen05.relinquish")
def relinquish(op: Op) -> Run:
    """The CTA will allocate no more."""
    group = group_of(op)

    def run(g: Group, mask: Array | None) -> None:
        whole_warps(g, mask, op)
        check_group(g.cta, group)
        tmem_of(g.cta).permit = False

    return run
