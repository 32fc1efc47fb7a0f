"""`atom` and `red`: read, change and write a cell as one step.

Lanes are served one after the other; which comes first is the schedule's choice. Lanes with different addresses do not
see each other's order, so that a warp without collisions is one gather and one scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.core.registry import Run, executes
from warploom.machine.engine.addresses import address_of
from warploom.machine.instructions.memory import by_window, without_window
from warploom.machine.memory.byte_memory import WIDTHS
from warploom.machine.memory.exact_sums import is_exact_sum
from warploom.machine.memory.shared_memory import RANK_SHIFT, SharedMemory
from warploom.machine.semantics.functions import array_function
from warploom.ptx.isa.table import BITS, Op
from warploom.ptx.syntax.model import Vector

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]
Change = Callable[..., Array]

_DTYPES: dict[str, npt.DTypeLike] = {
    "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "u32": np.uint32, "s32": np.int32, "u64": np.uint64,
    "s64": np.int64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16, "b128": np.complex128,
}  # fmt: skip
"""The NumPy type of one element; packed types are two elements."""
_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


@dataclass(frozen=True, slots=True)
class Cells:
    """The elements of one memory that some lanes of an instruction address, and which lanes these are."""

    view: Array
    index: Array
    lanes: Array | None
    shared: SharedMemory | None = None
    address: Array | None = None


def locate(g: Group, space: str, address: Array, width: int, what: str) -> list[Cells]:
    """The cells at some addresses: one entry per memory; a fault if one lies outside or is misaligned."""
    if g.grid.buffers is not None and space:
        g.grid.buffers.touch(g, None if space == "global" else g.cta.cluster, address, width, None)
        if space == "global":
            g.grid.buffers.updated(address, width, None)
    if space == "global":
        return [Cells(view, index, lanes) for view, index, lanes in g.grid.memory.locate(address, width, what)]
    if space in ("shared", "shared::cta"):
        return [_in_shared(g.cta.shared, address, None, width, what)]
    if space == "shared::cluster":
        ranks = address >> address.dtype.type(RANK_SHIFT)
        ctas, found = g.cta.cluster.ctas, np.unique(ranks).tolist()
        if found[-1] >= len(ctas):
            g.cta.shared.fault(int(address[ranks.argmax()]), 1, what)
        if len(found) == 1:
            return [_in_shared(ctas[found[0]].shared, address, None, width, what)]
        return [_in_shared(ctas[rank].shared, address, np.flatnonzero(ranks == rank), width, what) for rank in found]
    cells: list[Cells] = []
    for window, inside in by_window(address, None):
        if window not in ("global", "shared"):
            note = f"address {int(address[inside.argmax()]):#x} lies in {window} memory"
            raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what=what, space="global or shared")
        lanes = np.flatnonzero(inside)
        named = "shared::cluster" if window == "shared" else window
        for part in locate(g, named, without_window(address[lanes], window), width, what):
            own = lanes if part.lanes is None else lanes[part.lanes]
            cells.append(Cells(part.view, part.index, own, part.shared, part.address))
    return cells


def _in_shared(shared: SharedMemory, address: Array, lanes: Array | None, width: int, what: str) -> Cells:
    mine = address if lanes is None else address[lanes]
    return Cells(shared.views[width], shared.index(mine, width, what).astype(np.intp), lanes, shared, mine)


def _exchange(_: Array, b: Array) -> Array:
    return b


def _compare_and_swap(old: Array, b: Array, c: Array) -> Array:
    return np.where(old == b, c, old)


def _increment(old: Array, b: Array) -> Array:
    return np.where(old >= b, np.uint32(0), old + np.uint32(1))


def _decrement(old: Array, b: Array) -> Array:
    return np.where((old == 0) | (old > b), b, old - np.uint32(1))


_ORDERED: dict[str, tuple[Change, Callable[..., int]]] = {
    "exch": (_exchange, lambda _, b: b),
    "cas": (_compare_and_swap, lambda old, b, c: c if old == b else old),
    "inc": (_increment, lambda old, b: 0 if old >= b else old + 1),
    "dec": (_decrement, lambda old, b: b if old == 0 or old > b else old - 1),
}
"""Operations on unsigned integers whose order always matters: on arrays, and on Python integers one by one."""


def change(operation: str, type_: str, *, flushes: bool) -> Change:
    """(old, b[, c]) → new, on arrays of the element's type."""
    if operation in _ORDERED:
        return _ORDERED[operation][0]
    if not _is_float(type_):
        return _UFUNCS[operation]
    function = array_function(operation, {"type": type_, "ftz": "ftz"} if flushes else {"type": type_}, (type_,) * 2)
    element = np.dtype(_DTYPES[type_])
    bits = np.dtype(WIDTHS[element.itemsize])
    return lambda old, b: function(old.view(bits), b.view(bits)).view(element)


