"""Store buffers: under the schedule `weak`, ordinary stores reach other warps late.

A store to global or shared memory is checked when it is executed and written when the schedule commits it, in any
order where the bytes differ. Its own warp sees it at once. A release at CTA scope (`bar.sync`, a fence) lets the CTA
see it, one at cluster scope the cluster; a wider one writes it to memory. A release covers all stores that its warp
sees, not its own alone. A warp that touches bytes of a store that it sees commits that store first: a store may be
committed at any time, so that no byte needs two values for one reader.

Lanes of a warp share a buffer: what they do to each other without `bar.warp.sync` is not shown. `stale_loads` does the
same for loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import WarploomError
from warploom.machine.memory.byte_memory import GlobalMemory, last_lane
from warploom.machine.memory.stale_loads import History
from warploom.ptx.isa.table import Effect, Op

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cluster
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.group import Group
    from warploom.machine.memory.shared_memory import SharedMemory

Array = npt.NDArray[Any]

FAMILIES = ("store.global", "store.shared")
"""The names of buffered stores among the options of a step."""
_REACH = {"warp": 0, "grid": 0, "cta": 1, "cluster": 2, "gpu": 3, "gl": 3, "sys": 3}
"""The distance to which a release of a scope shows earlier stores; `grid` is that of signals between grids."""
_BY_ADDRESS = frozenset(
    {"ld", "ldu", "st", "stmatrix", "atom", "red", "atom.vector", "red.vector", "wmma.load", "wmma.store"}
)
"""Families that commit only the stores whose bytes they touch."""
_IN_ORDER = ("volatile", "mmio", "mmio.relaxed")
"""Stores that a warp's later ones of the kind do not overtake."""
_STRONG = frozenset({"relaxed", "acquire", *_IN_ORDER})
"""Loads that always read what is in memory."""
_MOST = 256
"""Stores that a warp, CTA or cluster keeps; one more commits the oldest."""


@dataclass(slots=True, eq=False)
class Store:
    """A store that was executed and is not in memory: `home` is the cluster of its shared memory, None for global."""

    name: str
    number: int
    home: Cluster | None
    addresses: Array
    width: int
    first: int
    end: int
    write: Callable[[], None]
    warp: Any
    origin: Cluster
    seen_by: Any
    reach: int = 0
    volatile: bool = False

    def touches(self, addresses: Array, width: int) -> bool:
        """True if it writes one of some bytes."""
        near = addresses[(addresses < self.end) & (addresses + width > self.first)]
        if not len(near):
            return False
        starts = self.addresses[:, None]
        return bool(((starts < near + width) & (near < starts + self.width)).any())


