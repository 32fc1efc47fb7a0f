"""Loads and stores in every space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.copy.bulk import issuers, of_lane
from warploom.machine.core.registry import Run, executes
from warploom.machine.instructions.mbarrier import shared_address
from warploom.machine.memory.byte_memory import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    WIDTHS,
    WINDOW_BYTES,
    last_lane,
)
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.ptx.analysis.storage import size_of
from warploom.ptx.isa.table import BITS, Op
from warploom.ptx.syntax.model import Register, Sink, Vector

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]
_UNSIGNED = {bits: np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}
_SIGNED = {bits: np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)}


class Spaces:
    """Reads and writes of one instruction: the space it names, or for generic addresses the window they fall in."""

    def __init__(self, op: Op) -> None:
        self.space = op["space"].partition("::")[0]
        self.cluster = op["space"] == "shared::cluster"
        self.what = f"`{op.instruction.opcode}`"
        self.order = op["order"]

    def load(self, g: Group, mask: Array | None, address: Any, width: int) -> Any:
        """One unsigned value (uniform address) or one per lane."""
        space = self.space
        if space in ("global", "const"):
            live = mask if mask is not None else g.mask
            if g.grid.buffers is None or space == "const":
                return g.grid.memory.load(address, width, live, self.what)
            g.grid.buffers.touch(g, None, address, width, live)
            value = g.grid.memory.load(address, width, live, self.what)
            return g.grid.buffers.loaded(g, address, width, live, value, order=self.order)
        if space == "shared":
            live = self._live(g, mask, address)
            if g.grid.buffers is not None:
                g.grid.buffers.touch(g, g.cta.cluster, address, width, live)
            return self._shared(g, address).load(address, width, live, self.what)
        if space == "local":
            return self._local(g, address, width, mask)
        if space == "param":
            banked = self._in_bank(g, mask, address)
            if banked is None:
                return self._local(g, address, width, mask)
            return g.grid.params.load(banked, width, self._live(g, mask, address), self.what)
        return self._generic_load(g, mask, address, width)

    def store(self, g: Group, mask: Array | None, address: Any, value: Any, width: int) -> None:
        """Write one value or one per lane."""
        space = self.space
        if space == "shared":
            g.grid.count_local_effect()
        elif space:  # a generic store is one to each space that its addresses are in
            g.grid.effects += 1
        if space == "global":
            live = mask if mask is not None else g.mask
            if g.grid.buffers is not None:
                g.grid.buffers.add(g, g.grid.memory, address, value, width, live, self.what, order=self.order)
                return
            g.grid.memory.store(address, value, width, live, self.what)
        elif space == "shared":
            live = self._live(g, mask, address)
            if isinstance(address, int):
                value = last_lane(value, mask if mask is not None else g.mask)
            shared = self._shared(g, address)
            if g.grid.buffers is not None and not isinstance(shared, _Mixed):
                g.grid.buffers.add(g, shared, address, value, width, live, self.what, order=self.order)
                return
            shared.write(address, value, width, live, self.what, g.number)
        elif space == "local" or (space == "param" and self._in_bank(g, mask, address) is None):
            self._store_local(g, address, value, width, mask)
        elif space in ("const", "param"):
            raise Diag.READ_ONLY.error(what=self.what)
        else:
            self._generic_store(g, mask, address, value, width)

    def _in_bank(self, g: Group, mask: Array | None, address: Any) -> Any:
        """An address of the kernel's own parameters, without its window; None for a call's, on the stack."""
        base = g.grid.params.base
        if isinstance(address, int):
            near = address - PARAM_WINDOW if address >= PARAM_WINDOW else address
            return near if base <= near < LOCAL_WINDOW else None
        live = mask if mask is not None else g.mask
        if address.dtype == np.uint64:
            address = np.where(address >= PARAM_WINDOW, address - np.uint64(PARAM_WINDOW), address)
        return address if bool((address if live is None else address[live]).max() >= base) else None

    def _live(self, g: Group, mask: Array | None, address: Any) -> Array | None:
        return None if isinstance(address, int) else mask if mask is not None else g.mask

    def _shared(self, g: Group, address: Any) -> Any:
        """The shared memory an address points into: the CTA's own, or a peer's in the cluster."""
        own = g.cta.shared
        if not self.cluster and self.space == "shared":
            return own
        rank = address >> RANK_SHIFT if isinstance(address, int) else int(address.flat[0]) >> RANK_SHIFT
        ctas = g.cta.cluster.ctas
        if rank == g.cta.rank:
            return (
                own if isinstance(address, int) or not ((address >> np.uint32(RANK_SHIFT)) != rank).any() else _Mixed(g)
            )
        if isinstance(address, int) and rank >= len(ctas):
            own.fault(address, 1, self.what)
        return ctas[rank].shared if isinstance(address, int) else _Mixed(g)

    def _local(self, g: Group, address: Any, width: int, mask: Array | None) -> Any:
        local = g.warpgroup.local
        if local is None:
            raise Diag.OUT_OF_BOUNDS.error(what=self.what, space="local")
        return local.load(address, g.first_lane, g.lanes, width, mask if mask is not None else g.mask, self.what)

    def _store_local(self, g: Group, address: Any, value: Any, width: int, mask: Array | None) -> None:
        local = g.warpgroup.local
        if local is None:
            raise Diag.OUT_OF_BOUNDS.error(what=self.what, space="local")
        local.store(address, value, g.first_lane, g.lanes, width, mask if mask is not None else g.mask, self.what)

    def _generic_load(self, g: Group, mask: Array | None, address: Any, width: int) -> Any:
        if isinstance(address, int):
            return _window(address)(self).load(g, mask, _local_address(address), width)
        live = mask if mask is not None else g.mask
        out = np.zeros(len(address), WIDTHS[width])
        for space, lanes in by_window(address, live):
            part = _IN[space](self)
            copyable = part.load(g, lanes, without_window(address, space), width)
            out[lanes] = copyable[lanes] if isinstance(copyable, np.ndarray) else copyable
        return out

    def _generic_store(self, g: Group, mask: Array | None, address: Any, value: Any, width: int) -> None:
        if isinstance(address, int):
            _window(address)(self).store(g, mask, _local_address(address), value, width)
            return
        live = mask if mask is not None else g.mask
        for space, lanes in by_window(address, live):
            _IN[space](self).store(g, lanes, without_window(address, space), value, width)


class _Mixed:
    """Lanes that address the shared memory of different CTAs of the cluster."""

    def __init__(self, g: Group) -> None:
        self.g = g

    def _parts(self, address: Array, mask: Array | None) -> list[tuple[Any, Array]]:
        ranks = address >> np.uint32(RANK_SHIFT)
        live = np.ones(len(address), np.bool_) if mask is None else mask
        ctas = self.g.cta.cluster.ctas
        out = []
        for rank in np.unique(ranks[live]).tolist():
            lanes = live & (ranks == rank)
            if rank >= len(ctas):
                self.g.cta.shared.fault(int(address[lanes.argmax()]), 1, "the access")
            out.append((ctas[rank].shared, lanes))
        return out

    def load(self, address: Array, width: int, mask: Array | None, what: str) -> Array:
        out = np.zeros(len(address), WIDTHS[width])
        for shared, lanes in self._parts(address, mask):
            out[lanes] = shared.load(address[lanes], width, None, what)
        return out

    def write(self, address: Array, value: Any, width: int, mask: Array | None, what: str, warp: int) -> None:
        buffers = self.g.grid.buffers
        for shared, lanes in self._parts(address, mask):
            if buffers is not None:
                buffers.add(self.g, shared, address, value, width, lanes, what)
                continue
            shared.write(
                address[lanes], value[lanes] if isinstance(value, np.ndarray) else value, width, None, what, warp
            )


class _Fixed(Spaces):
    """The same instruction bound to one space."""

    def __init__(self, parent: Spaces, space: str) -> None:
        self.space, self.cluster, self.what = space, space == "shared", parent.what
        self.order = parent.order


_IN = {space: (lambda parent, space=space: _Fixed(parent, space)) for space in ("global", "shared", "local", "param")}


def _window_name(address: int) -> str:
    if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
        return "shared"
    if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES:
        return "local"
    return "param" if PARAM_WINDOW <= address < PARAM_WINDOW + WINDOW_BYTES else "global"


_BASES = {"global": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": 0}


def _window(address: int) -> Any:
    return _IN[_window_name(address)]


def _local_address(address: int) -> int:
    return address - _BASES[_window_name(address)]


def without_window(address: Array, space: str) -> Array:
    if space == "shared":
        return (address - np.uint64(SHARED_WINDOW)).astype(np.uint32)
    return address - np.uint64(_BASES[space])


def by_window(address: Array, live: Array | None) -> list[tuple[str, Array]]:
    """The lanes that fall in each window."""
    active = np.ones(len(address), np.bool_) if live is None else live
    high = address >> np.uint64(WINDOW_BYTES.bit_length() - 1)
    out = []
    for value in np.unique(high[active]).tolist():
        lanes = active & (high == value)
        out.append((_window_name(int(address[lanes.argmax()])), lanes))
    merged: dict[str, Array] = {}
    for space, lanes in out:
        merged[space] = merged[space] | lanes if space in merged else lanes
    return list(merged.items())


def _extend(op: Op, type_: str, operand: object) -> Any:
    """The type through which a loaded value is widened to its register: signed for s-types, else unsigned; None for
    none.
    """
    bits = BITS[type_]
    if not type_.startswith("s") or bits >= 64:
        return None

    def widen(value: Any) -> Any:
        if isinstance(value, int):
            top = 1 << (bits - 1)
            return ((value ^ top) - top) & 0xFFFFFFFFFFFFFFFF
        return value.view(_SIGNED[bits]).astype(np.int64).view(np.uint64)

    return widen


@executes("ld", "ldu")
def load(op: Op) -> Run:
    """Read one or several elements per lane."""
    spaces, type_ = Spaces(op), op["type"]
    element = BITS[type_] // 8
    out = op.operands["d"]
    if isinstance(out, Vector):
        return _load_vector(op, spaces, element, out)
    widen = _extend(op, type_, out)

    def run(g: Group, mask: Array | None, address: Any, policy: Any = None) -> Any:
        value = spaces.load(g, mask, address, element)
        if widen is not None:
            value = widen(value)
            if not isinstance(value, int):
                return _fit(value, g, out)
            return value & _mask_of(g, out)
        return value

    return run


def _mask_of(g: Group, out: object) -> int:
    if isinstance(out, Sink):
        return 0
    assert isinstance(out, Register)
    return int((1 << g.cta.program.layout.places[out.name].bits) - 1)


def _fit(value: Array, g: Group, out: object) -> Array:
    if isinstance(out, Sink):
        return value
    assert isinstance(out, Register)
    bits = g.cta.program.layout.places[out.name].bits
    if bits > 64:
        raise Diag.NOT_MODELLED.error(what=f"A load of a signed type to {out.name}, a register of {bits} bits,")
    return value.astype(_UNSIGNED[max(bits, 16)])


def _load_vector(op: Op, spaces: Spaces, element: int, out: Vector) -> Run:
    count = int(op["vec"][1:])
    widen = _extend(op, op["type"], None)
    if len(out.items) != count:
        raise Diag.BAD_OPERANDS.error(
            op.instruction.loc,
            text=op.instruction.text[:160],
            what=f"the list has {len(out.items)} items",
            takes=f"{count} items",
        )
    total = element * count
    piece = min(total, 16)
    dtype = _UNSIGNED[element * 8] if element < 16 else np.dtype(np.complex128)

    def run(g: Group, mask: Array | None, address: Any, policy: Any = None) -> Any:
        pieces = []
        for offset in range(0, total, piece):
            at = address + offset if isinstance(address, int) else address + address.dtype.type(offset)
            value = spaces.load(g, mask, at, piece)
            flat = value if isinstance(value, np.ndarray) and value.ndim else np.array([value], WIDTHS[piece])
            pieces.append(np.ascontiguousarray(flat).view(dtype).reshape(len(flat), piece // element))
        table = (pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)).T
        if isinstance(address, int) and table.shape[1] == 1:
            values = [int(v) for v in table[:, 0]] if element < 16 else list(table[:, 0])
            if widen is not None:
                return [widen(v) & _mask_of(g, item) for v, item in zip(values, out.items, strict=True)]
            return values
        if widen is not None:
            return [_fit(widen(np.ascontiguousarray(row)), g, item) for row, item in zip(table, out.items, strict=True)]
        return table

    return run


@executes("st")
def store(op: Op) -> Run:
    """Write one or several elements per lane."""
    spaces, type_ = Spaces(op), op["type"]
    element = BITS[type_] // 8
    source = op.operands["b"]
    if isinstance(source, Vector):
        return _store_vector(op, spaces, element, source)
    dtype = _UNSIGNED[element * 8] if element < 16 else np.dtype(np.complex128)

    def run(g: Group, mask: Array | None, address: Any, value: Any, policy: Any = None) -> None:
        if isinstance(value, np.ndarray) and value.dtype != dtype:
            value = value.astype(dtype)
        spaces.store(g, mask, address, value, element)

    return run


def _store_vector(op: Op, spaces: Spaces, element: int, source: Vector) -> Run:
    count = int(op["vec"][1:])
    if len(source.items) != count:
        raise Diag.BAD_OPERANDS.error(
            op.instruction.loc,
            text=op.instruction.text[:160],
            what=f"the list has {len(source.items)} items",
            takes=f"{count} items",
        )
    total = element * count
    piece = min(total, 16)
    dtype = _UNSIGNED[element * 8] if element < 16 else np.dtype(np.complex128)

    def run(g: Group, mask: Array | None, address: Any, values: tuple[Any, ...], policy: Any = None) -> None:
        table = np.empty((g.lanes, count), dtype)
        for part, value in enumerate(values):
            table[:, part] = value
        wide = table.view(WIDTHS[piece])
        for part, offset in enumerate(range(0, total, piece)):
            at = address + offset if isinstance(address, int) else address + address.dtype.type(offset)
            spaces.store(g, mask, at, np.ascontiguousarray(wide[:, part]), piece)

    return run


@executes("isspacep")
def is_space(op: Op) -> Run:
    """Test whether a generic address falls in a window; without a qualifier, `.shared` is the thread's own CTA's."""
    space = op["space"]

    def run(g: Group, mask: Array | None, address: Any) -> Any:
        constants = _constants(g)
        if isinstance(address, int):
            return space in _spaces_of(g, address, constants)
        return np.array([space in _spaces_of(g, each, constants) for each in address.tolist()])

    return run


def _constants(g: Group) -> list[range]:
    """The addresses of constant variables, which are in global memory here and in a window of their own on a GPU."""
    variables = g.grid.program.module.variables
    placed = [(g.grid.symbols.get(each.name), size_of(each)) for each in variables if each.space == "const"]
    return [range(first, first + size) for first, size in placed if first is not None]


def _spaces_of(g: Group, address: int, constants: list[range]) -> tuple[str, ...]:
    """The spaces, as `isspacep` names them, that a generic address is in for a thread of a group."""
    window = _window_name(address)
    if window == "shared":
        own = (address - SHARED_WINDOW) >> RANK_SHIFT == g.cta.rank
        return ("shared", "shared::cta", "shared::cluster") if own else ("shared::cluster",)
    if window == "param":
        return ("param", "param::entry")
    return ("const",) if window == "global" and any(address in each for each in constants) else (window,)


@executes("createpolicy")
def create_policy(op: Op) -> Run:
    """A cache policy: the emulator has no caches, so any value works."""

    def run(g: Group, mask: Array | None, *operands: Any) -> int:
        return 0

    return run


__all__ = ["OFFSET_MASK", "Spaces", "create_policy", "is_space", "load", "store"]


_WORD = 8


@executes("st.bulk")
def clear(op: Op) -> Run:
    """A run of zeros in shared memory, stored by each lane; synchronous, unlike a bulk copy."""
    opcode = op.instruction.opcode

    def run(g: Group, mask: Array | None, address: Any, size: Any, value: int) -> None:
        for lane in issuers(g, g.mask if mask is None else mask):
            start, count = shared_address(of_lane(address, lane)), of_lane(size, lane)
            if start % _WORD or count % _WORD or value:
                what = (
                    f"{count} bytes of {value} at {start:#x}; address and size are multiples of {_WORD}, the value is 0"
                )
                raise Diag.BAD_SHAPE.error(text=opcode, what=what)
            g.grid.effects += 1
            most = g.cta.shared.size + _WORD  # so many are outside anyhow
            words = np.arange(start, start + min(count, most), _WORD, dtype=np.uint64)
            if count:
                g.cta.shared.write(words, np.zeros(len(words), np.uint64), _WORD, None, f"`{opcode}`", g.number)

    return run
