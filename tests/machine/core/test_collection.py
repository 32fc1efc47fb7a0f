"""Python's garbage collector pauses in short runs, and goes on afterwards, also after an error and in long ones."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from tests.machine.simt import threads

from warploom import WarploomError
from warploom.machine.core import texts


class Collects:
    """An observer that notes whether the collector is on when an access is reported."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def on_event(self, event: Any) -> None:
        if event.kind == "access":
            self.seen.append(gc.isenabled())


BODY = """mov.u32 %r3, 0; AGAIN: st.global.u32 [%rd0], %r3; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 99; @%p1 bra AGAIN;"""


@pytest.mark.parametrize("engine", ["numpy", "auto"])
def test_the_collector_pauses_in_short_runs(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("WARPLOOM_ENGINE", engine)
    observer = Collects()
    assert threads(BODY, observers=(observer,)).tolist() == [[98]] * 32
    assert not any(observer.seen)
    assert gc.isenabled()


def test_the_collector_goes_on_in_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_COUNT_AFTER", 100)
    monkeypatch.setenv("WARPLOOM_ENGINE", "numpy")
    observer = Collects()
    threads(BODY, grid=8, observers=(observer,))
    assert not observer.seen[0]
    assert observer.seen[-1]


def test_the_collector_goes_on_after_an_error() -> None:
    with pytest.raises(WarploomError):
        threads("ld.global.u32 %r3, [%rd0+1];")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        assert np.count_nonzero(threads("st.global.u32 [%rd0], 7;")) == 32
        assert not gc.isenabled()
    finally:
        gc.enable()