class StoreBuffers:
    """The stores of a grid that have not reached memory, by the warp, CTA or cluster that sees them."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._stores: dict[int, Store] = {}
        self._seen: dict[Any, dict[int, Store]] = {}
        self._issued = 0
        self._history = History(grid.memory)

    def __len__(self) -> int:
        return len(self._stores)

    @property
    def listed(self) -> list[Store]:
        """All of them in the order of issue."""
        return list(self._stores.values())

    def _visible(self, g: Group) -> Iterator[Store]:
        """The stores that a warp sees."""
        cta, seen = g.cta, self._seen
        nothing = dict[int, Store]()
        return chain(*(seen.get(key, nothing).values() for key in ((cta, g.first_warp), cta, cta.cluster)))

    def add(
        self,
        g: Group,
        memory: GlobalMemory | SharedMemory,
        address: int | Array,
        value: Any,
        width: int,
        mask: Array | None,
        what: str,
        *,
        order: str = "",
    ) -> None:
        """Execute a store: faults are raised now, and earlier stores to its bytes that the warp sees go first.

        A release is written at once, after what its warp sees (`ordering`).
        """
        if isinstance(address, int):
            at, value = np.array([address], np.uint64), last_lane(value, mask)
        elif mask is None:
            at, value = address.copy(), np.array(value)
        else:
            at, value = address[mask], value[mask] if isinstance(value, np.ndarray) else value
        if not len(at):
            return
        space, home = "global", None
        if isinstance(memory, GlobalMemory):
            memory.locate(at.astype(np.uint64, copy=False), width, what)

            def write() -> None:
                memory.store(at, value, width, None, what)
        else:
            space, home, warp = "shared", g.cta.cluster, g.number
            memory.index(at, width, what)
            # Threads that synchronise with the warp from now on know of the store, and may fence it before that.
            known_as = None if memory.knowledge is None else memory.knowledge.stored(warp)

            def write() -> None:
                memory.write(at, value, width, None, what, warp, known_as)

        places = at.astype(np.int64)
        self._touch(g, home, places, width)
        issued: dict[tuple[int, str], int] = g.cta.state.setdefault("stores issued", {})
        number = issued[g.first_warp, space] = issued.get((g.first_warp, space), -1) + 1
        name = f"{g.cta.name} warp {g.first_warp}: store.{space} {number}"
        self._issued += 1
        bounds, key = (int(places.min()), int(places.max()) + width), (g.cta, g.first_warp)
        made = Store(
            name,
            self._issued,
            home,
            places,
            width,
            *bounds,
            write,
            key,
            g.cta.cluster,
            key,
            volatile=order in _IN_ORDER,
        )
        self._stores[made.number] = made
        self._put(made)
        if order == "release":
            self.commit(made)

    def _put(self, store: Store) -> None:
        kept = self._seen.setdefault(store.seen_by, {})
        kept[store.number] = store
        if len(kept) > _MOST:
            self.commit(next(iter(kept.values())))

    def touch(self, g: Group, home: Cluster | None, address: int | Array, width: int, mask: Array | None) -> None:
        """A warp is about to access some bytes in memory: the stores to them that it sees are committed."""
        if not self._stores or (mask is not None and not mask.any()):
            return
        if isinstance(address, int):
            places = np.array([address], np.int64)
        else:
            places = (address if mask is None else address[mask]).astype(np.int64)
        self._touch(g, home, places, width)

    def _touch(self, g: Group, home: Cluster | None, places: Array, width: int) -> None:
        first, end = int(places.min()), int(places.max()) + width
        for store in list(self._visible(g)):
            if store.home is home and store.first < end and first < store.end and store.touches(places, width):
                self.commit(store)

    def loaded(self, g: Group, address: int | Array, width: int, mask: Array | None, value: Any, *, order: str) -> Any:
        """The value of a load of global memory, which may be that of an earlier time (`stale_loads`)."""
        if order in _STRONG:
            self._history.touched(address, width, mask)
            return value
        return self._history.seen(g, address, width, value)

    def updated(self, address: int | Array, width: int, mask: Array | None) -> None:
        """An atomic touches some words of global memory."""
        self._history.touched(address, width, mask)

    def acquire(self, g: Group) -> None:
        """A warp acquires at the scope of the GPU: it sees all that other clusters have released."""
        if (knowledge := g.cta.cluster.knowledge) is not None:
            knowledge.acquire(g.number, self._history.latest)

    def settle(self, g: Group, spaces: frozenset[str], *, others: bool) -> None:
        """Commit all stores to some spaces that a warp sees; without `others`, of those to global memory its own."""
        for store in list(self._visible(g)):
            if store.home is not None:
                settles = "shared" in spaces
            else:
                settles = "global" in spaces and (others or store.warp == (g.cta, g.first_warp))
            if settles:
                self.commit(store)

    def release(self, g: Group, reach: int) -> None:
        """Show all stores that a warp sees to its CTA (1), its cluster (2) or all (3)."""
        for store in list(self._visible(g)):
            if reach >= (_REACH["gpu"] if store.home is None else _REACH["cluster"]):
                self.commit(store)
            elif store.reach < reach:
                del self._seen[store.seen_by][store.number]
                store.reach, store.seen_by = reach, g.cta if reach == _REACH["cta"] else g.cta.cluster
                if store.home is None:
                    self._grid.effects += 1
                else:
                    self._grid.count_local_effect()
                # What they poll may look different now, although memory has not changed; not in other clusters.
                for group in self._grid.parked:
                    if group.cta.cluster is g.cta.cluster:
                        group.forget_words()
                for each in self._grid.rounds:
                    if each.cluster is g.cta.cluster:
                        each.forget_words()
                self._put(store)

    def commit(self, store: Store) -> None:
        """Write a store to memory; volatile stores of a warp stay in order."""
        if store.number not in self._stores:
            return
        kept = self._seen[store.seen_by]
        if store.volatile:
            for other in [each for each in kept.values() if each.volatile and each.number < store.number]:
                self._write(other, kept)
        self._write(store, kept)

    def _write(self, store: Store, kept: dict[int, Store]) -> None:
        del self._stores[store.number], kept[store.number]
        if store.home is None:
            self._grid.effects += 1
        else:
            self._grid.count_local_effect()
        history = self._history if store.home is None else None
        try:
            before = None if history is None else history.bytes_at(store.addresses, store.width)
            store.write()
        except WarploomError:
            return  # its memory was freed since: the kernel's own `free`
        if history is not None and before is not None:
            history.stored(store.origin, store.addresses, store.width, before)

    def forget(self, cluster: Cluster) -> None:
        """A cluster has ended, and its shared memory with it; its stores to global memory stay."""
        for store in [each for each in self._stores.values() if each.home is cluster]:
            del self._stores[store.number], self._seen[store.seen_by][store.number]


def ordering(op: Op, run: Any) -> Any:
    """An instruction's function that first orders the stores of its warp, where the instruction does."""
    reach = max((_released(op, effect) for effect in op.form.effects), default=0)
    direct = [effect for effect in op.form.effects if op.family not in _BY_ADDRESS and _is_direct(op, effect)]
    settles = bool(direct)
    touched = {_filled(op, effect.space).partition("::")[0] for effect in direct}
    spaces = frozenset(touched) if "" not in touched else frozenset({"global", "shared"})
    # An asynchronous operation needs a proxy fence to see what other warps have stored to global memory.
    others = any(not effect.later for effect in direct)
    acquires = _acquires(op)
    if not reach and not settles and not acquires:
        return run

    def wrapped(group: Group, mask: Any, *operands: Any) -> Any:
        buffers = group.grid.buffers
        if buffers is not None and len(buffers):
            if settles:
                buffers.settle(group, spaces, others=others)
            if reach:
                buffers.release(group, reach)
        result = run(group, mask, *operands)
        if acquires and buffers is not None:
            buffers.acquire(group)
        return result

    return wrapped


