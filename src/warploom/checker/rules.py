"""The rules of order: when two accesses to the same bytes are ordered, and which relaxations a profile grants.

`strict` is the PTX ISA to the letter. `lenient` accepts in addition what CUTLASS and Triton rely on; each relaxation is
a row of `RELAXATIONS`, with the source of the practice, and is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from warploom.checker.model.clocks import PG, PM, Clock, G, Known, P, T, X
from warploom.checker.model.shadow import Access, Acquire
from warploom.machine.observers.events import Source

PROFILES = ("strict", "lenient")


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A departure from the letter of the PTX ISA."""

    sentence: str
    citation: str
    unseen: str = ""
    """Why no schedule of the emulator shows the findings that it excuses; empty if one may."""


RELAXATIONS: dict[str, Relaxation] = {
    "tcgen05-fences": Relaxation(
        "synchronised threads need no tcgen05.fence between their tcgen05 operations",
        "PTX ISA 9.7.16.6.4 requires it; CUTLASS omits before_thread_sync after tcgen05.ld (cutlass #2974)",
    ),
    "read-then-async-write": Relaxation(
        "a generic read needs no proxy fence before a later async write of the same bytes",
        "PTX ISA 8.9.5 requires a proxy fence between proxies; CUTLASS and Triton release stages without one",
        unseen="a read before an asynchronous write is never late",
    ),
    "alloc-address": Relaxation(
        "the address that tcgen05.alloc stores needs no proxy fence before its bytes are reused",
        "PTX ISA 9.7.16.7.1: the store is generic and weak; Triton reuses the slot as a stage",
    ),
    "relaxed-order": Relaxation(
        "inside a cluster, accesses that are ordered in execution are visible",
        "PTX ISA 8.9.3 asks for release and acquire; nvcc and CUTLASS use relaxed cluster arrivals and shfl for it",
    ),
    "warp-collectives": Relaxation(
        "shfl, vote, match and elect order the memory accesses of their lanes",
        "PTX ISA 9.7.13.4 promises it for bar.warp.sync only; compilers use the others for it",
    ),
    "warp-synchronous": Relaxation(
        "lanes that execute instructions together need no bar.warp.sync between accesses to shared memory",
        "PTX ISA 8.7 calls them races, and the CUDA C++ programming guide asks for __syncwarp() since Volta; lanes "
        "that run together execute the accesses in order",
    ),
    "commit-order": Relaxation(
        "the arrivals of two tcgen05.commit of one thread come in order",
        "PTX ISA 9.7.16.12.1 orders the tracked operations, not the arrivals; Triton 3.6 invalidates barriers on it",
    ),
    "simultaneous-arrivals": Relaxation(
        "the arrivals of one warp instruction, lane by lane at barriers of several CTAs, take effect together",
        "PTX ISA 8.9 does not order the lanes of an instruction; kernels in which one CTA multicasts rely on it",
    ),
    "load-by-use": Relaxation(
        "a tcgen05.ld is complete when all registers that it loads have been used",
        "PTX ISA 9.7.16.6.4.5: a register dependency orders no memory accesses; CUTLASS's tutorials rely on it",
    ),
    "read-before-cas": Relaxation(
        "a plain load may race with a compare-and-swap that checks what it loaded",
        "PTX ISA 8.7 calls it a race; the CUDA C++ programming guide builds atomics from atomicCAS with it",
    ),
    "atomic-acquire": Relaxation(
        "a relaxed atomic acquires what a fence released before another relaxed atomic at its location",
        "PTX ISA 8.8 asks for a fence after it too; the example of __threadfence() in the CUDA C++ programming guide, "
        "in which the last block adds up the results of all, has none",
    ),
    "fence-before-barrier": Relaxation(
        "a relaxed store or atomic releases what other threads of the CTA have fenced before an earlier barrier",
        "PTX ISA 8.8 asks for a fence by the thread itself, after the barrier; __threadfence() before __syncthreads() "
        "is common, as in CUB's GridBarrier",
    ),
    "wgmma-copies": Relaxation(
        "registers of a wgmma may be moved before the wait, if the copies are used after it only, and behind the fence",
        "PTX ISA 9.7.15.7.1 forbids it; Triton unpacks f16 accumulators before the wait, LLVM places copies behind the "
        "fence, and ptxas moves both",
    ),
    "replica-rounding": Relaxation(
        "threads may store numbers that agree in half of their significant bits to one address with one instruction",
        "CUDA C++ programming guide, SIMT architecture: which lane's value remains is undefined; Triton stores the "
        "result of a reduction from all threads that have it, with other rounding where it combines asymmetrically",
    ),
    "map-read-groups": Relaxation(
        "a thread's loads have read their tensor maps when it has waited for a bulk group that it committed after them",
        "PTX ISA, cp.async.bulk.commit_group: operations that complete at an mbarrier are in no bulk group; CUTLASS "
        "(tma_desc_wait_group, cutlass #2912) and DeepGEMM (#343) wait in this way before they change a map",
    ),
    "setmaxnreg-sync": Relaxation(
        "the warps of a warpgroup need no synchronisation between one setmaxnreg and the next",
        "PTX ISA 9.7.20.5 requires it; Triton's partitions, which may be parts of a warpgroup, change their own counts",
    ),
    "barrier-reuse": Relaxation(
        "the bytes of an mbarrier may be used for something else after its last use",
        "PTX ISA 9.7.13.15 asks for mbarrier.inval before; CUTLASS reuses storage without one",
    ),
    "unused-read": Relaxation(
        "a write may race with another warp's read of global memory, if what that computes from it reaches no memory",
        "PTX ISA 8.7 calls it a race; Triton loads a row that is shorter than a CTA in all warps, and stores it in one",
    ),
    "global-proxy": Relaxation(
        "generic and async accesses to global memory need no proxy fence",
        "PTX ISA 8.9.5 requires it; Triton stores scratch and loads it with TMA without one",
    ),
}
"""The departures that `lenient` accepts."""

