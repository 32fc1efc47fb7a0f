"""The shadow of a memory: the last write and the later reads of every byte.

Bytes that were always accessed together form an *atom*, which holds their accesses once. A region (the bytes of one
access) is a list of atoms; an access that covers part of an atom splits it. Pipelines access the same regions again and
again, so that a stage of a pipeline soon is a few atoms, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.checker.model.clocks import Components, Rows, Triple
from warploom.diagnostics import Loc
from warploom.machine.observers.events import Source, Touch
from warploom.machine.observers.layouts import Layout
from warploom.ptx.syntax.model import Instruction

Array = npt.NDArray[Any]
_COARSE = 4
"""Cells start with 16 bytes, and become smaller where an access needs it."""
_OFFSET, _WORD = 0xFFFFFF, 4
"""The bits of an address of shared memory without the CTA's rank, and the bytes of a column of TMEM."""
_MOST_REGIONS = 1 << 14
_MOST_TOUCHES = 1024
_MOST_BEFORE = 64
"""Accesses before a strong write that are kept."""


class Acquire(NamedTuple):
    """A fence that has acquired a tensor map: its component and time, and the lanes that executed it."""

    component: int
    time: int
    warp: int
    lanes: int


class Access:
    """One read or write, as the shadow keeps it."""

    __slots__ = (
        "acquired", "addresses", "asynchronous", "barrier", "begins", "changes", "component", "components",
        "cta", "group", "incoherent", "lanes", "layout", "limits", "map", "met", "name", "phase", "pipe", "proxy",
        "repeated", "rounds", "scope", "source", "space", "value", "warp", "width", "writes",
    )  # fmt: skip

    def __init__(
        self, source: Source, cta: Triple, warp: int, lanes: int, writes: bool, space: str, proxy: str,
        components: Components, component: int, value: int | None,
    ) -> None:  # fmt: skip
        self.source, self.cta, self.warp, self.lanes = source, cta, warp, lanes
        self.writes, self.space, self.proxy = writes, space, proxy
        self.components, self.component, self.value = components, component, value
        self.scope = ""
        """The scope of a strong access; empty for a weak one."""
        self.changes = True
        self.rounds = False
        """True for a store that differs by its rounding from what earlier warps store with the same instruction."""
        self.incoherent = False
        """True for `ld.global.nc`, which does not see what the launch writes."""
        self.addresses: Array | None = None
        """Of a weak access of lanes to shared memory: one address for each lane, or one for all of them."""
        self.width = 0
        self.limits: dict[int, int] | None = None
        """By components of lanes of its warp: the times up to which the lanes know each other's accesses."""
        self.met = 0
        """The time of the last synchronisation of its lanes."""
        self.begins = -1
        """Of `mbarrier.init`: the address of the barrier."""
        self.repeated = False
        """True for a strong read that its warp repeats at once: it did not find the value that the warp waits for."""
        self.asynchronous = False
        self.pipe: object = None
        self.barrier = ""
        self.phase: int | None = None
        self.layout: Layout | None = None
        """The layout of the tile that a tensor copy writes or reads in shared memory."""
        self.map = 0
        """The address of the tensor map that is read through the proxy `tensormap`."""
        self.acquired: dict[tuple[int, Triple], tuple[Acquire, ...]] | None = None
        """Of a write, by the address of a tensor map and a CTA: the fences that have acquired the map since."""
        self.group: tuple[int, int] | None = None
        """Of a read of a tensor map by a load: its place among the bulk groups of its thread, as if it were in one."""

    def of_cluster(self, cta: Triple, components: Components) -> Access:
        """The same access of another cluster that does the same."""
        made = Access(
            self.source, cta, self.warp, self.lanes, self.writes, self.space, self.proxy, components, self.component,
            self.value,
        )  # fmt: skip
        made.scope, made.changes, made.rounds, made.repeated, made.asynchronous = (
            self.scope, self.changes, self.rounds, self.repeated, self.asynchronous,
        )  # fmt: skip
        made.barrier, made.phase, made.map = self.barrier, self.phase, self.map
        return made


PASSED_OVER, PASSED_READ = (
    Access(
        Source(Loc("<machine>", 0), Instruction("")), (0, 0, 0), 0, 0, writes=writes, space="global", proxy="generic",
        components=Components((-1, -1, -1)), component=-1, value=None,
    )
    for writes in (True, False)
)  # fmt: skip
"""A write and a read that were not judged: another access to these bytes would have to be judged with the write, and a
write with the read.
"""


