"""The kernel families of the library have no finding under `strict`."""

from __future__ import annotations

import pytest
from tests.machine.families import FAMILIES

import warploom
from warploom.checker.report import Verdict


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_proved_under_strict(name: str) -> None:
    launch, _ = FAMILIES[name]()
    report = warploom.check(launch)
    assert report.findings == ()
    assert report.verdict is Verdict.PROVED
    assert not report.relaxed