def _filled(op: Op, text: str) -> str:
    return op[text[1:-1]] if text.startswith("{") else text


def _released(op: Op, effect: Effect) -> int:
    """The reach of the release that an effect is; 0 for none."""
    detail, scope = _filled(op, effect.detail), _filled(op, effect.scope)
    if effect.verb == "fences":
        if effect.proxy != "generic" or detail == "mbarrier_init" or effect.space not in ("", "{space}"):
            return 0
        return _REACH[scope or "gpu"]
    if effect.verb in ("syncs", "arrives"):
        if detail == "relaxed" or effect.later:
            return 0
        # A remote arrival without qualifiers announces to the cluster, whatever PTX's default scope.
        return _REACH["cluster" if op.family.startswith("mbarrier.") else scope or "cta"]
    if effect.verb == "writes" and {"release", "acq_rel"} & {op["sem"], op["order"]}:
        return _REACH[scope or "gpu"]
    return 0


def _acquires(op: Op) -> bool:
    """True for an instruction after which its warp sees what other clusters have released."""
    for effect in op.form.effects:
        detail, scope = _filled(op, effect.detail), _filled(op, effect.scope)
        if effect.verb == "fences":
            ordered = op.family == "fence" and effect.proxy == "generic" and detail != "mbarrier_init"
        else:
            ordered = bool({"acquire", "acq_rel"} & {detail, op["sem"], op["order"]}) and effect.verb == "reads"
        if ordered and _REACH[scope or "gpu"] == _REACH["gpu"]:
            return True
    return False


def _is_direct(op: Op, effect: Effect) -> bool:
    """True for an access that does not look at the buffers, and for proxy fences."""
    if _filled(op, effect.space).partition("::")[0] not in ("", "global", "shared"):
        return False
    if effect.verb == "fences":
        return effect.proxy != "generic"
    return effect.verb in ("reads", "writes") or (effect.verb == "arrives" and effect.later)


__all__ = ["FAMILIES", "Store", "StoreBuffers", "ordering"]