class Atom:
    """Bytes that are always accessed together: the last write, the reads since, and what came before a strong write."""

    __slots__ = ("reads", "size", "write")

    def __init__(self, size: int, write: Access | None = None, reads: tuple[Access, ...] = ()) -> None:
        self.size, self.write, self.reads = size, write, reads


class _Page:
    __slots__ = ("atoms", "shift")

    def __init__(self, size: int) -> None:
        self.shift = _COARSE
        self.atoms = np.zeros(size >> _COARSE, np.int32)

    def refine(self, shift: int) -> None:
        if shift < self.shift:
            self.atoms = np.repeat(self.atoms, 1 << self.shift - shift)
            self.shift = shift


Pair = tuple[Access, bool]
"""An earlier access of a pair; True for a write whose bytes the agent of the later write has read since."""


Sight = tuple[Rows | None, int, int]
"""The knowledge of an agent that makes an access: its clock's rows, and the rows in which accesses of the generic proxy
and those of other proxies must be known. Without rows, every pair is to be judged.
"""
BLIND: Sight = (None, 0, 0)


class Shadow:
    """The shadow of one memory: of a CTA's shared memory or TMEM, or of an array in global memory."""

    def __init__(self, page_bits: int, *, recurring: bool) -> None:
        self._bits, self._recurring = page_bits, recurring
        self._pages: dict[int, _Page] = {}
        self.atoms: list[Atom] = [Atom(0)]
        self._regions: dict[tuple[int, bytes], list[int]] = {}
        self._of_touches: dict[int, tuple[Touch, list[int]]] = {}
        """The regions of touches that recur as the same object."""
        self._members: dict[int, list[list[int]]] = {}

    def region_of(self, touch: Touch, linear: Callable[[Touch], Array]) -> list[int]:
        """The atoms of a touch that comes again and again as the same object, as operands of MMAs do."""
        found = self._of_touches.get(id(touch))
        if found is not None and found[0] is touch:
            return found[1]
        region = self.region(linear(touch), touch.width)
        if len(self._of_touches) >= _MOST_TOUCHES:
            self._of_touches.clear()
        if len(self._regions) < _MOST_REGIONS:  # this one is kept up to date where its atoms are split
            self._of_touches[id(touch)] = (touch, region)
        return region

    def region(self, addresses: Array, width: int) -> list[int]:
        """The atoms of the bytes that an access touches."""
        key = (width, addresses.tobytes()) if self._recurring else (0, b"")
        found = self._regions.get(key) if self._recurring else None
        if found is not None:
            return found
        atoms = list[int]()
        for page, cells in (
            self._known_cells(key, addresses, width) if self._recurring else self._cells(addresses, width)
        ):
            self._take(page, cells, atoms)
        if self._recurring and len(self._regions) < _MOST_REGIONS:
            self._regions[key] = atoms
            for each in atoms:
                self._members.setdefault(each, []).append(atoms)
        return atoms

    def _known_cells(self, key: tuple[int, bytes], addresses: Array, width: int) -> list[tuple[_Page, Any]]:
        """The cells of bytes that CTAs access one after the other, worked out once for all of them."""
        number, shift = _PLACES.get(key, (-1, 0))
        if number >= 0:
            page = self._page(number, shift)
            cells = _CELLS.get((page.shift, *key))
            if cells is not None:
                return [(page, cells)]
        found = self._cells(addresses, width)
        if len(found) == 1 and len(_CELLS) < _MOST_CELLS:
            ((page, cells),) = found
            first = int(addresses.flat[0])
            _PLACES[key] = (first >> self._bits, _alignment(addresses, width))
            _CELLS[page.shift, *key] = cells
        return found

    def _cells(self, addresses: Array, width: int) -> list[tuple[_Page, Any]]:
        low = int(addresses.min()) if len(addresses) > 1 else int(addresses[0])
        high = int(addresses.max()) if len(addresses) > 1 else low
        first, last = low >> self._bits, (high + width - 1) >> self._bits
        shift = _alignment(addresses, width)
        mask = (1 << self._bits) - 1
        if first == last:
            page = self._page(first, shift)
            return [(page, _index(addresses & mask, width, page.shift))]
        out = []
        pages = addresses >> self._bits
        if np.array_equal(pages, addresses + (width - 1) >> self._bits):  # no run goes across a border
            for number in np.unique(pages).tolist():
                page = self._page(number, shift)
                out.append((page, _index(addresses[pages == number] & mask, width, page.shift)))
            return out
        spread = (addresses[:, None] + np.arange(0, width, 1 << shift)).reshape(-1)
        numbers = spread >> self._bits
        for number in np.unique(numbers).tolist():
            page = self._page(number, shift)
            inside = spread[numbers == number] & mask
            out.append((page, _index(inside, 1 << shift, page.shift)))
        return out

    def _page(self, number: int, shift: int) -> _Page:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _Page(1 << self._bits)
        page.refine(shift)
        return page

    def _take(self, page: _Page, cells: Any, out: list[int]) -> None:
        """Add the atoms of some cells of a page; those that are only partly covered are split."""
        held = page.atoms[cells]
        first = int(held.flat[0])
        if (held == first).all():
            numbers, counts = [first], [held.size]
        else:
            numbers, counts = _counted(held, len(self.atoms))
        for number, count in zip(numbers, counts, strict=True):
            size = count << page.shift
            if number and self.atoms[number].size == size:
                out.append(number)
                continue
            new = len(self.atoms)
            if number:
                whole = self.atoms[number]
                whole.size -= size
                self.atoms.append(Atom(size, whole.write, whole.reads))
                for region in self._members.get(number, ()):
                    region.append(new)
                self._members[new] = list(self._members.get(number, ()))
            else:
                self.atoms.append(Atom(size))
            if len(numbers) == 1:
                page.atoms[cells] = new
            elif isinstance(cells, slice):
                page.atoms[cells] = np.where(held == number, new, page.atoms[cells])
            else:
                page.atoms[cells[held == number]] = new
            out.append(new)

    def access(self, region: list[int], new: Access, sight: Sight = BLIND) -> tuple[bool, list[Pair]]:
        """Keep an access: True if it reads a byte that nothing has written, and the pairs that are to be judged.

        An earlier access that is in sight needs no judgement: most are.
        """
        atoms, fresh, pairs = self.atoms, False, list[Pair]()
        component, components = new.component, new.components
        # Most atoms of a region remember the same as the one before, and are then left with the same.
        last_write: object = self
        last_reads = after = tuple[Access, ...]()
        if new.writes:
            for number in region:
                atom = atoms[number]
                write, reads = atom.write, atom.reads
                if write is not last_write or reads is not last_reads:
                    last_write, last_reads = write, reads
                    own = False
                    for old in reads:
                        if old.component == component and old.components is components and not old.writes:
                            own = True
                        pairs += self._unseen(old, new, sight)
                    unseen = [] if write is None else self._unseen(write, new, sight)
                    pairs += [(old, own) for old, _ in unseen]
                    after = _before(atom) if new.scope else ()
                    if unseen and not new.changes and not new.scope and sight is not BLIND:
                        # Stores of equal values need no order, and one of them does not stand for the others.
                        olds = (*(each for each in reads if each.writes), *(old for old, _ in unseen))
                        after = tuple(each for each in olds if self._unseen(each, new, sight))[-_MOST_BEFORE:]
                atom.write, atom.reads = new, after
            return False, _once(pairs)
        for number in region:
            atom = atoms[number]
            write, reads = atom.write, atom.reads
            if write is not last_write or reads is not last_reads:
                last_reads, after = reads, (new,)
                if write is None:
                    fresh = True
                elif write is not last_write:
                    pairs += self._unseen(write, new, sight)
                last_write = write
                if reads:
                    kept = []
                    for each in reads:
                        if each.writes:
                            pairs += self._unseen(each, new, sight)
                            kept.append(each)
                        elif each.component != component or each.components is not components:
                            kept.append(each)
                    after = (*kept, new)
            atom.reads = after
        return fresh, _once(pairs)

    def earlier(self, region: list[int]) -> list[Access]:
        """The accesses to some bytes that are remembered."""
        found: dict[int, Access] = {}
        last: object = None
        for number in region:
            atom = self.atoms[number]
            if atom.reads is not last:
                last = atom.reads
                found.update((id(each), each) for each in atom.reads)
            if atom.write is not None:
                found[id(atom.write)] = atom.write
        return list(found.values())

    def is_seen(self, region: list[int], new: Access, sight: Sight) -> bool:
        """True if every byte was written, the writes are in sight, and the read itself was the last access."""
        for number in region:
            atom = self.atoms[number]
            write = atom.write
            if write is None or len(atom.reads) == 0 or atom.reads[-1] is not new:
                return False
            if self._unseen(write, new, sight) or (len(atom.reads) > 1 and any(each.writes for each in atom.reads)):
                return False
        return True

    @staticmethod
    def _unseen(old: Access, new: Access, sight: Sight) -> list[Pair]:
        """The pair of an earlier access and a later one, if that does not see it.

        Operations of one pipe execute in order.
        """
        (rows, generic, other), value = sight, old.value
        if new.limits is not None and value is not None and value > new.limits.get(old.component, value):
            return [(old, False)]
        if rows is None or (old.scope and new.scope) or old.begins >= 0:
            return [(old, False)]
        pipe = old.pipe
        if pipe is not None and pipe == new.pipe:
            return []
        if (
            value is None
            or old.components is not new.components
            or old.component >= rows.shape[1]
            or rows.item(generic if old.proxy == "generic" else other, old.component) < value
        ):
            return [(old, False)]
        return []

    def last_write(self, address: int) -> Access | None:
        """The last write of a byte."""
        page = self._pages.get(address >> self._bits)
        if page is None:
            return None
        return self.atoms[int(page.atoms[(address & (1 << self._bits) - 1) >> page.shift])].write

    def writers(self, region: list[int]) -> list[Access]:
        """The last writes of some bytes."""
        found: dict[int, Access] = {}
        for number in region:
            write = self.atoms[number].write
            if write is not None:
                found[id(write)] = write
        return list(found.values())

    def pages(self) -> list[tuple[int, _Page]]:
        """The pages that were accessed, in order."""
        return sorted(self._pages.items(), key=lambda page: page[0])

    def forget(self, region: list[int]) -> None:
        """Let bytes be as if they had never been accessed: memory that was freed."""
        for number in region:
            self.atoms[number].write, self.atoms[number].reads = None, ()