def _is_float(type_: str) -> bool:
    return type_.startswith(("f", "bf"))


_SAFE = 2.0**-102
"""Sums of float32 numbers that are zero or at least this large are never subnormal."""


def _accumulates(old: Array, b: Array) -> bool:
    """Return whether plain float additions in order give the exact result: no subnormals to flush and no NaNs."""
    size = np.abs(np.concatenate([old, b]))
    return bool(((size >= _SAFE) & (size < np.inf) | (size == 0)).all())


def _repeats(index: Array) -> bool:
    if len(index) == 1:
        return False
    ordered = np.sort(index)
    return bool((ordered[1:] == ordered[:-1]).any())


def serve(
    view: Array, index: Array, operands: tuple[Array, ...], new: Change, ufunc: np.ufunc | None, step: Any
) -> tuple[Array, bool]:
    """Change cells in the order given, which matters where indices repeat: the old values, and whether any changed.

    `ufunc` is given where the change is exactly that function, so that a cell many lanes share is one accumulation, and
    `step` where it is one on Python integers.
    """
    if not _repeats(index):
        old = view[index]
        after = new(old, *operands)
        view[index] = after
        return old, old.tobytes() != after.tobytes()
    _, first, where, counts = np.unique(index, return_index=True, return_inverse=True, return_counts=True)
    before = view[index[first]]
    if step is not None:
        olds = _one_by_one(view, index, operands, step)
    elif ufunc is not None and len(first) <= int(counts.max()):
        olds = np.empty(len(index), view.dtype)
        for cell in range(len(first)):
            lanes = np.flatnonzero(where == cell)
            at = index[lanes[0]]
            sums = ufunc.accumulate(np.concatenate([view[at : at + 1], operands[0][lanes]]), dtype=view.dtype)
            olds[lanes] = sums[:-1]
            view[at] = sums[-1]
    else:
        olds = _by_turns(view, index, operands, new, where, counts)
    return olds, before.tobytes() != view[index[first]].tobytes()


def _one_by_one(view: Array, index: Array, operands: tuple[Array, ...], step: Callable[..., int]) -> Array:
    places = index.tolist()
    cells = dict(zip(places, view[index].tolist(), strict=True))
    olds = []
    for at, *values in zip(places, *(operand.tolist() for operand in operands), strict=True):
        old = cells[at]
        olds.append(old)
        cells[at] = step(old, *values)
    view[list(cells)] = np.array(list(cells.values()), view.dtype)
    return np.array(olds, view.dtype)


def _by_turns(
    view: Array, index: Array, operands: tuple[Array, ...], new: Change, where: Array, counts: Array
) -> Array:
    """The first lane of every cell, then the second of every cell that has one, and so on."""
    order = np.argsort(where, kind="stable")
    turn = np.empty(len(index), np.intp)
    turn[order] = np.arange(len(index)) - np.repeat(np.cumsum(counts, dtype=np.intp) - counts, counts)
    olds = np.empty(len(index), view.dtype)
    for number in range(int(counts.max())):
        lanes = np.flatnonzero(turn == number)
        at = index[lanes]
        olds[lanes] = view[at]
        view[at] = new(olds[lanes], *(operand[lanes] for operand in operands))
    return olds


