"""TMA copies: boxes between tensors in global memory and shared memory.

A box is read and written when its operation completes. A multicast load is one operation per destination CTA. A store
reads shared memory in one operation and writes global memory in the next, which is what `wait_group.read` tells apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.swizzles import GRANULE
from warploom.hardware.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, SHARED_ALIGNMENT
from warploom.machine.copy.boxes import (
    collect_box,
    copy_box,
    first_outside,
    global_runs,
    place_box,
    placed_at,
    read_box,
    read_rows,
    reduce_box,
    shared_runs,
    stored_runs,
    window_of,
    write_box,
    write_rows,
)
from warploom.machine.copy.bulk import (
    READS,
    WRITES,
    count_bytes,
    groups_of,
    issuers,
    located,
    multicast_targets,
    of_lane,
    require_live,
    require_writeable,
    shared_span,
    submit,
)
from warploom.machine.copy.pixels import halo_and_shifts
from warploom.machine.copy.tensor_map_bytes import MappedTensor, mapped, place_in_parameters, replaced
from warploom.machine.core.group import WARP
from warploom.machine.core.participation import whole_warps
from warploom.machine.core.registry import Run, executes
from warploom.machine.instructions.mbarrier import barrier_at, barrier_touch, barrier_touch_of, shared_address
from warploom.machine.memory.byte_memory import PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.machine.observers.deferred import OneOperation, Operations
from warploom.machine.observers.events import CommitGroup, Touch, Triple, run_of_bytes
from warploom.machine.observers.reporting import Reporter
from warploom.machine.routines.mbarrier_rows import TX
from warploom.ptx.analysis.storage import size_of
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.host.tensor_map import BoxGeometry
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.group import Group
    from warploom.machine.engine.native import Routines

Array = npt.NDArray[Any]
_FOUR_ROWS = 4
_NEGATIVE = 1 << 31


def _mode(op: Op) -> str:
    return op["mode"] or op["late_mode"] or op["last_mode"] or "tile"


def _coordinates(coords: Sequence[Any], lane: int) -> tuple[int, ...]:
    """Coordinates of one lane as signed numbers."""
    values = [int(value) if isinstance(value, int) else int(value[lane]) for value in coords]
    return tuple(values) if max(values) < _NEGATIVE else tuple([(value ^ _NEGATIVE) - _NEGATIVE for value in values])


def _plain(mode: str) -> str:
    """The mode that a map must have."""
    return mode.removesuffix("_no_offs").removesuffix("::gather4").removesuffix("::scatter4")


def _check_map(tensor: MappedTensor, coords: tuple[int, ...], rank: int, mode: str) -> None:
    """The instruction, its coordinates and the map must agree."""
    geometry, four = tensor.geometry, mode.endswith("4")
    what = ""
    if geometry.rank != rank:
        what = f"the instruction is {rank}d and the map's tensor has rank {geometry.rank}"
    elif len(coords) != (_FOUR_ROWS + 1 if four else rank):
        what = f"there are {len(coords)} of them"
    elif mode != geometry.mode and _plain(mode) != geometry.mode:
        what = f"the instruction is in mode .{mode} and the map in mode {geometry.mode}"
    elif four and geometry.box[0] != 1:
        what = f"a box of gather4 or scatter4 has one row, the map's has {geometry.box[0]}"
    if what:
        raise Diag.BAD_COORDINATES.error(coords=coords, what=what)


def _require_inside(g: Group, tensor: MappedTensor, coords: tuple[int, ...], *, four: bool) -> None:
    """A tensor may reach beyond its buffer; what a copy moves may not."""
    if tensor.is_whole:
        return
    region = tensor.region
    for place in [(coords[0], row) for row in coords[1:]] if four else [coords]:
        byte = first_outside(tensor.geometry, place, tensor.origin, region.size)
        if byte is not None:
            address = region.base + byte & (1 << 64) - 1
            shape = f"its tensor map has the shape {tensor.geometry.shape}, which reaches beyond `{region.name}`"
            what = f"The box at {place} of a tensor copy"
            notes = (g.grid.memory.describe(address), shape)
            raise Diag.OUT_OF_BOUNDS.error(notes=notes, what=what, space="global", address=address)


def _span(cta: Cta, address: int, tensor: MappedTensor, *, four: bool, own: bool) -> tuple[Cta, int]:
    size = _span_bytes(tensor, four=four)
    return shared_span(cta, address, size, SHARED_ALIGNMENT, "The box of a tensor copy", own=own)


def _span_bytes(tensor: MappedTensor, *, four: bool) -> int:
    """The bytes of shared memory from the first to the last of a box."""
    geometry = tensor.geometry
    return geometry.shared_bytes // geometry.row_bytes * geometry.pitch * (_FOUR_ROWS if four else 1)


_NOT_ALONE = None, 0
_MOST_MET = 256
"""Loads that an instruction remembers for a CTA."""


class _Met(NamedTuple):
    """A load of a CTA: the CTA and the offset of its barrier, and the arguments of the routine that do not change."""

    owner: Cta
    barrier: int
    tensor: MappedTensor
    geometry: BoxGeometry
    memory: int
    bytes: int
    target: int
    places: int
    granules: int
    copy: Callable[[int, int, int, int, int, int], None]
    touches: tuple[Touch, ...] | None
    """The places that it writes, the barrier that it counts on, and its map; None without observers."""


def _alone(g: Group, mask: Array | None) -> tuple[Routines | None, int]:
    """Native routines and the lane, where one lane issues a copy that completes at once; else None."""
    grid, cluster_mode = g.grid, g.cta.mode
    if mask is None or not cluster_mode.immediate or cluster_mode.flight.count:
        return _NOT_ALONE
    live = mask.tobytes()
    return (grid.routines, live.index(1)) if live.count(1) == 1 else _NOT_ALONE


@executes("cp.async.bulk.tensor.load")
def load(op: Op) -> Run:
    """A box from global to shared memory, of one CTA or of each in a mask; its bytes count on a barrier there."""
    mode, rank = _mode(op), int(op["rank"][0])
    four, tiled = mode == "tile::gather4", mode.startswith("tile")
    pair = "cta_group::2" in (op["group"], op["late_group"], op["last_group"], op["end_group"])
    multicast, local = bool(op["multicast"]), op["dst"] == "shared::cta"
    plain, rank_ = tiled and not four and not multicast, rank

    def one(
        g: Group,
        dst: int,
        where: int,
        coords: tuple[int, ...],
        barrier: int,
        offsets: list[int],
        ctas: int | None,
    ) -> None:
        tensor = mapped(g.grid, where)
        _check_map(tensor, coords, rank, mode)
        shift: tuple[int, ...] = ()
        if not tiled:
            halo, shift = halo_and_shifts(tensor.geometry, coords, offsets)
            if halo:
                tensor = MappedTensor(tensor.geometry.with_halo(halo), tensor.region, tensor.origin)
        _require_inside(g, tensor, coords, four=four)
        owner, offset = _span(g.cta, dst, tensor, four=four, own=local)
        for target, signal in _targets(g.cta, owner, barrier, ctas, pair):
            _issue(g, target, offset, tensor, where, coords, shift, signal)

    def _issue(
        g: Group,
        target: Cta,
        offset: int,
        tensor: MappedTensor,
        where: int,
        coords: tuple[int, ...],
        shift: tuple[int, ...],
        signal: int,
    ) -> None:
        barrier_at(g.cta, signal)

        def complete() -> None:
            require_live(target, "A tensor load writes")
            memory, geometry, routines = tensor.region.data, tensor.geometry, g.grid.routines
            shared = target.shared
            done = False
            if routines is not None and not shared.two_views and tiled and not four:
                done = copy_box(routines, memory, geometry, coords, tensor.origin, shared.whole, offset)
            if not done:
                if four:
                    box = read_rows(memory, geometry, coords[0], coords[1:], tensor.origin)
                else:
                    box = read_box(memory, geometry, coords, tensor.origin, shift)
                place_box(shared.whole, offset, geometry, box)
                if shared.two_views:
                    place_box(shared.async_whole, offset, geometry, box)
                    shared.overwritten(offset, _span_bytes(tensor, four=four))
            moved = geometry.box_bytes * (_FOUR_ROWS if four else 1)
            count_bytes(g, "global->shared", moved)
            barrier_at(g.cta, signal).complete(moved)

        def touches() -> tuple[Touch, ...]:
            written = _in_shared("writes", tensor, target.index, target.rank, offset, four=four)
            read = _in_global("reads", tensor, coords, shift, four=four)
            return (*read, written, barrier_touch("completes", g.cta, signal), *_map_read(g.grid, where))

        submit(g, op, complete, touches=touches)

    checked: list[Any] = [None]
    key = object()

    def again(g: Group, mask: Array, dst: int, where: int, coords: tuple[Any, ...], barrier: int) -> bool:
        """A load that differs from an earlier one of the CTA in its coordinates only, by the routine; False, and
        nothing is done, for every other one and for faults.
        """
        met, grid = g.cta.state.get(key), g.grid
        found: _Met | None = None if met is None else met.get((dst, where, barrier))
        if found is None or grid.maps_at.get(where) is not found.tensor:
            return False
        owner = found.owner
        known = owner.mbarriers.get(found.barrier)
        try:
            window = window_of(found.geometry, coords)
        except TypeError:  # coordinates that differ by lane
            return False
        live = mask.tobytes()
        if window is None or window[4] is None or live.count(1) != 1 or grid.flight.count:
            return False
        if known is None or not known.valid or not owner.live_threads:
            return False
        offset, source = window[4]
        first = found.tensor.origin + offset
        if first < 0 or first + source.end > found.bytes or source.rows * source.granules != found.granules:
            return False
        found.copy(found.memory + first, source.address, source.rows, source.granules, found.target, found.places)
        moved = found.geometry.box_bytes
        grid.effects += 2
        grid.moved["global->shared"] += moved
        left = known.tx - moved
        if left > 0 and found.touches is None:
            known.row[TX] = left
            return True
        try:
            if found.touches is None or grid.reporter is None:
                known.complete(moved)
            else:
                read = _rows_read(found.tensor, window)
                grid.reporter.performed(live.index(1), (read, *found.touches), known.complete, moved)
        except WarploomError as error:
            raise located(error, g.cta, g.first_warp, op) from None
        return True

    def at_once(
        g: Group, routines: Routines, lane: int, dst: int, where: int, coords: tuple[int, ...], barrier: int
    ) -> bool:
        """A load into the CTA's own shared memory that completes when it is issued: by native code, without anything
        that is in flight. False, and nothing is done, for every other one and for faults.
        """
        cta, grid = g.cta, g.grid
        shared, rank = cta.shared, cta.rank
        tensor = mapped(grid, where)
        geometry = tensor.geometry
        if checked[0] is not geometry:
            _check_map(tensor, coords, rank_, mode)
            checked[0] = geometry
        offset, there = dst & OFFSET_MASK, barrier >> RANK_SHIFT
        owner = cta
        if there != rank:
            # Both CTAs of a pair may count on the barrier of one of them.
            if not pair or there != rank ^ 1 or there >= len(cta.cluster.ctas):
                return False
            owner = cta.cluster.ctas[there]
        start, known = offset - shared.reserved, owner.mbarriers.get(barrier & OFFSET_MASK)
        if dst >> RANK_SHIFT != rank or known is None or not known.valid or not owner.live_threads:
            return False
        if start < 0 or start + _span_bytes(tensor, four=False) > shared.size:
            return False
        try:
            if not copy_box(routines, tensor.region.data, geometry, coords, tensor.origin, shared.whole, offset):
                return False
        except WarploomError:
            return False
        met: dict[tuple[int, int, int], _Met] = cta.state.setdefault(key, {})
        if len(met) >= _MOST_MET:
            met.clear()
        touches = None
        if grid.reporter is not None:
            written = _in_shared("writes", tensor, cta.index, cta.rank, offset, four=False)
            touches = written, barrier_touch("completes", cta, barrier), *_map_read(grid, where)
        met[dst, where, barrier] = _Met(
            owner, barrier & OFFSET_MASK, tensor, geometry, *tensor.memory,
            *placed_at(geometry, cta.shared_memory[0], offset), routines.granules.load_box, touches,
        )  # fmt: skip
        grid.effects += 2
        moved = geometry.box_bytes
        grid.moved["global->shared"] = grid.moved.get("global->shared", 0) + moved
        try:
            if grid.reporter is None or touches is None:
                known.complete(moved)
            else:
                read = _rows_read(tensor, geometry.windows[coords])
                grid.reporter.performed(lane, (read, *touches), known.complete, moved)
        except WarploomError as error:
            raise located(error, cta, g.first_warp, op) from None
        return True

    def run(
        g: Group, mask: Array | None, dst: Any, where: Any, coords: Any, barrier: Any, offsets: Any, *rest: Any
    ) -> None:
        simple = plain and mask is not None and dst.__class__ is where.__class__ is barrier.__class__ is int
        if simple and g.cta.mode.immediate and mask is not None and again(g, mask, dst, where, coords, barrier):
            return
        routines, lane = _alone(g, mask) if plain else _NOT_ALONE
        if routines is not None and mask is not None:
            to = dst if dst.__class__ is int else int(dst[lane])
            signal = barrier if barrier.__class__ is int else int(barrier[lane])
            if to >= SHARED_WINDOW or signal >= SHARED_WINDOW:
                to, signal = shared_address(to), shared_address(signal)
            from_ = where if where.__class__ is int else int(where[lane])
            places = _coordinates(coords, lane)
            if again(g, mask, to, from_, places, signal) or at_once(g, routines, lane, to, from_, places, signal):
                return
        ctas = rest[0] if multicast else None
        for lane in issuers(g, mask):
            one(
                g,
                shared_address(of_lane(dst, lane)),
                of_lane(where, lane),
                _coordinates(coords, lane),
                shared_address(of_lane(barrier, lane)),
                [of_lane(value, lane) for value in offsets or ()],
                None if ctas is None else of_lane(ctas, lane),
            )

    return run


def _in_global(
    verb: str, tensor: MappedTensor, coords: tuple[int, ...], shift: tuple[int, ...] = (), *, four: bool
) -> tuple[Touch, ...]:
    """The part of its tensor that a copy touches: the box, or a row for each of four coordinates."""
    start = tensor.region.base + tensor.origin
    places = [(coords[0], row) for row in coords[1:]] if four else [coords]
    runs = [global_runs(tensor.geometry, place, start, shift) for place in places]
    return tuple(Touch(verb, "global", None, "async", addresses, width) for addresses, width in runs if width)


def _rows_read(tensor: MappedTensor, window: Any) -> Touch:
    """The rows that a load reads whose box is wholly inside its tensor, from its window."""
    offset, rows = window[4]
    addresses = rows.offsets + (tensor.region.base + tensor.origin + offset)
    return Touch("reads", "global", None, "async", addresses, rows.granules * GRANULE)


def enter_maps(grid: Grid) -> None:
    """Enter the tensor maps among the parameters, so that native code knows them from the first load on."""
    for param in grid.program.kernel.params:
        place = grid.symbols.get(param.name)
        if size_of(param) == MAP_BYTES and place is not None and not place % MAP_ALIGNMENT:
            with suppress(WarploomError):  # bytes that are none
                mapped(grid, PARAM_WINDOW + place)


class LoadTouches:
    """The touches of loads by native code into the shared memory of their CTA; another may count the bytes."""

    def __init__(self, maps: dict[int, MappedTensor]) -> None:
        self._targets = lru_cache(maxsize=1 << 10)(partial(_targets_of, maps))
        self.source = lru_cache(maxsize=1 << 10)(partial(_source_of, maps))

    def __call__(
        self, map_: int, target: int, coords: tuple[int, ...], barrier: int, cta: Triple, counts: Triple
    ) -> tuple[Touch, ...]:
        return self.source(map_, coords), *self._targets(map_, target, barrier, cta, counts)


def _source_of(maps: dict[int, MappedTensor], map_: int, coords: tuple[int, ...]) -> Touch:
    """The part of the tensor that is read; the same object for equal loads."""
    tensor = maps[map_]
    window = window_of(tensor.geometry, coords[: len(tensor.geometry.box)])
    assert window is not None
    return _rows_read(tensor, window)


def _targets_of(
    maps: dict[int, MappedTensor], map_: int, target: int, barrier: int, cta: Triple, counts: Triple
) -> tuple[Touch, Touch]:
    """All but the source; the same objects for equal loads."""
    place = cta, target >> RANK_SHIFT, target & OFFSET_MASK
    return _in_shared("writes", maps[map_], *place, four=False), barrier_touch_of("completes", counts, barrier)


def _in_shared(verb: str, tensor: MappedTensor, cta: Triple, rank: int, offset: int, *, four: bool) -> Touch:
    """The part of a CTA's shared memory that a copy touches."""
    size = tensor.geometry.shared_bytes * (_FOUR_ROWS if four else 1)
    addresses, width = shared_runs(tensor.geometry, offset, size)
    return Touch(verb, "shared", cta, "async", addresses | rank << RANK_SHIFT, width, tensor.layout)


