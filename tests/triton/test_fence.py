"""The demo's real case: Triton 3.7.0 leaves out a proxy fence that 3.7.1 has."""

from __future__ import annotations

from importlib import resources

import pytest

from warploom.cli import main
from warploom.launch_file import load

DATA = resources.files("warploom") / "data"


def launch_file(release):
    return str(DATA / f"matmul_triton{release}_sm100.launch.json")


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_the_release_with_the_fence_is_right(schedule):
    assert main(["run", launch_file(371), "--schedule", schedule]) == 0


def test_eager_hides_the_missing_fence_and_lazy_shows_it():
    assert main(["run", launch_file(370), "--schedule", "eager"]) == 0
    assert main(["run", launch_file(370), "--schedule", "lazy"]) == 1


def test_the_kernels_differ_in_the_fence():
    texts = [load(launch_file(release)).ptx for release in (370, 371)]
    assert ["fence.proxy.async" in text for text in texts] == [False, True]
    assert all("cp.async.cg.shared.global" in text and "tcgen05.mma" in text for text in texts)
