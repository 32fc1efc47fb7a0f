"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

pytest_plugins = ["pytester"]

TESTS = """
import pytest
import warploom
from tests.checker import launches

def test_proved(warploom_check):
    assert warploom_check(launches.clean()).ok

def test_refuted(warploom_check):
    warploom_check(launches.race(), budget=0)

@pytest.mark.warploom_check(budget=0)
def test_program_with_a_race():
    warploom.launch(launches.race())

@pytest.mark.warploom_check
def test_program():
    warploom.launch(launches.clean())

@pytest.mark.warploom_check(speed=1)
def test_wrong_marker():
    pass
"""


def test_fixture_and_marker(pytester, monkeypatch):
    pytester.makepyfile(TESTS)
    monkeypatch.syspath_prepend(str(pytester._request.config.rootpath))
    result = pytester.runpytest("-p", "warploom.checker.pytest_plugin", "--strict-markers", "-q")
    result.assert_outcomes(passed=2, failed=3)
    text = result.stdout.str()
    assert "REFUTED k (profile strict)" in text
    assert "RACE_WAW" in text
    assert "takes allow_incomplete, budget, limit, profile by keyword, not speed" in text
    assert "warploom/checker/check.py" not in text
