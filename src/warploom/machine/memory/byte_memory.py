"""Byte memories: global buffers, parameters, local memory, and what loads and stores have in common.

A memory is one array of bytes with a view per access width; an access is one gather or scatter of all lanes. NumPy's
own index check finds what lies outside, and only then is the exact lane looked for.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.memory import guard_pages

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

WIDTHS: dict[int, npt.DTypeLike] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
SHIFTS = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}

GLOBAL_BASE = 0x7F_0000_0000
GLOBAL_GAP = 1 << 20
_NEAR = 1 << 36
"""An address that is farther from every buffer is not described by its distance: an index of 32 bits that overflowed
comes as far as this."""
_OVERFLOW = 1 << 31
"""An address at least as far from its buffer may come from an index that overflowed."""
_NULL = 1 << 16
"""A smaller address comes from a null pointer."""
SHARED_WINDOW = 0x1000_0000_0000
LOCAL_WINDOW = 0x2000_0000_0000
PARAM_WINDOW = 0x3000_0000_0000
WINDOW_BYTES = 1 << 32


def padded(size: int, *, zero: bool = False) -> Bytes:
    """Bytes, uninitialised or zero, 16-byte aligned and a multiple of 16 long, so that every width has a view."""
    whole = (size + 15) & ~15
    if guard_pages.are_wanted():  # they are aligned, and zero
        return guard_pages.empty(whole, np.uint8)
    raw: Bytes = (np.zeros if zero else np.empty)(whole + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + whole]


@dataclass(slots=True)
class Region:
    """One buffer of global memory: its address in the kernel, and its bytes."""

    base: int
    size: int
    data: Bytes
    writeable: bool
    name: str
    _views: dict[int, Array] = field(default_factory=dict, repr=False, compare=False)

    def view(self, width: int) -> Array:
        """The whole elements of a width, made once: every access asks for them."""
        found = self._views.get(width)
        if found is None:
            whole = self.size // width * width
            found = self._views[width] = self.data[:whole].view(WIDTHS[width])
        return found


class GlobalMemory:
    """The buffers of a launch at deterministic addresses with unmapped gaps between them."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._bases: list[int] = []
        self._roots: dict[int, tuple[Region, int]] = {}
        self._keep: list[Array] = []
        self._next = GLOBAL_BASE
        self.watchers: list[Callable[[], None]] = []
        """Called whenever the buffers change."""

    def map_array(self, array: Array, name: str, *, at_host_address: bool = False) -> int:
        """Map the memory an array lives in, once per owner: aliases stay aliases. The address of its first element."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        low, high = np.lib.array_utils.byte_bounds(root)
        mine, end = np.lib.array_utils.byte_bounds(array)
        if not (low <= mine and end <= high):
            low, high = mine, end
        if low not in self._roots:
            size = high - low
            bytes_ = memoryview((ctypes.c_uint8 * size).from_address(low)) if size else b""
            # Messages about elements use the array itself, where it is all of the memory.
            whole = array.flags.c_contiguous and (mine, end) == (low, high)
            self._keep.append(array if whole else root)
            region = self.add(
                np.frombuffer(bytes_, np.uint8),
                name,
                writeable=bool(array.flags.writeable),
                base=low if at_host_address else None,
            )
            self._roots[low] = (region, low)
        region, low = self._roots[low]
        if array.flags.writeable and not region.writeable:
            region.writeable = True
            self._changed()
        first: int = array.__array_interface__["data"][0]
        return region.base + (first - low)

    def add(self, data: Bytes, name: str, *, writeable: bool = True, base: int | None = None) -> Region:
        """Give bytes the next address, or the one asked for."""
        region = Region(self._next if base is None else base, len(data), data, writeable, name)
        at = bisect_right(self._bases, region.base)
        self.regions.insert(at, region)
        self._bases.insert(at, region.base)
        if base is None:
            self._next += (len(data) + 2 * GLOBAL_GAP - 1) // GLOBAL_GAP * GLOBAL_GAP
        self._changed()
        return region

    def _changed(self) -> None:
        for watcher in self.watchers:
            watcher()

    @property
    def arrays(self) -> list[tuple[Region, Array]]:
        """The regions of the caller's arrays, each with the array that owns the memory."""
        return [(region, root) for (region, _), root in zip(self._roots.values(), self._keep, strict=True)]

    def discard(self, base: int) -> None:
        """Take a region away; its addresses are not given again."""
        at = bisect_right(self._bases, base) - 1
        if at >= 0 and self.regions[at].base == base:
            del self.regions[at], self._bases[at]
            self._changed()

    def find(self, address: int, size: int) -> Region | None:
        """The buffer that holds a whole range, or None."""
        at = bisect_right(self._bases, address) - 1
        if at < 0:
            return None
        region = self.regions[at]
        return region if address + size <= region.base + region.size else None

    def describe(self, address: int) -> str:
        """Describe the buffer at or near an address, for a fault's message."""
        at = bisect_right(self._bases, address) - 1
        below = self.regions[at] if at >= 0 else None
        above = self.regions[at + 1] if at + 1 < len(self.regions) else None
        if below is not None and address < below.base + below.size:
            return f"address {address:#x} is byte {address - below.base} of `{below.name}` ({below.size} bytes)"
        if address < _NULL:
            return f"address {address:#x} is near 0: a null pointer"
        past = address - below.base - below.size if below is not None else None
        if (past is None or past > _NEAR) and (above is None or above.base - address > _NEAR):
            first = self._bases[0] if self._bases else GLOBAL_BASE
            return f"address {address:#x} is in no buffer; they begin at {first:#x}"
        if above is not None and (past is None or above.base - address <= past):
            distance, where, nearest = above.base - address, "before", above
        elif below is None or past is None:
            return f"address {address:#x} is in no buffer: the launch has none"
        else:
            distance, where, nearest = past, "past the end of", below
        place = f"is {_bytes(distance)} {where}" if distance else "is the first byte after"
        why = ": an index may have overflowed" if distance >= _OVERFLOW else ""
        return f"address {address:#x} {place} `{nearest.name}` ({nearest.size} bytes){why}"

    def load(self, address: int | Array, width: int, mask: Array | None, what: str) -> Any:
        """One value for a uniform address, else one per lane (zero where masked off)."""
        if isinstance(address, int):
            region = self._checked(address, width, what)
            offset = address - region.base
            value = region.view(width)[offset >> SHIFTS[width]] if (address - region.base) % width == 0 else 0
            return value if width == 16 else int(value)
        if mask is not None:
            out = np.zeros(len(address), WIDTHS[width])
            out[mask] = self.load(address[mask], width, None, what)
            return out
        region_ = self.find(int(address[0]), width)
        if region_ is not None:
            index, view = _rotated(address, region_.base, width), region_.view(width)
            if np.maximum.reduce(index) < len(view):
                return view.take(index.view(np.int64))
            self._index(address, region_, width, what)  # raises where one is misaligned
        return np.array([self.load(int(a), width, None, what) for a in address], WIDTHS[width])

    def store(self, address: int | Array, value: Any, width: int, mask: Array | None, what: str) -> None:
        """Write one value per lane; where lanes collide the last lane wins."""
        if isinstance(address, int):
            region = self._checked(address, width, what)
            self._check_writeable(region, what)
            region.view(width)[(address - region.base) >> SHIFTS[width]] = last_lane(value, mask)
            return
        if mask is not None:
            address = address[mask]
            value = value[mask] if isinstance(value, np.ndarray) else value
        region_ = self.find(int(address[0]), width)
        if region_ is not None:
            index, view = _rotated(address, region_.base, width), region_.view(width)
            if np.maximum.reduce(index) < len(view):
                self._check_writeable(region_, what)
                view[index.view(np.int64)] = value
                return
            self._index(address, region_, width, what)  # raises where one is misaligned
        for lane, each in enumerate(address):
            self.store(int(each), value[lane] if isinstance(value, np.ndarray) else value, width, None, what)

    def locate(self, address: Array, width: int, what: str) -> list[tuple[Array, Array, Array | None]]:
        """Locate addresses, for an access that writes: (elements of a buffer, index, positions or None for all)."""
        region = self.find(int(address[0]), width)
        if region is not None:
            index = self._index(address, region, width, what)
            if index is not None and int(index.max()) < region.size // width:
                self._check_writeable(region, what)
                return [(region.view(width), index.astype(np.intp), None)]
        regions = [self._checked(each, width, what) for each in address.tolist()]
        found: list[tuple[Array, Array, Array | None]] = []
        for region in {id(each): each for each in regions}.values():
            self._check_writeable(region, what)
            lanes = np.array([lane for lane, each in enumerate(regions) if each is region])
            index = (address[lanes] - np.uint64(region.base)) >> np.uint64(SHIFTS[width])
            found.append((region.view(width), index.astype(np.intp), lanes))
        return found

    def _index(self, address: Array, region: Region, width: int, what: str) -> Array | None:
        offset = address - np.uint64(region.base)
        if width > 1:
            if (offset & np.uint64(width - 1)).any():
                bad = int(address[((offset & np.uint64(width - 1)) != 0).argmax()])
                raise Diag.MISALIGNED.error(notes=(self.describe(bad),), what=what, align=width, address=bad)
            return offset >> np.uint64(SHIFTS[width])
        return offset if bool((offset < np.uint64(region.size)).all()) else None

    def _checked(self, address: int, width: int, what: str) -> Region:
        if address % width:
            raise Diag.MISALIGNED.error(notes=(self.describe(address),), what=what, align=width, address=address)
        region = self.find(address, width)
        if region is None:
            raise Diag.OUT_OF_BOUNDS.error(notes=(self.describe(address),), what=what, space="global", address=address)
        return region

    def _check_writeable(self, region: Region, what: str) -> None:
        if not region.writeable:
            raise Diag.READ_ONLY.error(notes=(f"the buffer is `{region.name}`",), what=what)


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


