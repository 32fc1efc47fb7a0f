"""Kernels that ask for work: clusters that got it and clusters that did not are both checked."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import warploom
from warploom.ptx.syntax.printer import print_module

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from mutant_cases import CASES

sys.path.pop(0)


def test_accumulators_of_other_clusters_need_a_release() -> None:
    """One cluster that takes all the work reads its own accumulators; another answer makes it read those of others."""
    launch = CASES["sm_100a split-K"]().launch
    text = print_module(launch.program)
    assert text.count("st.release.gpu") == 1
    weakened = replace(launch, program=text.replace("st.release.gpu", "st.relaxed.gpu"))
    report = warploom.check(weakened, profile="lenient", budget=2)
    assert {finding.code for finding in report} == {"VISIBILITY"}