def _map_read(grid: Grid, where: int) -> tuple[Touch, ...]:
    """The bytes of a tensor map that a copy reads; those of parameters and constants never change."""
    region = None if place_in_parameters(grid, where) is not None else grid.memory.find(where, MAP_BYTES)
    constants = (each.name for each in grid.program.module.variables if each.space == "const")
    if region is None or region.name in constants:
        return ()
    return (run_of_bytes("reads", "global", None, where, MAP_BYTES, "tensormap"),)


def _targets(cta: Cta, owner: Cta, barrier: int, ctas: int | None, pair: bool) -> list[tuple[Cta, int]]:
    """The CTAs that get the box, each with the address of the barrier that counts its bytes."""
    rank, offset = barrier >> RANK_SHIFT, barrier & OFFSET_MASK
    if ctas is None:
        allowed = (owner.rank, owner.rank ^ 1) if pair else (owner.rank,)
        if rank not in allowed:
            what = (
                f"The box goes to CTA rank {owner.rank} and its bytes count in rank {rank}; "
                f"{'the pair of both is meant' if pair else 'without .cta_group::2 both are the same CTA'}."
            )
            raise Diag.ASYNC_MISUSE.error(what=what)
        return [(owner, barrier)]
    chosen = multicast_targets(cta, ctas)
    if pair:
        return [(target, (target.rank & ~1 | rank & 1) << RANK_SHIFT | offset) for target in chosen]
    return [(target, target.rank << RANK_SHIFT | offset) for target in chosen]