ASSUMPTIONS: dict[str, str] = {
    "fairness": "every warp that can run does, and every operation in flight completes",
    "convergence": "lanes that execute an instruction together reach it together (no lane is a loop iteration ahead "
    "of another lane of its warp); PTX does not promise it without elect.sync or bar.warp.sync in the loop",
    "wgmma-warpgroup": "a wgmma is one operation of its warpgroup: the wait_group of one warp covers all four",
    "remote-arrival-scope": "an mbarrier.arrive without qualifiers on a barrier of another CTA orders the reads before "
    "it, although its default scope is .cta",
    "equal-values": "stores of equal bytes to one address by several threads are harmless",
    "tcgen05-pipe": "tcgen05 operations of one thread that PTX lists as pipelined execute in order",
    "clc-answers": "the tile that an answer of cluster launch control names reaches addresses and predicates of global "
    "memory only, so that answers differ in nothing but the number of tiles of a cluster",
    "tensor-maps": "tensor maps in global memory that a CTA uses without acquiring them, and that this launch does not "
    "write, have not changed since another launch used their addresses",
    "dependent-launch": "accesses to global memory before griddepcontrol.wait, by threads that have not waited, touch "
    "nothing that the previous launch uses",
    "register-budget": "without .maxnreg and .minnctapersm, threads begin with an even share of an SM's registers, or "
    "with less if a setmaxnreg.inc asks for less (ptxas 13 ignores setmaxnreg there)",
    "timing-values": "what clocks, numbers of SMs, activemask and tests of mbarriers give is stored, and may differ "
    "between interleavings, and so may the numbers computed from it",
    "strong-order": "what strong accesses and atomics find that no order fixes may differ between interleavings, "
    "and so may the numbers computed from it; nothing else does",
    "fresh-tiles": "different clusters, and different passes of a tile loop, write different parts of the output for "
    "every size, as they do in the runs",
    "arrival-sign": "the sign of the result of an atomic, by which threads wait until all have arrived, does not "
    "depend on the order of the arrivals (grid barriers of cooperative groups)",
    "monotone-flags": "a location that is polled with a strong load is not reset while another thread polls it",
}
"""Properties that a verdict may rely on; a report names those that it used."""


