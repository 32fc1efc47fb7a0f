"""One matmul as eight releases of Triton compile it: those before 3.7.1 leave out a proxy fence.

`bench/triton_fence.py` makes the texts anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import warploom
from warploom.launch_file import load

FOLDER = Path(__file__).parent / "triton_fence"
WRONG, RIGHT = ("331", "340", "351", "360", "370"), ("371", "380", "390")


def report(release, target, budget=0):
    file = load(FOLDER / f"matmul_triton{release}_{target}.launch.json")
    return warploom.check(file.launch(file.allocate()), profile="lenient", budget=budget)


@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize("release", WRONG)
def test_releases_without_the_fence_are_refuted(release, target):
    found = report(release, target)
    assert found.verdict == "REFUTED"
    assert {finding.code for finding in found} == {"FENCE_PROXY"}
    for finding in found:
        reader, writer = finding.parties
        assert reader.instruction.partition("tcgen05.mma")[1] or "wgmma.mma_async" in reader.instruction
        assert "cp.async" in writer.instruction
        assert {party.loc.line for party in finding.parties} <= {47}  # tl.dot(tl.load(left), tl.load(right))
        assert "fence.proxy.async" in finding.missing


@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize("release", RIGHT)
def test_releases_with_the_fence_are_proved(release, target):
    found = report(release, target)
    assert found.verdict == "PROVED"
    assert found.findings == ()


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_the_witness_replays_to_a_wrong_number(target):
    (finding,) = report("360", target, budget=5).findings
    assert finding.witness is not None
    assert finding.witness.confirmed
    assert finding.witness.kind in ("mismatch", "disagreement")
