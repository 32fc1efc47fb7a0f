"""Cluster instructions: the cluster barrier, addresses in a peer CTA, stores that complete there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.copy.bulk import each_warp, issuers, require_cluster, submit
from warploom.machine.core.convergence import EVERY, absent
from warploom.machine.core.group import WARP, Waitable
from warploom.machine.core.lane_masks import lane_bits
from warploom.machine.core.registry import Run, executes
from warploom.machine.instructions.atomics import Atomic, locate
from warploom.machine.instructions.mbarrier import barrier_at, barrier_touch, peer_at
from warploom.machine.memory.byte_memory import SHARED_WINDOW, WIDTHS
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.machine.observers.events import BarrierName, Touch, run_of_bytes
from warploom.ptx.isa.table import BITS, Op
from warploom.ptx.syntax.model import Vector

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cluster, Cta
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]


class ClusterBarrier(Waitable):
    """`barrier.cluster`: every live thread arrives, then waits, in turn.

    `arrived` are the lanes that have come since the barrier last opened, `owing` those that have arrived and not yet
    waited, both as a bit mask per (CTA, warp). `phase` counts how often it has opened.
    """

    __slots__ = ("arrived", "cluster", "exchange", "owing", "phase")

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster, self.phase, self.exchange = cluster, 0, cluster.exchange()
        self.arrived: dict[tuple[int, int], int] = {}
        self.owing: dict[tuple[int, int], int] = {}
        for cta in cluster.ctas:
            cta.at_leave.append(self.settle)

    def arrive(self, cta: Cta, warp: int, bits: int) -> None:
        """Lanes of a warp arrive."""
        key = cta.rank, warp
        if self.owing.get(key, 0) & bits:
            what = (
                f"Threads of {cta.name}, warp {warp}, arrive twice at the cluster barrier without waiting in between."
            )
            raise Diag.BAD_BARRIER.error(what=what)
        self.owing[key] = self.owing.get(key, 0) | bits
        self.arrived[key] = self.arrived.get(key, 0) | bits
        if self.exchange is not None:
            self.exchange.arrive(cta.grid.current)
        reporter = cta.grid.reporter
        if reporter is not None:
            lanes = reporter.lanes
            reporter.narrow(bits << WARP * (warp - reporter.actor.agent.warp))
            self._tell(cta, "arrive", "arrives", self.phase, bits.bit_count())
            reporter.narrow(lanes)

    def passed(self, group: Group, warps: list[tuple[int, int]]) -> None:
        """Lanes of some warps go on."""
        for warp, bits in warps:
            self.owing[group.cta.rank, warp] &= ~bits
        if self.exchange is not None:
            self.exchange.leave(group)
        self._tell(group.cta, "wait", "waits", self.phase - 1)

    def _tell(self, cta: Cta, kind: str, verb: str, phase: int, count: int = 0) -> None:
        """Let observers know that threads of a CTA arrive in a phase, or have passed it."""
        reporter = cta.grid.reporter
        if reporter is not None:
            name = BarrierName("cluster", self.cluster.ctas[0].index, 0, "the cluster barrier")
            reporter.tell(kind, verb, barrier=name, phase=phase, count=count)

    def passes(self, cta: Cta, warp: int, bits: int) -> bool:
        """Return whether the barrier has opened since these lanes arrived."""
        key = cta.rank, warp
        if bits & ~self.owing.get(key, 0):
            what = f"Threads of {cta.name}, warp {warp}, wait at the cluster barrier without having arrived."
            raise Diag.BAD_BARRIER.error(what=what)
        return not self.arrived.get(key, 0) & bits

    def settle(self) -> None:
        """Open if no live thread is missing."""
        if not self.arrived or self.missing:
            return
        self.arrived.clear()
        self.phase += 1
        if self.exchange is not None:
            self.exchange.turn()
        self.notify()

    @property
    def missing(self) -> int:
        """The number of live threads that have not arrived; exited threads count as arrived."""
        live = sum(cta.live_threads for cta in self.cluster.ctas)
        here = sum(
            (self.cluster.ctas[rank].present[warp] & bits).bit_count() for (rank, warp), bits in self.arrived.items()
        )
        return live - here

    def describe(self) -> str:
        return f"the cluster barrier: {self.missing} threads have not arrived"


def _barrier(g: Group) -> ClusterBarrier:
    found: ClusterBarrier | None = g.cta.cluster.state.get("barrier")
    if found is None:
        found = g.cta.cluster.state["barrier"] = ClusterBarrier(g.cta.cluster)
    return found


def _warps(op: Op, g: Group, mask: Array | None) -> list[tuple[int, int]]:
    """(warp, executing lanes) of a group; with `.aligned` they must be all that live."""
    out = []
    for number in range(g.warps):
        bits = EVERY if mask is None else lane_bits(mask[number * WARP : (number + 1) * WARP])
        warp = g.first_warp + number
        if op["aligned"] and bits and bits != g.cta.present[warp] and warp not in g.cta.broken:
            raise absent(op, g.cta.present[warp], bits)
        if bits:
            out.append((warp, bits))
    return out


@executes("barrier.cluster.arrive")
def arrive(op: Op) -> Run:
    """Arrive without waiting."""

    def run(g: Group, mask: Array | None) -> None:
        barrier = _barrier(g)
        g.grid.count_local_effect()
        for warp, bits in _warps(op, g, mask):
            barrier.arrive(g.cta, warp, bits)
        barrier.settle()

    return run


@executes("barrier.cluster.wait")
def wait(op: Op) -> Run:
    """Wait until every live thread of the cluster has arrived."""

    def run(g: Group, mask: Array | None) -> bool:
        barrier, warps = _barrier(g), _warps(op, g, mask)
        if not all(barrier.passes(g.cta, warp, bits) for warp, bits in warps):
            g.wait(barrier)
            return False
        g.grid.count_local_effect()
        barrier.passed(g, warps)
        return True

    return run


@executes("mapa")
def map_address(op: Op) -> Run:
    """The same place in the shared memory of another CTA of the cluster."""
    base = 0 if op["space"] else SHARED_WINDOW & ((1 << BITS[op["type"]]) - 1)
    dtype = np.dtype(WIDTHS[BITS[op["type"]] // 8])

    def run(g: Group, mask: Array | None, address: Any, rank: Any) -> Any:
        if isinstance(address, int) and isinstance(rank, int):
            return base | (rank & 0xFF) << RANK_SHIFT | (address & OFFSET_MASK)
        ranks = np.asarray(rank).astype(dtype) & dtype.type(0xFF)
        offset = np.asarray(address).astype(dtype) & dtype.type(OFFSET_MASK)
        return (ranks << dtype.type(RANK_SHIFT)) | offset | dtype.type(base)

    return run


@executes("getctarank")
def rank_of(op: Op) -> Run:
    """The CTA of the cluster that a shared address lies in."""

    def run(g: Group, mask: Array | None, address: Any) -> Any:
        if isinstance(address, int):
            return address >> RANK_SHIFT & 0xFF
        return (address >> address.dtype.type(RANK_SHIFT) & address.dtype.type(0xFF)).astype(np.uint32)

    return run


def _per_lane(value: Any, lanes: Array, dtype: npt.DTypeLike) -> Array:
    return np.full(len(lanes), value, dtype) if isinstance(value, int) else value[lanes].astype(dtype, copy=True)


def _shared_addresses(value: Any, lanes: Array) -> Array:
    """shared::cluster addresses of some lanes, from such addresses or generic ones."""
    address = _per_lane(value, lanes, np.uint64)
    return np.where(address >= SHARED_WINDOW, address - np.uint64(SHARED_WINDOW), address).astype(np.uint32)


def _submit(g: Group, mask: Array | None, op: Op, size: int, address: Array, barriers: Array, effect: Any) -> None:
    """One operation per lane: its effect, then its bytes on the barrier in the CTA it wrote to."""
    require_cluster(g, op)
    cta = g.cta
    places = zip(issuers(g, mask), address.tolist(), barriers.tolist(), strict=True)
    for lane, (_, at, barrier) in enumerate(places):
        if at >> RANK_SHIFT != barrier >> RANK_SHIFT:
            data, signal = at >> RANK_SHIFT, barrier >> RANK_SHIFT
            what = f"The data goes to CTA {data} of the cluster and its barrier lies in CTA {signal}."
            raise Diag.BAD_BARRIER.error(what=what)
        peer_at(cta, at)

        def complete(lane: int = lane, barrier: int = barrier) -> None:
            effect(lane)
            barrier_at(cta, barrier).complete(size)

        def touches(at: int = at, barrier: int = barrier) -> tuple[Touch, ...]:
            owner = cta.cluster.ctas[at >> RANK_SHIFT].index
            verbs = ("reads", "writes") if op["op"] else ("writes",)
            runs = (run_of_bytes(verb, "shared", owner, at, size, "generic") for verb in verbs)
            return (*runs, barrier_touch("completes", cta, barrier))

        submit(g, op, complete, touches=touches)


@executes("st.async")
def store_async(op: Op) -> Run:
    """Store into a peer's shared memory; the bytes arrive at an mbarrier there."""
    source, element = op.operands["b"], BITS[op["type"]] // 8
    count = len(source.items) if isinstance(source, Vector) else 1
    vector = op.instruction.opcode.rpartition(".")[0].rpartition(".")[2]
    if isinstance(source, Vector) and f"v{count}" != vector:
        what = f"the list has {count} items"
        raise Diag.BAD_OPERANDS.error(
            op.instruction.loc, text=op.instruction.text[:160], what=what, takes=f"{vector[1:]} items"
        )
    size, storage, what = element * count, WIDTHS[element], f"`{op.instruction.opcode}`"

    def run(g: Group, mask: Array | None, address: Any, value: Any, barrier: Any) -> None:
        lanes = np.arange(g.lanes) if mask is None else np.flatnonzero(mask)
        at, barriers = _shared_addresses(address, lanes), _shared_addresses(barrier, lanes)
        table = np.stack(
            [_per_lane(part, lanes, storage) for part in (value if isinstance(value, tuple) else (value,))], axis=1
        )
        words = np.ascontiguousarray(table).view(WIDTHS[size])[:, 0]
        locate(g, "shared::cluster", at, size, what)
        warp = g.number

        def effect(lane: int) -> None:
            peer = peer_at(g.cta, int(at[lane]))
            peer.shared.write(int(at[lane]), words[lane], size, None, what, warp)

        _submit(g, mask, op, size, at, barriers, effect)

    return run