class Problem(NamedTuple):
    """Two accesses that are not ordered, and why."""

    code: str
    why: str
    missing: str
    relaxation: str = ""
    ordered: bool = False
    """True if the threads are synchronised, and only a fence is missing."""


_KINDS = {(False, False): "RACE_WAR", (False, True): "RACE_WAR", (True, False): "RACE_RAW", (True, True): "RACE_WAW"}
"""By whether the earlier and the later access write; an atomic is a read first."""
_VERBS = {True: "write", False: "read"}


class Rules:
    """The rules of a profile, and how often its relaxations and assumptions were used."""

    def __init__(self, profile: str) -> None:
        self.profile, self.lenient = profile, profile == "lenient"
        self.relaxed: Counter[str] = Counter()
        self.assumed: Counter[str] = Counter()

    def judge(self, old: Access, new: Access, clock: Clock) -> Problem | None:
        """The problem of an access after an earlier one to the same bytes, by an agent with this knowledge."""
        if not (old.writes or new.writes):
            return None
        if old.scope and new.scope and _include_each_other(old, new):
            if "strong-order" not in self.assumed and self._disorder(old, new, clock) is not None:
                self.assumed["strong-order"] += 1
            return None
        if old.pipe is not None and old.pipe == new.pipe:
            return None
        problem = self._disorder(old, new, clock)
        if problem is None and new.incoherent:
            why = "a load with .nc may find what was there before the launch, whatever orders the two"
            problem = Problem("VISIBILITY", why, "ld.global without .nc", ordered=True)
        if problem is None:
            return None
        if new.rounds and old.writes and old.source is new.source and old.cta == new.cta and not problem.relaxation:
            problem = problem._replace(relaxation="replica-rounding")
        if problem.relaxation:
            self.relaxed[problem.relaxation] += 1
            if self.lenient:
                return None
        equal = old.writes and new.writes and not new.changes and old.proxy == new.proxy == "generic"
        if equal and not (old.asynchronous or new.asynchronous):
            self.assumed["equal-values"] += 1
            return None
        return problem

    def of_lanes(self, old: Access, new: Access) -> Problem | None:
        """The problem of lanes that access what other lanes of their warp have accessed, without bar.warp.sync."""
        if old.writes and new.writes and not new.changes:
            self.assumed["equal-values"] += 1
            return None
        self.relaxed["warp-synchronous"] += 1
        if self.lenient:
            return None
        why = "other lanes of the warp have made it, and nothing synchronises the lanes"
        missing = "bar.warp.sync between the two"
        return Problem(_KINDS[old.writes, new.writes], why, missing, "warp-synchronous")

    def is_ordered(self, old: Access, new: Access, clock: Clock) -> bool:
        """True if an access comes after an earlier one for an agent with this knowledge."""
        return self._disorder(old, new, clock) is None

    def unordered(self, old: Access, new: Access, clock: Clock) -> Problem | None:
        """The problem of two stores of one thread each that both have read what they change, strong or not."""
        problem = self._disorder(old, new, clock)
        return problem if problem is not None and problem.code == "RACE_WAW" else None

    def stale(self, old: Access, new: Access, clock: Clock, seen: Iterable[Clock]) -> Problem | None:
        """The problem of a strong load that comes after a strong store in execution and may find the value before it.

        `seen` is what the thread has found and no fence has acquired.
        """
        problem = self._unordered(old, new, clock)
        if problem is None or not _include_each_other(old, new):
            return None
        if problem.code != "VISIBILITY":
            if not any(_known(each, X, old, new) for each in seen):
                return None
            why = "they are executed in order, but no release and acquire makes the first visible to the second"
            relaxation = "relaxed-order" if old.components is new.components else ""
            problem = Problem("VISIBILITY", why, "release and acquire semantics", relaxation, ordered=True)
        if problem.relaxation:
            self.relaxed[problem.relaxation] += 1
            if self.lenient:
                return None
        return problem

    def follows(
        self, clock: Clock, component: int, phase: int, known: Known, is_asynchronous: bool, by: Source
    ) -> str | None:
        """Empty if an action comes after a contribution to a phase, else the relaxation that accepts it, or None.

        Arrivals of one thread's commits may come out of order: to know of a later one is not enough.
        """
        if clock.knows(X, component, phase + 1):
            return ""
        if not all(clock.knows(X, *each) for each in known):
            return None
        if not is_asynchronous:
            return ""
        if not by.instruction.opcode.startswith("tcgen05.commit"):
            return None
        self.relaxed["commit-order"] += 1
        return "" if self.lenient else "commit-order"

    def _disorder(self, old: Access, new: Access, clock: Clock) -> Problem | None:
        if new.proxy == "tensormap":
            return self._unmapped(old, new, clock)
        problem = self._unordered(old, new, clock)
        if problem is not None and old.group is not None and _knows_group(clock, old, new):
            problem = problem._replace(relaxation="map-read-groups")
        return problem

    def _unmapped(self, old: Access, new: Access, clock: Clock) -> Problem | None:
        """The use of a tensor map after a write of it: the write must have been released, and acquired in this CTA."""
        fences = {} if old.acquired is None else old.acquired
        own = fences.get((new.map, new.cta), ())
        if any(covers(fence, new.warp, new.lanes, clock) for fence in own):
            return None
        problem = self._unordered(old, new, clock)
        if problem is not None and problem.code != "VISIBILITY":
            return problem
        if problem is not None and any(clock.knows(X, fence.component, fence.time) for fence in own):
            return problem
        released = "the write was released to the tensormap proxy, and no thread of this CTA has acquired the map since"
        acquire = "fence.proxy.tensormap::generic.acquire by a thread of this CTA, after the write and before this use"
        if own:
            why = "the map was acquired, and nothing orders this use after the fence"
            missing = "a barrier between fence.proxy.tensormap::generic.acquire and this use"
        elif any(address == new.map for address, _ in fences):
            why, missing = f"{released}; a fence of another CTA does not count", acquire
        elif _known(clock, PM, old, new):
            why, missing = released, acquire
        else:
            why = "the threads are synchronised, but the write was not released to the tensormap proxy"
            missing = "tensormap.cp_fenceproxy, or fence.proxy.tensormap::generic.release before the synchronisation"
        return Problem("FENCE_TENSORMAP", why, missing, ordered=True)

    def _unordered(self, old: Access, new: Access, clock: Clock) -> Problem | None:
        if old.value is None:
            code, why = _KINDS[old.writes, new.writes], "the asynchronous operation may not have completed"
            return Problem(code, why, "a wait for the operation's completion")
        row = row_of(old, new)
        if _known(clock, row, old, new):
            return None
        if row != G and _known(clock, G, old, new):
            return self._unfenced(old, row)
        if _known(clock, X, old, new) and _released_by_a_lane(clock, old, new):
            why = "one lane released for others of its warp, which are not synchronised with it"
            missing = "bar.warp.sync before the arrival, or an arrival of every lane"
            return Problem("LANE_RELEASE", why, missing, ordered=True)
        if _known(clock, X, old, new):
            relaxation = "relaxed-order" if old.components is new.components and (row != T or not old.writes) else ""
            why = "they are executed in order, but no release and acquire makes the first visible to the second"
            return Problem("VISIBILITY", why, "release and acquire semantics", relaxation, ordered=True)
        relaxation = "read-before-cas" if _is_cas(old, new) else ""
        missing = "a barrier, or an arrival by the first party that the second waits for"
        if old.asynchronous:
            missing = f"a wait for the completion of `{old.source.instruction.opcode}`"
        return Problem(_KINDS[old.writes, new.writes], "nothing orders the two", missing, relaxation)

    def _unfenced(self, old: Access, row: int) -> Problem:
        """The threads are synchronised, but the path between them lacks a fence."""
        if row == T:
            why = "the threads are synchronised, but no pair of tcgen05.fence is on the path"
            missing = "tcgen05.fence::before_thread_sync and ::after_thread_sync around the synchronisation"
            return Problem("FENCE_TCGEN", why, missing, "tcgen05-fences", ordered=True)
        relaxation = ""
        if "tcgen05.alloc" in old.source.instruction.opcode:
            relaxation = "alloc-address"
        elif not old.writes:
            relaxation = "read-then-async-write"
        elif old.space == "global":
            relaxation = "global-proxy"
        why = "the threads are synchronised, but no proxy fence is on the path"
        missing = "fence.proxy.async, by the first party before the synchronisation or by the second after it"
        return Problem("FENCE_PROXY", why, missing, relaxation, ordered=True)