def span_of(touch: Touch) -> tuple[int, int]:
    """The first byte and the one after the last."""
    if touch.space == "tensor":
        return int(touch.addresses.min()), int(touch.addresses.max()) + touch.width // _WORD
    addresses = touch.addresses & _OFFSET if touch.space == "shared" else touch.addresses
    return int(addresses.min()), int(addresses.max()) + touch.width


def _counted(held: Array, most: int) -> tuple[list[int], list[int]]:
    """The numbers below `most` that are in an array, in order, and how often each of them is."""
    if most > 8 * held.size:
        found, many = np.unique(held, return_counts=True)
        return found.tolist(), many.tolist()
    every = np.bincount(held)  # faster than to sort
    numbers = every.nonzero()[0]
    return numbers.tolist(), every[numbers].tolist()


def _once(pairs: list[Pair]) -> list[Pair]:
    """Pairs without those that come again, as an access to several atoms makes them."""
    if len(pairs) < 2:
        return pairs
    return list({id(old): (old, own) for old, own in reversed(pairs)}.values())[::-1]


def _before(atom: Atom) -> tuple[Access, ...]:
    """The accesses before a strong write, the latest of each kind of an agent.

    Later accesses need no order with that write if they are strong as well, so that it does not stand for them.
    """
    old = (*atom.reads, atom.write) if atom.write is not None else atom.reads
    latest = {(id(each.components), each.component, each.writes, bool(each.scope)): each for each in old}
    return tuple(latest.values())[-_MOST_BEFORE:]


