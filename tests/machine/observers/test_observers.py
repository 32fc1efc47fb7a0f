"""An observer changes nothing in the library's kernels: neither the results nor the choices of the schedule."""

from __future__ import annotations

import pytest
from tests.machine.families import FAMILIES

from warploom import launch
from warploom.machine.core.schedule import Random, Recorded


class Nothing:
    """Receives events and drops them."""

    def on_event(self, event):
        pass


def results(name: str, schedule, observers=()):
    bound, out = FAMILIES[name]()
    ran = launch(bound, schedule=schedule, observers=observers)
    return out.tobytes(), ran


@pytest.mark.parametrize("name", FAMILIES)
def test_an_eager_run_is_the_same_with_an_observer(name):
    plain, observed = results(name, "eager"), results(name, "eager", [Nothing()])
    assert plain[0] == observed[0]
    assert plain[1].counts == observed[1].counts
    assert plain[1].warps == observed[1].warps


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_choice_is_the_same_with_an_observer(name):
    plain, observed = Recorded(Random(5)), Recorded(Random(5))
    assert results(name, plain)[0] == results(name, observed, [Nothing()])[0]
    assert plain.choices == observed.choices
