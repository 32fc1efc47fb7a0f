"""The sanitizer's cases reach a driver, whole: what they copy to it, what they launch, what they read back."""

from __future__ import annotations

import ctypes

import pytest
from tests.gpu import sanitise
from tests.gpu.cases import CASES
from tests.runtime.fake_driver import FakeLibrary


class Copying(FakeLibrary):
    """A driver that keeps what is copied to it, and hands it back."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def cuMemcpyHtoD_v2(self, to, source, size):  # noqa: N802
        self.kept[to.value] = ctypes.string_at(source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, to, source, size):  # noqa: N802
        ctypes.memmove(to.value, self.kept[source.value], size.value)
        return 0

    def cuCtxSynchronize(self):  # noqa: N802
        return 0


@pytest.mark.parametrize("name", ["ping-pong in clusters", "splits in memory", "an auxiliary output", "grouped"])
def test_a_case_is_launched_twice_and_results_that_were_not_computed_are_wrong(install, name):
    library = install(Copying())
    assert not sanitise.run_on_gpu(CASES[name])
    assert len(library.launched) == 2
    made = CASES[name].made()
    assert sorted(map(len, library.kept.values())) == sorted(each.nbytes for each in made.arrays.values())


@pytest.mark.parametrize("name", sanitise.PLANTED)
def test_a_fault_is_planted(install, name):
    library = install(Copying())
    sanitise.plant(name)
    assert len(library.launched) == 1