_PLACES: dict[tuple[int, bytes], tuple[int, int]] = {}
_CELLS: dict[tuple[int, int, bytes], Any] = {}
"""The page and alignment of accesses to the memories of CTAs, and their cells."""
_MOST_CELLS = 1 << 12


def _alignment(addresses: Array, width: int) -> int:
    """The largest cells, as a power of two, that an access consists of."""
    bits = width | (int(addresses[0]) if len(addresses) == 1 else int(np.bitwise_or.reduce(addresses)))
    return min((bits & -bits).bit_length() - 1, _COARSE)


def _index(addresses: Array, width: int, shift: int) -> Any:
    """Cells of a page: a slice where they are next to each other."""
    count = len(addresses)
    if count == 1:
        start = int(addresses[0])
        return slice(start >> shift, (start + width) >> shift)
    step = np.diff(addresses)
    if (step == width).all():
        return slice(int(addresses[0]) >> shift, (int(addresses[-1]) + width) >> shift)
    if not (step > 0).all():
        addresses = np.unique(addresses)
        if len(addresses) == 1:
            return _index(addresses, width, shift)
    if width == 1 << shift:
        return addresses >> shift
    cells = (addresses[:, None] + np.arange(0, width, 1 << shift)).reshape(-1) >> shift
    return np.unique(cells) if (np.diff(addresses) < width).any() else cells
