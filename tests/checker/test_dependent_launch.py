"""Accesses to global memory that may happen before the previous grid has completed are named as an assumption."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from tests.checker.kernels import checked, kernel

import warploom
from warploom import HopperConfig
from warploom.launcher import launch_of

STORE = "st.global.u32 [%rd3], %r1;"
WAIT = "griddepcontrol.wait;"


def assumed(body: str) -> str:
    """The text of the assumption, or an empty string."""
    report = checked(body, block=32)
    assert report.findings == ()
    return next((each for each in report.assumptions if each.startswith("dependent-launch")), "")


@pytest.mark.parametrize(
    ("body", "is_assumed"),
    [
        (STORE, False),  # not a dependent launch: nothing to wait for
        (f"{WAIT} {STORE}", False),
        (f"{WAIT} {STORE} griddepcontrol.launch_dependents;", False),
        (f"{STORE} {WAIT}", True),
        (f"griddepcontrol.launch_dependents; {STORE}", True),
        (f"setp.ne.u32 %p1, %r1, 77; @%p1 {WAIT} {STORE}", True),
        (f"setp.ne.u32 %p1, %r1, 77; @%p1 bra LAST; {WAIT} LAST: {STORE}", True),
        (f"setp.eq.u32 %p1, %r1, 77; @%p1 bra OTHER; {WAIT} bra LAST; OTHER: {WAIT} LAST: {STORE}", False),
        (f"setp.eq.u32 %p1, %r1, 77; @%p1 bra OTHER; {WAIT} {STORE} OTHER:", False),
    ],
)
def test_accesses_that_a_path_reaches_without_a_wait(body: str, is_assumed: bool) -> None:
    assert bool(assumed(body)) == is_assumed


@pytest.mark.parametrize(("body", "is_assumed"), [(STORE, True), (f"{WAIT} {STORE}", False)])
def test_a_dependent_launch_of_a_kernel_without_a_wait(body: str, is_assumed: bool) -> None:
    launch = launch_of(kernel(body), grid=1, block=32, args=[np.zeros(32, np.uint32)])
    for dependent in (False, True):
        report = warploom.check(replace(launch, dependent=dependent))
        named = [each for each in report.assumptions if each.startswith("dependent-launch")]
        assert bool(named) == (dependent and is_assumed)


def test_the_lines_are_named() -> None:
    text = assumed(f"{STORE}\n{WAIT}\n{STORE}")
    assert "previous launch" in text
    assert text.count(":") == 2  # after the name, and in the one line
    many = assumed("\n".join([STORE] * 9 + [WAIT]))
    assert many.endswith("and 5 more)")


@pytest.mark.parametrize(
    "fields",
    [
        {"tile": (64, 64), "consumers": 1},
        {"tile": (128, 64), "pingpong": True},
        {"tile": (64, 64), "consumers": 1, "num_split_k": 2},
        {"tile": (128, 64), "cluster_shape": (2, 1, 1)},
    ],
    ids=str,
)
def test_every_role_of_the_library_waits_first(fields: dict[str, object]) -> None:
    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((136, 328), (328, 72)))
    bias, residual = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((72,), (136, 72)))
    launch = warploom.matmul.bind(
        a, b, bias=bias, residual=residual, config=HopperConfig(**fields, dependent=True), target="sm_90a"
    )
    report = warploom.check(launch)
    assert report.verdict == "PROVED", report
    assert not any(each.startswith("dependent-launch") for each in report.assumptions)