def covers(fence: Acquire, warp: int, lanes: int, clock: Clock) -> bool:
    """True if threads of the CTA that use a map have executed a fence themselves, or come after it."""
    return (fence.warp == warp and not lanes & ~fence.lanes) or clock.knows(G, fence.component, fence.time)


def _knows_group(clock: Clock, old: Access, new: Access) -> bool:
    """True if a bulk group was waited for that a load would be in, if loads were in groups."""
    assert old.group is not None
    return old.components is new.components and clock.knows(X, *old.group)


def _released_by_a_lane(clock: Clock, old: Access, new: Access) -> bool:
    """True if other lanes of the old access's warp are known at that time, and those that made it are not."""
    if old.components is not new.components or old.asynchronous or old.value is None:
        return False
    if (old.cta, old.warp) == (new.cta, new.warp) and not new.asynchronous:
        return False
    key = old.components.keys[old.component]
    if key[0] != "warp" or clock.knows(G, old.component, old.value):
        return False
    return any(
        isinstance(other, tuple) and other[:3] == key[:3] and other != key and clock.knows(G, number, old.value)
        for other, number in old.components.numbers.items()
    )


def row_of(old: Access, new: Access) -> int:
    """The row in which an access must be known to a later one; the tensormap proxy needs fences as well."""
    if old.space == "tensor":
        return T if old.proxy in ("tcgen05", "async") else G
    if new.proxy == "async" and old.proxy == "generic":
        return P if old.space == "shared" else PG
    return G