@cache
def _lane_names(count: int) -> tuple[str, ...]:
    return tuple(f"lane {lane}" for lane in range(count))


def in_order(g: Group, lanes: Array) -> Array:
    """The lanes as they are served: upwards from the one that the schedule chooses."""
    first = int(np.searchsorted(lanes, g.grid.choose("lanes", _lane_names(g.lanes))))
    return np.concatenate([lanes[first:], lanes[:first]]) if 0 < first < len(lanes) else lanes


class Atomic:
    """One atomic instruction, ready to be executed for a group."""

    def __init__(self, op: Op, *, wants: bool) -> None:
        self.operation, self.type, self.space = op["op"], op["type"], op["space"]
        self.what, self.wants, self.instruction = f"`{op.instruction.opcode}`", wants, op.instruction
        self.element = np.dtype(_DTYPES[self.type])
        self.count = int((op["vec"] or "v1")[1:])
        self.width = BITS[self.type] // 8 * self.count
        self.elements = self.width // self.element.itemsize
        self.storage = np.dtype(WIDTHS[BITS[self.type] // 8])
        self.single = "f16" if self.type == "f16x2" else "bf16" if self.type == "bf16x2" else self.type
        self.new = {
            flushes: change(self.operation, self.single, flushes=flushes) for flushes in (False, self.type == "f32")
        }
        self.ufunc = None if _is_float(self.type) else _UFUNCS.get(self.operation)
        self.orderless = self.ufunc is not None and not wants
        self.step = _ORDERED[self.operation][1] if self.operation in _ORDERED else None
        self.adds = self.operation == "add" and self.type in ("f32", "f64")
        self.rounds = is_exact_sum(self.operation, self.element)

    def run(self, g: Group, mask: Array | None, address: Any, operands: tuple[tuple[Any, ...], ...]) -> Array | None:
        """Serve all lanes; the old values as [part, lane] of the instruction's type, where they are wanted."""
        lanes = np.arange(g.lanes) if mask is None else np.flatnonzero(mask)
        if len(lanes) > 1 and not self.orderless:
            lanes = in_order(g, lanes)
        mine = np.full(len(lanes), address, np.uint64) if isinstance(address, int) else address[lanes]
        if not self.space.startswith("shared"):
            mine = mine.astype(np.uint64, copy=False)
        values = tuple(self._gathered(operand, lanes) for operand in operands)
        out = np.zeros((self.count, g.lanes), self.storage) if self.wants else None
        for cells in locate(g, self.space, mine, self.width, self.what):
            self._serve(g, cells, values, lanes, out)
        return out

    def serve_one(self, g: Group, address: Array, values: Array) -> None:
        """Serve some addresses in order, without old values: for operations that complete later."""
        lanes = np.arange(len(address))
        for cells in locate(g, self.space or "global", address, self.width, self.what):
            self._serve(g, cells, (values.view(self.element).reshape(len(lanes), -1),), lanes, None)

    def _gathered(self, operand: tuple[Any, ...], lanes: Array) -> Array:
        """An operand as [lane, element]."""
        table = np.empty((len(lanes), self.count), self.storage)
        for part, value in enumerate(operand):
            table[:, part] = value[lanes] if isinstance(value, np.ndarray) else value
        return table.view(self.element)

    def _serve(self, g: Group, cells: Cells, values: tuple[Array, ...], lanes: Array, out: Array | None) -> None:
        spots, brought = cells.index, values
        if cells.lanes is not None:
            lanes, brought = lanes[cells.lanes], tuple(value[cells.lanes] for value in values)
        if self.elements > 1:
            spots = (spots[:, None] * self.elements + np.arange(self.elements)).reshape(-1)
        view = cells.view.view(self.element)
        flat = tuple(value.reshape(-1) for value in brought)
        simple = np.add if self.adds and _accumulates(view[spots], flat[0]) else self.ufunc
        if self.rounds and g.grid.sums is not None:
            places = spots * self.element.itemsize + address_of(view)
            old, view[spots] = g.grid.sums.of(self.instruction).add(places, view[spots], flat[0])
            g.grid.effects += 1
            if out is not None:
                out[:, lanes] = old.view(self.storage).reshape(len(lanes), self.count).T
        elif simple is not None and out is None:
            simple.at(view, spots, flat[0])
            g.grid.effects += 1
        else:
            old, changed = self._in_turn(view, spots, flat, simple, flushes=self.type == "f32" and cells.shared is None)
            g.grid.effects += changed
            if out is not None:
                out[:, lanes] = old.view(self.storage).reshape(len(lanes), self.count).T
        if cells.shared is not None and cells.shared.two_views:
            assert cells.address is not None
            cells.shared.write(cells.address, cells.view[cells.index], self.width, None, self.what, g.number)

    def _in_turn(
        self, view: Array, spots: Array, values: tuple[Array, ...], simple: np.ufunc | None, *, flushes: bool
    ) -> tuple[Array, bool]:
        if self.element.itemsize == 16:
            return _serve_wide(view, spots, values, self.operation)
        return serve(view, spots, values, simple or self.new[flushes], simple, self.step)


def _serve_wide(view: Array, spots: Array, operands: tuple[Array, ...], operation: str) -> tuple[Array, bool]:
    """128-bit exchange and compare-and-swap, lane by lane on pairs of integers: NumPy has no such integer."""
    words = view.view(np.uint64).reshape(-1, 2)
    pairs = [operand.view(np.uint64).reshape(-1, 2) for operand in operands]
    old = np.empty((len(spots), 2), np.uint64)
    changed = False
    for lane, spot in enumerate(spots.tolist()):
        old[lane] = words[spot]
        if operation == "cas" and (pairs[0][lane] != old[lane]).any():
            continue
        words[spot] = pairs[-1][lane]
        changed = changed or bool((old[lane] != words[spot]).any())
    return old.view(np.complex128).reshape(-1), changed


@executes("atom")
def atom(op: Op) -> Run:
    """Change a cell and give its old value."""
    atomic = Atomic(op, wants=True)

    def run(g: Group, mask: Array | None, address: Any, *operands: Any) -> Any:
        old = atomic.run(g, mask, address, tuple((value,) for value in operands[:-1]))
        assert old is not None
        return old[0]

    return run


@executes("red")
def red(op: Op) -> Run:
    """Change a cell."""
    atomic = Atomic(op, wants=False)

    def run(g: Group, mask: Array | None, address: Any, value: Any, policy: Any = None) -> None:
        atomic.run(g, mask, address, ((value,),))

    return run


def _check_count(op: Op) -> None:
    for name in ("d", "b"):
        items = op.operands.get(name)
        if isinstance(items, Vector) and len(items.items) != int(op["vec"][1:]):
            what = f"the list {name} has {len(items.items)} items"
            raise Diag.BAD_OPERANDS.error(
                op.instruction.loc, text=op.instruction.text[:160], what=what, takes=f"{op['vec'][1:]} items"
            )


@executes("atom.vector")
def atom_vector(op: Op) -> Run:
    """Change neighbouring cells, each by itself, and give their old values."""
    _check_count(op)
    atomic = Atomic(op, wants=True)

    def run(g: Group, mask: Array | None, address: Any, values: tuple[Any, ...], policy: Any = None) -> Array | None:
        return atomic.run(g, mask, address, (values,))

    return run


@executes("red.vector")
def red_vector(op: Op) -> Run:
    """Change neighbouring cells, each by itself."""
    _check_count(op)
    atomic = Atomic(op, wants=False)

    def run(g: Group, mask: Array | None, address: Any, values: tuple[Any, ...], policy: Any = None) -> None:
        atomic.run(g, mask, address, (values,))

    return run


__all__ = ["Atomic", "Cells", "atom", "atom_vector", "locate", "red", "red_vector", "serve"]