def last_lane(value: Any, mask: Array | None) -> Any:
    """The value that survives when all lanes write one place."""
    if not isinstance(value, np.ndarray):
        return value
    return value[-1] if mask is None else value[np.flatnonzero(mask)[-1]]


_ADDRESS = np.dtype(np.uint64)


@lru_cache(maxsize=256)
def _rotation(dtype: np.dtype[Any], base: int, width: int) -> tuple[Array, Array, Array]:
    """The operands of an address rotation, as arrays of zero dimensions: ufuncs take them quickest."""
    down = SHIFTS[width]
    return np.array(base, dtype), np.array(down, dtype), np.array(8 * dtype.itemsize - down, dtype)


def _rotated(address: Array, base: int, width: int) -> Array:
    """Element numbers of 64-bit addresses from a base on.

    A right rotation moves the bits of a misaligned offset to the top, so that one comparison finds all that is wrong.
    """
    start, down, up = _rotation(_ADDRESS, base, width)
    offset = address - start
    if width == 1:
        return offset
    index: Array = offset >> down
    index |= offset << up
    return index


class FlatMemory:
    """A single block of bytes addressed from `base`: shared memory and the parameter bank."""

    def __init__(self, data: Bytes, base: int, size: int, space: str) -> None:
        self.data, self.base, self.size, self.space = data, base, size, space
        self.views: dict[int, Array] = {width: data.view(dtype) for width, dtype in WIDTHS.items()}

    def load(self, address: int | Array, width: int, mask: Array | None, what: str) -> Any:
        """One value for a uniform address, else one per lane (zero where masked off)."""
        if isinstance(address, int):
            offset = address - self.base
            if offset % width or not 0 <= offset <= self.size - width:
                self.fault(address, width, what)
            value = self.views[width][offset >> SHIFTS[width]]
            return value if width == 16 else int(value)
        if mask is not None:
            out = np.zeros(len(address), WIDTHS[width])
            out[mask] = self.load(address[mask], width, None, what)
            return out
        return self.views[width][self.index(address, width, what)]

    def store(self, address: int | Array, value: Any, width: int, mask: Array | None, what: str) -> None:
        """Write one value per lane; where lanes collide the last lane wins."""
        if isinstance(address, int):
            offset = address - self.base
            if offset % width or not 0 <= offset <= self.size - width:
                self.fault(address, width, what)
            self.views[width][offset >> SHIFTS[width]] = last_lane(value, mask)
            return
        if mask is not None:
            address = address[mask]
            value = value[mask] if isinstance(value, np.ndarray) else value
        self.views[width][self.index(address, width, what)] = value

    def index(self, address: Array, width: int, what: str) -> Array:
        """Element indices for lane addresses, all aligned and inside.

        A right rotation moves the bits of a misaligned offset to the top, so that one comparison finds both faults.
        """
        base, down, up = _rotation(address.dtype, self.base, width)
        offset = address - base
        index: Array = offset >> down
        index |= offset << up
        last = (self.size >> SHIFTS[width]) - 1
        if np.maximum.reduce(index, initial=0) > last:
            self.fault(int(address[(index > last).argmax()]), width, what)
        return index

    def fault(self, address: int, width: int, what: str) -> None:
        """Say what is wrong with an address."""
        notes = (self.describe(address),)
        if address % width:
            raise Diag.MISALIGNED.error(notes=notes, what=what, align=width, address=address)
        raise Diag.OUT_OF_BOUNDS.error(notes=notes, what=what, space=self.space, address=address)

    def describe(self, address: int) -> str:
        """Locate an address."""
        byte = address - self.base
        if byte < 0:
            own = f"{self.space} memory, whose {self.size} bytes begin at {self.base:#x}"
            return f"address {address:#x} is below {own}"
        past = byte - self.size
        beyond = f"is {_bytes(past)} past the end of" if past else "is the first byte after"
        where = f"is byte {byte} of" if past < 0 else beyond
        return f"address {address:#x} {where} {self.size} bytes of {self.space} memory"


