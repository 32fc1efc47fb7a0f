"""Small kernels for a Hopper GPU and the emulator, each for one aspect of a launch."""

from __future__ import annotations

from warploom import TensorMap
from warploom.trace import (
    Array,
    Variable,
    barriers,
    cta_index,
    device_assert,
    device_print,
    elect,
    emit,
    f32,
    fence_barrier_init,
    kernel,
    loop,
    s32,
    shared,
    special,
    sync_threads,
    thread,
    u32,
    warp_roles,
    when,
)

THREADS = 128


@kernel(target="sm_90a")
def saxpy(x: Array[f32], y: Array[f32], a: f32, n: s32):
    """Scalars and pointers."""
    i = (cta_index() * special("ntid.x") + thread()).to(s32)
    with when(i < n):
        y[i] = x[i] * a + y[i]


@kernel(target="sm_90a")
def box(tensor: TensorMap, out: Array[u32], first: s32, second: s32, *, words: int, rank: int):
    """One box of a tensor map, as stored in shared memory."""
    held = shared(u32, (words,), name="held", align=1024)
    arrived = barriers("arrived", 1)
    with when(thread() == 0):
        arrived.init(1)
        fence_barrier_init()
    sync_threads()
    with when(thread() == 0):
        arrived[0].arrive_and_expect(tensor.box_bytes)
        load = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        emit(load, held.at(0), tensor.at(*(0,) * (rank - 2), first, second), arrived[0].at)
    arrived[0].wait(0)
    for at in loop(thread().to(s32), words, step=THREADS):
        out[at] = held[at]


@kernel(target="sm_90a")
def ranks(out: Array[u32]):
    """Ranks of the CTAs in a cluster."""
    with when(thread() == 0):
        cta = cta_index().to(s32)
        out[cta] = special("cluster_ctarank") + special("cluster_nctarank") * 1000


@kernel(target="sm_90a")
def step(x: Array[u32], n: s32):
    """x = 3x + 1, after all earlier launches have ended."""
    emit("griddepcontrol.launch_dependents")
    emit("griddepcontrol.wait")
    i = (cta_index() * special("ntid.x") + thread()).to(s32)
    with when(i < n):
        x[i] = x[i] * 3 + 1


@kernel(target="sm_90a")
def stray(x: Array[u32], distance: s32):
    """A store far out of bounds."""
    with when(thread() == 0):
        x[distance] = 7


@kernel(target="sm_90a")
def own_memory(x: Array[u32], sums: Array[u32], count: Array[u32]):
    """Counts its launches in its own workspace, and computes in another part of it."""
    sums[thread()] = thread() + 1
    sync_threads()
    with when(thread() == 0):
        count[0] = count[0] + 1
        x[0] = sums[THREADS - 1] * 1000 + count[0]


@kernel(target="sm_90a")
def ring(x: Array[u32], turns: s32, *, releases: bool = True):
    """A ring of two stages; without releases it deadlocks in its second round."""
    roles = warp_roles(take=4, give=1)
    held = shared(u32, (2,), name="held")
    full, empty = barriers("full", 2), barriers("empty", 2)
    with when(thread() == 0):
        full.init(1)
        empty.init(4)
        fence_barrier_init()
    sync_threads()
    with roles.give, when(elect()):
        for turn in loop(turns):
            stage = turn % 2
            empty[stage].wait((turn // 2 & 1) ^ 1)
            held[stage] = turn.to(u32) + 1
            full[stage].arrive()
    with roles.take:
        total = Variable(u32, 0)
        for turn in loop(turns):
            stage = turn % 2
            full[stage].wait(turn // 2 & 1)
            total += held[stage]
            if releases:
                with when(elect()):
                    empty[stage].arrive()
        with when(thread() == 0):
            x[cta_index().to(s32)] = total


@kernel(target="sm_90a")
def missing_barrier(x: Array[u32]):
    """A warp reads what another one writes, without a barrier in between."""
    held = shared(u32, (THREADS,), name="held")
    held[thread()] = thread() + 1
    x[thread()] = held[(thread() + 32) % THREADS]


@kernel(target="sm_90a")
def printing(x: Array[s32], n: s32):
    """Prints the first elements from every CTA."""
    with when(thread() < n):
        device_print("CTA", cta_index(), "element", thread(), "is", x[thread()], "of 100%")


@kernel(target="sm_90a")
def asserting(x: Array[s32], bound: s32):
    """Asserts a bound of every element."""
    device_assert(x[thread()] < bound, "x must be below the bound")
