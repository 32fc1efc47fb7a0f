"""Hand-overs of TMEM through an author's pipeline: a missing tcgen05 fence is an error at trace time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.structured.scheduling import SCHEDULES

from warploom import check, launch
from warploom.diagnostics import TraceError
from warploom.hardware.fragments import tensor_move
from warploom.structured import EveryThread, ProducerConsumerPipeline, TmemAddress, TmemAllocation
from warploom.trace import Array, f32, isa, kernel, loop, s32, shared, sync_threads, warp_index, warp_roles, when
from warploom.trace.language.fragments import Fragment

ALL = frozenset({"write after", "write before", "read after", "read before"})
"""The fences of both roles: after the wait, and before the arrival."""
FENCES = {"after": isa.tcgen05.fence.after_thread_sync, "before": isa.tcgen05.fence.before_thread_sync}
COLUMNS = 32


@kernel(target="sm_100a")
def handing(out: Array[f32], rounds: s32, *, fences, stores):
    """One role writes TMEM, or only reads it, and another reads it: each thread its own elements."""
    roles = warp_roles(write=4, read=4)
    slot = shared("u32", 1, name="slot", align=4)

    def fence(which):
        if which in fences:
            FENCES[which.split()[1]]()

    with when(warp_index() == 0):
        isa.tcgen05.alloc(slot.place, COLUMNS, cta_group=1)
    FENCES["before"]()
    sync_threads()
    FENCES["after"]()
    tmem = TmemAllocation.from_shared(slot, 1, COLUMNS)
    ring = ProducerConsumerPipeline(1, producer=EveryThread(roles.write), consumer=EveryThread(roles.read), name="p")

    with roles.write:
        mine = TmemAddress(tmem.addr).of_warp(roles.write.warp)
        for number in loop(rounds):
            with ring.produce() as stage:
                fence("write after")
                value = (roles.write.thread.to("s32") + number * 1000).to("f32")
                if stores:
                    mine.store_upper(Fragment((value,) * 4, tensor_move("16x256b", 1)))  # write after
                    TmemAddress.wait_store()
                else:
                    mine.load_upper(1)
                    TmemAddress.wait_load()
                fence("write before")
                stage.release()  # write before
    with roles.read:
        mine = TmemAddress(tmem.addr).of_warp(roles.read.warp)
        for number in loop(rounds):
            with ring.consume() as stage:
                fence("read after")
                held = mine.load_upper(1)  # read after
                TmemAddress.wait_load()
                fence("read before")
                stage.release()  # read before
            out[number * 128 + roles.read.thread.to("s32")] = held.values[0]
    FENCES["before"]()
    sync_threads()
    FENCES["after"]()
    with when(warp_index() == 0):
        isa.tcgen05.dealloc(tmem.addr, COLUMNS, cta_group=1)


def bound(fences, stores=True, rounds=3):
    out = np.full(128 * rounds, np.nan, np.float32)
    return out, handing.bind(out, rounds, grid=(1, 1, 1), block=(256, 1, 1), fences=fences, stores=stores)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_with_all_fences(schedule, seed):
    out, made = bound(ALL)
    launch(made, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(out.reshape(3, 128), np.arange(128) + 1000 * np.arange(3)[:, None])


def test_with_all_fences_it_is_proved():
    assert check(bound(ALL)[1]).verdict == "PROVED"


@pytest.mark.parametrize("missing", sorted(ALL))
def test_each_fence_is_missed_at_its_line(missing):
    with pytest.raises(TraceError, match="TMEM_HANDOVER_NOT_FENCED") as found:
        bound(ALL - {missing})[1].program  # noqa: B018 - traces
    lines = Path(__file__).read_text("utf-8").splitlines()
    line = next(at for at, text in enumerate(lines, 1) if text.endswith(f"# {missing}"))
    assert f"test_tmem_handover.py:{line}" in str(found.value)
    assert f"role `{missing.split()[0]}`" in str(found.value)
    assert f"tcgen05.fence::{missing.split()[1]}_thread_sync" in str(found.value)


@pytest.mark.parametrize("fences", [ALL, frozenset()], ids=["fenced", "not fenced"])
def test_stages_that_hold_no_tmem_need_no_fence(fences):
    """Both roles only load TMEM while they hold a stage: it hands over something else."""
    assert "tcgen05.ld" in str(bound(fences, stores=False)[1].program)