def _is_cas(old: Access, new: Access) -> bool:
    """True for a read and a compare-and-swap."""
    write = new if new.writes else old
    return old.writes != new.writes and bool(write.scope) and ".cas" in write.source.instruction.opcode


def _known(clock: Clock, row: int, old: Access, new: Access) -> bool:
    assert old.value is not None
    if old.components is new.components:
        return clock.knows(row, old.component, old.value)
    return clock.knows_of(old.components.place, row, old.component, old.value)


def _include_each_other(old: Access, new: Access) -> bool:
    """True for two strong accesses whose scopes include each other's thread: they do not race (PTX ISA 8.7.3)."""
    return _includes(old, new) and _includes(new, old)


def _includes(one: Access, other: Access) -> bool:
    if one.scope == "cta":
        return one.cta == other.cta
    return one.scope != "cluster" or one.components is other.components


def sentence(problem: Problem, old: Access, new: Access) -> str:
    """A problem as a sentence."""
    if new.map:
        return f"A use of a tensor map after a write of it: {problem.why}."
    if old.map:
        return f"A write of a tensor map after a use of it: {problem.why}."
    spaces = {"tensor": "TMEM"}
    return (
        f"A {_VERBS[new.writes]} of {spaces.get(new.space, new.space + ' memory')} after a {_VERBS[old.writes]}: "
        f"{problem.why}."
    )
