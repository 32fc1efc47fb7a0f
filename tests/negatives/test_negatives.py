"""One small wrong kernel for every error that a launch can end with, and its complete message."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.negatives import cases_barriers, cases_language, cases_memory, cases_progress, cases_tensor

from warploom.diagnostics import _KIND, Diag, Fault, LaunchError, PtxError, Stuck

MODULES = (cases_language, cases_memory, cases_barriers, cases_tensor, cases_progress)
CASES = {name: case for module in MODULES for name, case in module.CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_message(name, golden):
    error = CASES[name].error()
    assert error.code == CASES[name].code, str(error)
    golden(f"{name}.txt", f"{error}\n")


def test_names_are_unique():
    assert len(CASES) == sum(len(module.CASES) for module in MODULES)


OF_CALLS = {Diag.BAD_ARGUMENTS.name, Diag.BAD_CONFIG.name, Diag.NOTHING_TO_TUNE.name, Diag.NOT_IN_THIS_PROCESS.name}
"""Codes raised before there is a launch; tests/ops, tests/tuning and tests/torch have those."""


def test_every_code_that_a_launch_can_end_with_has_a_negative():
    kinds = (PtxError, LaunchError, Fault, Stuck)
    raised = {diag.name for diag, kind in _KIND.items() if kind in kinds} | {
        Diag.BAD_SCHEDULE.name,
        Diag.NOT_MODELLED.name,
    }
    # Fifty million instructions without an effect take too long here: tests/machine/core/test_limits.py lowers the bound.
    # TIMEOUT depends on the computer.
    assert raised - OF_CALLS - {Diag.NO_PROGRESS.name, Diag.TIMEOUT.name} == {case.code for case in CASES.values()}


FAULTS = [name for name, case in CASES.items() if _KIND.get(Diag[case.code]) is Fault]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_instruction_location_and_warp(name):
    """Line, text and warp, unless the text itself or the exit of a CTA is the cause."""
    error = CASES[name].error()
    assert error.loc is not None, str(error)
    listing = CASES[name].module.splitlines()
    assert 0 < error.loc.line <= len(listing)
    told = "\n".join((error.what, *error.notes))
    assert "CTA (" in told or "`" in error.what, str(error)


def test_no_message_is_used_for_two_things():
    """Goldens differ, so that each case shows something new."""
    seen = Counter(str(case.error()) for case in CASES.values())
    assert [text for text, count in seen.items() if count > 1] == []