@executes("cp.async.bulk.tensor.store", "cp.reduce.async.bulk.tensor")
def store(op: Op) -> Run:
    """A box from shared to global memory, written over what is there or combined with it."""
    mode, rank, reduction = _mode(op), int(op["rank"][0]), op["op"]
    four = mode == "tile::scatter4"

    def one(g: Group, where: int, coords: tuple[int, ...], src: int, thread: int) -> None:
        tensor = mapped(g.grid, where)
        _check_map(tensor, coords, rank, mode)
        _require_inside(g, tensor, coords, four=four)
        _, offset = _span(g.cta, src, tensor, four=four, own=True)
        require_writeable(tensor.region, "A tensor store")
        memory, geometry = tensor.region.data, tensor.geometry
        box: list[Any] = []

        def read() -> None:
            # As for bulk copies, the CTA may have exited.
            seen = g.cta.shared.seen_by(g.grid.sight, offset, offset + _span_bytes(tensor, four=four))
            box.append(collect_box(seen, offset, geometry, _FOUR_ROWS if four else None))

        def write() -> None:
            dense = box.pop()
            if reduction:
                sums = g.grid.sums and g.grid.sums.of(op.instruction)
                reduce_box(reduction, memory, geometry, coords, dense, tensor.origin, sums)
            elif four:
                write_rows(memory, geometry, coords[0], coords[1:], dense, tensor.origin)
            else:
                write_box(memory, geometry, coords, dense, tensor.origin)
            count_bytes(g, "shared->global", dense.nbytes)

        sources, whole = groups_of(g.cta, READS), groups_of(g.cta, WRITES)
        group = whole.open_group(g, thread)
        map_read = _map_read(g.grid, where) if g.grid.reporter is not None else ()
        taken = partial(_taken, g.cta.index, g.cta.rank, tensor, coords, offset, map_read)
        written = partial(_written, tensor, coords)
        first = submit(g, op, read, touches=taken, group=group)
        second = submit(g, op, write, touches=written, group=group, after=(first,))
        sources.add(first, thread)
        whole.add(second, thread)

    def _taken(
        cta: Triple,
        cta_rank: int,
        tensor: MappedTensor,
        coords: tuple[int, ...],
        offset: int,
        map_read: tuple[Touch, ...],
    ) -> tuple[Touch, ...]:
        """The part of shared memory that a store reads, and its map."""
        if four:
            return (_in_shared("reads", tensor, cta, cta_rank, offset, four=True), *map_read)
        addresses, width = stored_runs(tensor.geometry, coords, offset)
        addresses = addresses | cta_rank << RANK_SHIFT
        return (Touch("reads", "shared", cta, "async", addresses, width, tensor.layout), *map_read)

    def _written(tensor: MappedTensor, coords: tuple[int, ...]) -> tuple[Touch, ...]:
        """The part of global memory that a store writes, and reads where it is combined with it."""
        combined = _in_global("reads", tensor, coords, four=four) if reduction else ()
        return (*combined, *_in_global("writes", tensor, coords, four=four))

    def at_once(g: Group, routines: Routines, lane: int, where: int, coords: tuple[int, ...], src: int) -> bool:
        """A store that completes when it is issued, by native code; False, and nothing is done, for every other one."""
        tensor = mapped(g.grid, where)
        _check_map(tensor, coords, rank, mode)
        _, offset = _span(g.cta, src, tensor, four=False, own=True)
        require_writeable(tensor.region, "A tensor store")
        memory, geometry, shared = tensor.region.data, tensor.geometry, g.cta.shared.whole
        try:
            done = copy_box(routines, memory, geometry, coords, tensor.origin, shared, offset, stores=True)
        except WarploomError:
            return False
        if done:
            g.grid.effects += 4
            count_bytes(g, "shared->global", geometry.box_bytes)
            if (reporter := g.grid.reporter) is not None:
                group = groups_of(g.cta, WRITES).open_group(g, g.first_warp * WARP + lane)
                report(g.cta, reporter, group, tensor, coords, offset, _map_read(g.grid, where))
        return done

    def report(
        cta: Cta,
        reporter: Reporter,
        group: CommitGroup | None,
        tensor: MappedTensor,
        coords: tuple[int, ...],
        offset: int,
        map_read: tuple[Touch, ...],
    ) -> None:
        """Tell of a store of a box wholly inside its tensor, which is complete: it has read, and written."""
        assert group is not None
        agents, source = reporter.agents, reporter.actor.source
        # the object serves other CTAs later
        taken = partial(_taken, cta.index, cta.rank, tensor, coords, offset, map_read)

        def each() -> Iterator[OneOperation]:
            yield agents, source, taken()
            yield agents, source, _written(tensor, coords)

        ((agent, lanes),) = agents
        likeness = agent.warp, lanes, source.number, offset, tensor.geometry, len(map_read)
        reporter.again(Operations(agents, 2, each, likeness), group, step=0, at_once=True)

    def run(g: Group, mask: Array | None, where: Any, coords: Any, src: Any, policy: Any = None) -> None:
        at_once_here = not (four or reduction) and g.cta.mode.immediate and not g.cta.mode.flight.count
        routines = g.grid.routines if at_once_here else None
        for lane in issuers(g, mask):
            source, place, at = shared_address(of_lane(src, lane)), of_lane(where, lane), _coordinates(coords, lane)
            if routines is None or not at_once(g, routines, lane, place, at, source):
                one(g, place, at, source, g.first_warp * WARP + lane)

    return run


