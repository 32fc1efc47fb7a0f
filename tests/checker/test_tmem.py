"""TMEM: accesses come after the allocation and a write, and before the release."""

from __future__ import annotations

import pytest
from tests.checker.kernels import checked, codes

KERNEL = """
    setp.eq.u32 %p2, %r6, 0;
    @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32;
    {published}
    ld.shared.u32 %r7, [%r2];
    shl.b32 %r8, %r6, 21; add.u32 %r7, %r7, %r8;
    {store}
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r9}}, [%r7];
    {loaded}
    tcgen05.fence::before_thread_sync;
    {done}
    tcgen05.fence::after_thread_sync;
    ld.shared.u32 %r10, [%r2];
    @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;
    @%p2 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
"""
PARTS = {
    "published": "bar.sync 0;",
    "store": "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r1};",
    "loaded": "tcgen05.wait::ld.sync.aligned;",
    "done": "bar.sync 0;",
}


def without(part: str) -> set[str]:
    return codes(checked(KERNEL.format_map({**PARTS, part: ""}), block=128, target="sm_100a", budget=0))


def test_a_whole_life_has_no_finding() -> None:
    assert without("") == set()


@pytest.mark.parametrize(
    ("part", "code"),
    [("store", "UNINITIALISED"), ("loaded", "TMEM_DEALLOC_EARLY"), ("done", "TMEM_DEALLOC_EARLY")],
)
def test_each_step_matters(part: str, code: str) -> None:
    assert code in without(part)


BRANCH = "setp.eq.u32 %p1, %r6, 9; @%p1"
"""No warp takes it."""
SECOND_LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r11}, [%r7]; "


@pytest.mark.parametrize(
    ("uses", "early"),
    [
        ("add.u32 %r12, %r9, %r11;", False),
        ("add.u32 %r12, %r11, 1; add.u32 %r12, %r9, 1;", False),
        ("add.u32 %r12, %r9, 1;", True),
        ("mov.u32 %r11, 0; add.u32 %r12, %r9, %r11;", True),
        ("setp.eq.u32 %p1, %r6, 9; @%p1 add.u32 %r12, %r9, %r11;", True),
        (f"{BRANCH} bra $done; add.u32 %r12, %r9, 1; $done: add.u32 %r12, %r11, 1;", False),
        (f"{BRANCH} bra $done; add.u32 %r12, %r11, 1; $done: add.u32 %r12, %r12, 1;", True),
        (f"{BRANCH} bra $done; mov.u32 %r9, 0; $done: add.u32 %r12, %r9, %r11;", True),
    ],
    ids=[
        "one read of both",
        "a read of each",
        "one is not read",
        "overwritten before the read",
        "guarded",
        "read on the branch that is executed",
        "not read on either branch",
        "overwritten on the branch that is executed",
    ],
)
def test_a_read_of_the_registers_completes_a_load(uses: str, early: bool) -> None:
    """A true register dependency orders the value and no memory access (PTX ISA 9.7.16.6.4.5): `lenient` accepts it."""
    text = KERNEL.format_map({**PARTS, "loaded": SECOND_LOAD + uses})
    lenient = checked(text, block=128, target="sm_100a", budget=0, profile="lenient")
    assert ("TMEM_DEALLOC_EARLY" in codes(lenient)) == early
    assert early or any(each.name == "load-by-use" for each in lenient.relaxed)
    assert "TMEM_DEALLOC_EARLY" in codes(checked(text, block=128, target="sm_100a", budget=0))


def test_the_address_is_published_by_a_barrier() -> None:
    assert without("published") & {"UNINITIALISED", "RACE_RAW", "TMEM_ALLOC_ORDER", "FAULT"}


ALLOCATIONS = """
    setp.eq.u32 %p2, %r6, {first}; setp.eq.u32 %p4, %r1, {elected};
    @%p1 mbarrier.init.shared.b64 [%r3], 1; bar.sync 0;
    @%p2 bra FIRST;
    {second}
    bra END;
FIRST:
    {one}
END:
"""
NEXT = "WAIT: mbarrier.try_wait.parity.shared.b64 %p7, [%r3], 0; @!%p7 bra WAIT;"
SIGNAL = "bar.warp.sync -1; @%p4 mbarrier.arrive.shared.b64 _, [%r3];"


def _allocates(columns: int, at: int, between: str = "") -> str:
    return (
        f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2+{at}], {columns}; {between} bar.warp.sync -1; "
        f"ld.shared.u32 %r10, [%r2+{at}]; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, {columns};"
    )


@pytest.mark.parametrize(
    ("one", "second", "is_right"),
    [
        (_allocates(64, 0), _allocates(64, 16), True),
        (_allocates(128, 0), _allocates(64, 16), False),
        (_allocates(512, 0), _allocates(512, 16), False),
        (_allocates(64, 0, "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"), _allocates(64, 16), False),
        (_allocates(512, 0) + SIGNAL, NEXT + _allocates(512, 16), True),
        (_allocates(128, 0) + SIGNAL, NEXT + _allocates(64, 16), True),
    ],
    ids=["alike", "of two sizes", "of all columns", "without permit", "in order", "smaller in order"],
)
def test_the_allocations_of_two_warps_succeed_in_any_order(one: str, second: str, is_right: bool) -> None:
    """Sizes may not grow, and nothing is allocated after the permit was given up."""
    found = set[str]()
    for first in (0, 1):
        body = ALLOCATIONS.format(first=first, elected=32 * first, one=one, second=second)
        found |= codes(checked(body, target="sm_100a", budget=0))
    assert found <= (set() if is_right else {"TMEM_ALLOC_ORDER", "FAULT"})
    assert ("TMEM_ALLOC_ORDER" in found) is not is_right