@executes("red.async")
def reduce_async(op: Op) -> Run:
    """Change a word of a peer's shared memory; its bytes arrive at an mbarrier there."""
    atomic = Atomic(op, wants=False)
    atomic.space = "shared::cluster"
    storage, size = WIDTHS[BITS[op["type"]] // 8], BITS[op["type"]] // 8

    def run(g: Group, mask: Array | None, address: Any, value: Any, barrier: Any) -> None:
        lanes = np.arange(g.lanes) if mask is None else np.flatnonzero(mask)
        at, barriers = _shared_addresses(address, lanes), _shared_addresses(barrier, lanes)
        values = _per_lane(value, lanes, storage)
        locate(g, "shared::cluster", at, size, atomic.what)

        def effect(lane: int) -> None:
            peer_at(g.cta, int(at[lane]))
            atomic.serve_one(g, at[lane : lane + 1], values[lane : lane + 1])

        _submit(g, mask, op, size, at, barriers, effect)

    return run


@executes("st.async.global", "red.async.global")
def global_async(op: Op) -> Run:
    """Store to, or add to, global memory some time later."""
    size = BITS[op["type"]] // 8
    storage, what = WIDTHS[size], f"`{op.instruction.opcode}`"
    atomic = Atomic(op, wants=False) if op["op"] else None

    def run(g: Group, mask: Array | None, address: Any, value: Any) -> None:
        lanes = np.arange(g.lanes) if mask is None else np.flatnonzero(mask)
        at, values = _per_lane(address, lanes, np.uint64), _per_lane(value, lanes, storage)
        locate(g, "global", at, size, what)

        def complete() -> None:
            if atomic is None:
                g.grid.memory.store(at, values, size, None, what)
            else:
                atomic.serve_one(g, at, values)

        def touches(some: Array) -> tuple[Touch, ...]:
            verbs = ("reads", "writes") if atomic else ("writes",)
            return tuple(Touch(verb, "global", None, "generic", at[some].astype(np.int64), size) for verb in verbs)

        submit(g, op, complete, touches=each_warp(g, lanes, touches))

    return run