def _words(address: int) -> Array:
    """The addresses of the eight-byte words of a tensor map."""
    return np.uint64(address) + np.arange(0, MAP_BYTES, 8, dtype=np.uint64)


def _is_shared(address: int, space: str) -> bool:
    return space.startswith("shared") or (not space and SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES)


@executes("tensormap.replace", "tensormap.replace.whole")
def replace(op: Op) -> Run:
    """Change one field of a tensor map in shared or global memory."""
    field, space, what = op["field"], op["space"], f"`{op.instruction.opcode}`"

    def run(g: Group, mask: Array | None, address: Any, *operands: Any) -> None:
        g.grid.effects += 1
        ordinal, value = operands if len(operands) == 2 else (0, operands[0])
        for lane in issuers(g, mask):
            at, new = of_lane(address, lane), of_lane(value, lane)
            if _is_shared(at, space):
                words, shared = _words(shared_address(at)), g.cta.shared
                record = replaced(shared.load(words, 8, None, what).tobytes(), field, ordinal, new)
                shared.write(words, np.frombuffer(record, np.uint64), 8, None, what, g.number)
            else:
                words, memory = _words(at), g.grid.memory
                record = replaced(memory.load(words, 8, None, what).tobytes(), field, ordinal, new)
                memory.store(words, np.frombuffer(record, np.uint64), 8, None, what)

    return run


@executes("tensormap.cp_fenceproxy")
def copy_map(op: Op) -> Run:
    """A warp copies a tensor map from shared to global memory; copies that follow see it."""
    what = f"`{op.instruction.opcode}`"

    def run(g: Group, mask: Array | None, dst: Any, src: Any, size: int) -> None:
        if size != MAP_BYTES:
            raise Diag.BAD_SHAPE.error(text=op.instruction.opcode, what=f"the size is {size}, not {MAP_BYTES}")
        warps = whole_warps(g, mask, op)
        g.grid.effects += 1
        for warp in range(g.warps) if warps is None else np.flatnonzero(warps).tolist():
            source = _words(shared_address(of_lane(src, warp * WARP)))
            record = g.cta.shared.load(source, 8, None, what)
            g.grid.memory.store(_words(of_lane(dst, warp * WARP)), record, 8, None, what)

    return run


@executes("cp.async.bulk.prefetch")
def prefetch(op: Op) -> Run:
    """A hint: nothing that a run can see."""

    def run(g: Group, mask: Array | None, *operands: Any) -> None:
        pass

    return run
