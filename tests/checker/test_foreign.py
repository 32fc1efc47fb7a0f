"""Kernels of other compilers, as they are: a fence bug that Triton shipped, and kernels without a defect."""

from __future__ import annotations

from pathlib import Path

import pytest

import warploom
from warploom.checker.report import Verdict
from warploom.cli import main
from warploom.launch_file import load

DATA = Path(warploom.__file__).parent / "data"
FOREIGN = Path(__file__).parents[1] / "foreign"


def checked(path: Path, profile: str = "lenient") -> warploom.Report:
    file = load(path)
    return warploom.check(file.launch(file.allocate()), profile=profile)


@pytest.mark.parametrize("path", sorted(FOREIGN.glob("*.launch.json")), ids=lambda path: path.name.partition(".")[0])
def test_whole_kernels_have_no_finding_under_lenient(path: Path) -> None:
    report = checked(path)
    assert report.findings == ()
    assert report.cost.events


def test_the_fence_that_triton_3_7_0_omits_is_found() -> None:
    report = checked(DATA / "matmul_triton370_sm100.launch.json")
    assert report.verdict is Verdict.REFUTED
    assert {finding.code for finding in report.findings} == {"FENCE_PROXY"}
    (finding,) = report.findings
    reader, writer = finding.parties
    assert "tcgen05.mma" in reader.instruction
    assert reader.proxy == "async"
    assert "cp.async" in writer.instruction
    assert writer.proxy == "generic"
    assert "fence.proxy.async" in finding.missing
    assert "cp.async.wait_group" in finding.path or "bar.sync" in finding.path
    assert finding.count > 100
    assert finding in report.remaining_under_lenient


def test_triton_3_7_1_has_the_fence() -> None:
    assert checked(DATA / "matmul_triton371_sm100.launch.json").findings == ()


def test_check_copies_the_arrays() -> None:
    file = load(DATA / "matmul_triton371_sm100.launch.json")
    buffers = file.allocate()
    before = {name: array.tobytes() for name, array in buffers.items()}
    warploom.check(file.launch(buffers))
    assert {name: array.tobytes() for name, array in buffers.items()} == before


def test_the_command_exits_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, right = (str(DATA / f"matmul_triton{version}_sm100.launch.json") for version in ("370", "371"))
    assert main(["check", "--profile", "lenient", wrong]) == 1
    assert "FENCE_PROXY" in capsys.readouterr().out
    assert main(["check", "--profile", "lenient", right, wrong]) == 1
    assert main(["check", "no-such-file.launch.json"]) == 3
