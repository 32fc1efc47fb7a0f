"""The bytes of an mbarrier: used for something else, read, or tested before they are one."""

from __future__ import annotations

import pytest
from tests.checker.kernels import checked, codes

INIT = "@%p1 mbarrier.init.shared.b64 [%r3], 1; bar.sync 0; setp.eq.u32 %p2, %r6, 0; setp.eq.u32 %p4, %r1, 32;"
ARRIVE = "@%p1 mbarrier.arrive.shared.b64 _, [%r3];"
WAIT = "WAIT: mbarrier.try_wait.parity.shared.b64 %p7, [%r3], 0; @!%p7 bra WAIT;"
REUSE = "@%p4 st.shared.u64 [%r3], %rd1;"
INVAL = "@%p4 mbarrier.inval.shared.b64 [%r3];"


@pytest.mark.parametrize(
    ("end", "strict", "lenient"),
    [
        (REUSE, {"MBAR_LIFETIME"}, {"MBAR_LIFETIME"}),
        (f"bar.sync 0; {REUSE}", {"MBAR_LIFETIME"}, set()),
        (f"bar.sync 0; {INVAL} {REUSE}", set(), set()),
        (f"bar.sync 0; {INVAL} @%p1 st.shared.u64 [%r3], %rd1;", {"RACE_WAW"}, {"RACE_WAW"}),
    ],
    ids=["not ordered", "not invalidated", "invalidated", "another thread"],
)
def test_the_storage_of_a_barrier_is_used_again(end: str, strict: set[str], lenient: set[str]) -> None:
    assert codes(checked(INIT + ARRIVE + WAIT + end, budget=0)) == strict
    assert codes(checked(INIT + ARRIVE + WAIT + end, budget=0, profile="lenient")) == lenient


def test_the_relaxation_is_named() -> None:
    (finding,) = checked(f"{INIT} {ARRIVE} {WAIT} bar.sync 0; {REUSE}", budget=0)
    assert finding.excused_by == "barrier-reuse"


def test_a_barrier_is_opaque() -> None:
    read = "ld.shared.b64 %rd5, [%r3]; st.global.b64 [%rd1], %rd5;"
    assert codes(checked(f"{INIT} {ARRIVE} {WAIT} @%p4 {read.replace('; ', '; @%p4 ')}", budget=0)) == {"MBAR_LIFETIME"}


@pytest.mark.parametrize(("meet", "found"), [("", {"MBAR_INIT_ORDER"}), ("bar.sync 0;", set[str]())])
def test_a_test_that_fails_comes_after_the_initialisation_too(meet: str, found: set[str]) -> None:
    test = "setp.eq.u32 %p2, %r6, 1; @%p2 mbarrier.test_wait.parity.shared.b64 %p7, [%r3], 0;"
    report = checked(f"@%p1 mbarrier.init.shared.b64 [%r3], 1; {meet} {test}", budget=0)
    assert codes(report) == found