class LocalMemory:
    """Private bytes of each thread of a warpgroup: one row per lane."""

    def __init__(self, lanes: int, size: int) -> None:
        self.size = (size + 15) & ~15
        self.rows = padded(lanes * max(self.size, 16))
        self.lanes = lanes
        self.begin()

    def begin(self) -> None:
        """Begin as the memory of other threads: nothing may be read before it is written."""
        self.rows.fill(0xFF)

    def flat(self, address: int | Array, first: int, lanes: int, width: int, mask: Array | None, what: str) -> Array:
        """Byte offsets in the whole block for each lane's own address."""
        own = np.full(lanes, address, np.uint64) if isinstance(address, int) else address.astype(np.uint64)
        live = own if mask is None else own[mask]
        if len(live) and (int(live.max()) > self.size - width or (live & np.uint64(width - 1)).any()):
            bad = int(live.max())
            if bad > self.size - width:
                note = f"address {bad:#x} lies outside the {self.size} bytes that each thread has"
                raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what=what, space="local", address=bad)
            bad = int(live[((live & np.uint64(width - 1)) != 0).argmax()])
            note = f"address {bad:#x} of the {self.size} bytes that each thread has"
            raise Diag.MISALIGNED.error(notes=(note,), what=what, align=width, address=bad)
        return own + (np.arange(first, first + lanes, dtype=np.uint64) * np.uint64(self.size))

    def load(self, address: int | Array, first: int, lanes: int, width: int, mask: Array | None, what: str) -> Array:
        index = self.flat(address, first, lanes, width, mask, what) >> np.uint64(SHIFTS[width])
        if mask is not None:
            index[~mask] = 0
        out: Array = self.rows.view(WIDTHS[width])[index]
        return out

    def store(
        self, address: int | Array, value: Any, first: int, lanes: int, width: int, mask: Array | None, what: str
    ) -> None:
        index = self.flat(address, first, lanes, width, mask, what) >> np.uint64(SHIFTS[width])
        values = np.broadcast_to(np.asarray(value).astype(WIDTHS[width], copy=False), (lanes,))
        if mask is not None:
            index, values = index[mask], values[mask]
        self.rows.view(WIDTHS[width])[index] = values
