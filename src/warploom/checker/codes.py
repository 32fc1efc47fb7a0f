"""The codes of findings: for each a title, an explanation and advice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """A class of defects."""

    title: str
    advice: str
    replayable: bool = True
    """False if no schedule of the emulator can show it as a wrong number, fault or hang."""
    is_lint: bool = False


_ORDER = "Order the two with a barrier, or with an mbarrier that the first party arrives at and the second waits for."

CODES: dict[str, Code] = {
    "RACE_RAW": Code("read not ordered after a write", _ORDER),
    "RACE_WAR": Code("write not ordered after a read", _ORDER),
    "RACE_WAW": Code("two writes without an order", _ORDER),
    "LOST_UPDATE": Code(
        "read-modify-write without atomicity",
        "Use `atom` or `red`, or let one thread do all updates of this address.",
    ),
    "VISIBILITY": Code(
        "executed in order, but not visible",
        "Synchronise with release and acquire semantics; `.relaxed` and warp collectives order no memory.",
    ),
    "FENCE_PROXY": Code(
        "no proxy fence between generic and async accesses",
        "Execute `fence.proxy.async` after the generic access and before the barrier, in every thread that accessed.",
    ),
    "FENCE_TENSORMAP": Code(
        "no release and acquire of a tensor map between a write and a use of it",
        "Execute `tensormap.cp_fenceproxy`, or `fence.proxy.tensormap::generic.release` after the write, synchronise, "
        "and let a thread of each CTA execute `fence.proxy.tensormap::generic.acquire` before the CTA uses the map.",
        replayable=False,
    ),
    "FENCE_TCGEN": Code(
        "no tcgen05.fence between synchronised threads",
        "Execute `tcgen05.fence::before_thread_sync` before the barrier and `::after_thread_sync` after it.",
        replayable=False,
    ),
    "LANE_RELEASE": Code(
        "one lane releases what other lanes accessed",
        "Execute `bar.warp.sync` before the elected lane arrives: an arrival releases its own thread's accesses only.",
        replayable=False,
    ),
    "LANE_RACE": Code(
        "lanes of one instruction store different values to one address",
        "Let one lane store (`elect.sync`, or a predicate), give each lane its own address, or use `atom` or `red`.",
        replayable=False,
    ),
    "PHASE_MIXUP": Code(
        "an arrival may count in the previous phase",
        "Wait for the previous phase before arriving for the next one.",
    ),
    "PHASE_ABA": Code(
        "a parity test may pass one lap early",
        "Wait for every phase in turn: a test of a parity cannot tell phase n from phase n - 2.",
    ),
    "PHASE_OVERRUN": Code(
        "a waiter may be lapped",
        "Let the phase after the next depend on the waiter: it must arrive, or be waited for, after its own wait.",
    ),
    "PHASE_UNOBSERVED": Code(
        "a phase that no thread waits for",
        "Wait for each phase before the next arrival (PTX ISA, mbarrier: at least one wait per phase).",
        replayable=False,
    ),
    "PREMATURE_PHASE": Code(
        "a phase may complete before its bytes are expected",
        "Use `mbarrier.arrive.expect_tx`, or expect the bytes before the arrival.",
    ),
    "MBAR_INIT_ORDER": Code(
        "an mbarrier is used before its initialisation is known",
        "Put a barrier between `mbarrier.init` and this use; in a cluster `fence.mbarrier_init` and a cluster barrier.",
    ),
    "MBAR_LIFETIME": Code(
        "an mbarrier ends while it may be in use",
        "Order `mbarrier.inval`, or the reuse of its bytes, after the last use of the barrier.",
    ),
    "MBAR_UNBALANCED": Code(
        "bytes outstanding at the end",
        "Expect exactly the bytes that arrive, and wait for the last phase.",
    ),
    "NAMED_RECYCLE": Code(
        "a named barrier may be reused too early",
        "Use another barrier number, or order this use after the end of the previous one.",
    ),
    "TMEM_ALLOC_ORDER": Code(
        "TMEM is used before its allocation is known",
        "Put a barrier between `tcgen05.alloc` and the threads that use the address.",
    ),
    "TMEM_DEALLOC_EARLY": Code(
        "TMEM is freed while it may be in use",
        "Order `tcgen05.dealloc` after the last access: by a barrier that all its users arrive at.",
    ),
    "REGISTER_BUDGET": Code(
        "setmaxnreg.inc may wait for ever",
        "Let the counts of all warps add up to at most those at launch, and let no warp that gives registers back wait "
        "before its `setmaxnreg.dec` for one that takes more.",
    ),
    "REGISTER_SYNC": Code(
        "two setmaxnreg of a warpgroup whose warps are not synchronised between them",
        "Execute a barrier of the warpgroup's 128 threads between one `setmaxnreg` and the next.",
        replayable=False,
    ),
    "REMOTE_AFTER_EXIT": Code(
        "a CTA may exit before another one reaches it",
        "Let the CTA wait for the last remote arrival or access, or end with a cluster barrier.",
    ),
    "REMOTE_BEFORE_START": Code(
        "a CTA may not have begun when another one reaches it",
        "Begin with a cluster barrier: the CTAs of a cluster are scheduled together, and do not begin together.",
        replayable=False,
    ),
    "UNINITIALISED": Code(
        "a read of memory that was never written",
        "Write the bytes first, or do not read them.",
    ),
    "LAYOUT_MISMATCH": Code(
        "a tile is read in another layout than it was copied",
        "Give the tensor map and its reader (a matrix descriptor, or the map of a store) one swizzle and one element "
        "type; a tile that TMA copies needs no base offset.",
        replayable=False,
    ),
    "LAYOUT_REINTERPRETED": Code(
        "a tile is read in another form than it was copied",
        "Check that this is meant: the swizzle, the element type and the strides of the descriptor.",
        is_lint=True,
    ),
    "OUTPUT_OVERLAP": Code(
        "two CTAs write one element, with equal values",
        "Let one CTA write each element, unless they compute it twice on purpose.",
        is_lint=True,
    ),
    "WGMMA_REGISTERS": Code(
        "registers of a pending wgmma are accessed",
        "Execute `wgmma.wait_group` before reading accumulators or writing operands.",
    ),
    "WGMMA_FENCE": Code(
        "no wgmma.fence between registers and wgmma",
        "Execute `wgmma.fence` after writing the registers and before the first `wgmma.mma_async` that uses them.",
    ),
    "DEADLOCK": Code("the kernel hangs", "Read what each warp waits for; the missing arrival is named."),
    "FAULT": Code("the kernel faults", "Correct the instruction."),
    "BULK_UNWAITED": Code(
        "a bulk store is not waited for",
        "Execute `cp.async.bulk.wait_group.read` before the end of the kernel.",
        is_lint=True,
    ),
    "REDUNDANT": Code(
        "synchronisation that orders nothing",
        "It can be removed; check again after each removal, since two may stand in for each other.",
        is_lint=True,
    ),
    "OUTPUT_GAP": Code(
        "elements of an output that nothing wrote",
        "Check the tile map and the ragged edges; padding is not written.",
        is_lint=True,
    ),
}
"""Every code that a finding can have."""
