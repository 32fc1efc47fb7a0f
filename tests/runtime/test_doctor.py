"""The doctor on computers that have everything, something wrong, or nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warploom.commands.doctor  # noqa: F401  (a command is imported when it is called, and `sys.path` is emptied here)
from warploom.cli import main
from warploom.diagnostics import WarploomError
from warploom.runtime import doctor
from warploom.runtime.doctor import Driver, Gpu, driver_here, examine
from warploom.runtime.toolchain import tools
from warploom.runtime.toolchain.tools import Tool, find

H200 = {"name": "NVIDIA H200", "capability": [9, 0], "sms": 132, "memory": 150_000_000_000}
B200 = {"name": "NVIDIA B200", "capability": [10, 0], "sms": 148, "memory": 190_000_000_000}
B300 = {"name": "NVIDIA B300", "capability": [10, 3], "sms": 148, "memory": 280_000_000_000}
A100 = {"name": "NVIDIA A100", "capability": [8, 0], "sms": 108, "memory": 80_000_000_000}


import_failure = doctor._import_failure


@pytest.fixture(autouse=True)
def torch_imports(monkeypatch):
    """Do not import torch in a process of its own for each test."""
    monkeypatch.setattr(doctor, "_import_failure", lambda package: "")


def found(subject: str):
    (finding,) = [finding for finding in examine() if finding.subject == subject]
    return finding


@pytest.fixture
def probe(monkeypatch, tmp_path):
    """Replace the program that queries the driver."""

    def put(body: str) -> None:
        script = tmp_path / "probe.py"
        script.write_text(body)
        monkeypatch.setattr(doctor, "_PROBE", script)

    return put


def answer(**told: object) -> str:
    return f"print({json.dumps(told)!r})"


def test_a_computer_with_nothing(monkeypatch, tmp_path, capsys):
    for name in ("WARPLOOM_PTXAS", "WARPLOOM_NVDISASM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "driver_here", lambda: Driver(None, problem="libcuda.so.1 cannot be loaded"))
    told = examine()
    for finding in told:
        assert finding.found or finding.do, finding
    assert {finding.subject for finding in told if finding.found} <= {"warploom", "cache", "NumPy arrays"}
    assert main(["doctor"]) == 0
    assert "pip install 'warploom[cuda]'" in capsys.readouterr().out


def test_a_terminal_without_the_characters():
    told = subprocess.run(
        [sys.executable, "-m", "warploom", "doctor"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert re.search(r"\+ +\| NumPy arrays", told.stdout.decode("ascii"))


def test_as_json(capsys):
    assert main(["doctor", "--json"]) == 0
    told = {row["subject"]: row for row in json.loads(capsys.readouterr().out)}
    assert told["NumPy arrays"]["found"] is True
    assert {"driver", "GPU", "ptxas", "nvdisasm", "torch", "cache", "CUDA arrays"} <= set(told)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "status -11"),
        ("raise SystemExit(3)", "status 3"),
        ("print('not json')", "status 0"),
    ],
    ids=["crash", "failure", "garbage"],
)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_a_driver_that_crashes_is_a_sentence(probe, body, said):
    probe(body)
    assert said in driver_here().problem
    assert not found("driver").found


def test_a_driver_that_hangs_is_a_sentence(probe, monkeypatch):
    probe("import time; time.sleep(600)")
    monkeypatch.setattr(doctor, "_PATIENCE", 0.5)
    start = time.monotonic()
    assert "did not answer" in driver_here().problem
    assert time.monotonic() - start < 300


def test_a_driver_without_gpus_that_work(probe):
    probe(answer(cuda=[12, 4], gpus=[], problem="cuInit says no CUDA-capable device is detected (100)"))
    assert driver_here() == Driver((12, 4), (), "cuInit says no CUDA-capable device is detected (100)")
    assert "CUDA 12.4" in found("driver").what
    assert not found("driver").found


@pytest.mark.parametrize(
    ("gpu", "target"),
    [(H200, "sm_90a"), (B200, "sm_100a"), (B300, "sm_103a"), (A100, None)],
    ids=["H200", "B200", "B300", "A100"],
)
def test_gpus_have_targets(probe, gpu, target):
    probe(answer(cuda=[99, 0], gpus=[gpu]))
    (seen,) = driver_here().gpus
    assert seen == Gpu(gpu["name"], tuple(gpu["capability"]), gpu["sms"], gpu["memory"])
    assert seen.target == target
    assert found("GPU").found == (target is not None)
    assert gpu["name"] in found("GPU").what
    if target is None:
        assert not found("CUDA arrays").found


def test_the_gpu_that_can_be_used_is_taken(probe):
    try:
        tool = find("ptxas")
    except WarploomError as error:
        pytest.skip(error.what)
    probe(answer(cuda=[99, 0], gpus=[A100, H200]))
    verdict = found("CUDA arrays")
    assert verdict.found
    for said in ("H200", "sm_90a", tool.version):
        assert said in verdict.what
    probe(answer(cuda=[11, 8], gpus=[H200]))
    assert "too old" in found("CUDA arrays").what


@pytest.mark.parametrize(
    ("gpu", "driver", "ptxas", "by"),
    [
        (B300, [13, 0], "12.9.86", "(sm_103a), assembled by ptxas 12.9.86"),
        (B300, [12, 9], "12.8.93", "(sm_103a), assembled by the driver, since ptxas 12.8.93 is too old for PTX 8.8"),
        (B200, [12, 8], "12.8.93", "(sm_100a), assembled by ptxas 12.8.93"),
        (B200, [12, 8], "12.4.131", "(sm_100a), assembled by the driver, since ptxas 12.4.131 is too old for PTX 8.6"),
        (B200, [12, 8], "13.0.88", "assembled by the driver, which is too old for the code of ptxas 13.0.88"),
        (H200, [12, 4], "of unknown version (7 bytes)", "assembled by ptxas of unknown version"),
    ],
)
def test_the_assembler_is_named(probe, monkeypatch, gpu, driver, ptxas, by):
    monkeypatch.setattr(doctor, "find", lambda name: Tool(name, Path(name), "PATH", ptxas))
    probe(answer(cuda=driver, gpus=[gpu]))
    assert found("CUDA arrays").found
    assert by in found("CUDA arrays").what


def test_gpus_without_kernels_have_a_reason(probe):
    thor = {"name": "NVIDIA Thor", "capability": [11, 0], "sms": 20, "memory": 128 << 30}
    probe(answer(cuda=[13, 0], gpus=[A100, thor]))
    what = found("CUDA arrays").what
    assert "NVIDIA A100 has compute capability 8.0, which is older than Hopper; kernels are for 9.0, 10.0, 10.3" in what
    assert "NVIDIA Thor has compute capability 11.0, whose tensor core is of another family" in what


def test_the_cache_is_described(monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path / "new" / "place"))
    monkeypatch.setenv("WARPLOOM_CACHE_SIZE", "4M")
    assert found("cache").found
    assert "0 entries, 0.0 of 4 MiB" in found("cache").what
    assert not (tmp_path / "new").exists()
    monkeypatch.setenv("WARPLOOM_CACHE_SIZE", "0")
    assert not found("cache").found
    monkeypatch.setenv("WARPLOOM_CACHE_SIZE", "lots")
    assert "lots" in found("cache").what
    monkeypatch.delenv("WARPLOOM_CACHE_SIZE")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path / "file" / "x"))
    assert "cannot be written" in found("cache").what


@pytest.mark.parametrize("size", ["lots", "-1", "1.5G"])
def test_an_invalid_setting_is_reported_and_stops_nothing(monkeypatch, size):
    tools._version.cache_clear()  # as in a process that has not asked yet
    monkeypatch.setenv("WARPLOOM_CACHE_SIZE", size)
    findings = {each.subject: each for each in examine()}
    assert size in findings["cache"].what
    assert size in findings["ptxas"].what or not findings["ptxas"].found
    assert "environment variable" in findings["cache"].do


def test_a_cache_folder_that_cannot_be_examined_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path / ("x" * 300)))
    assert "cannot be written" in found("cache").what


def test_torch_is_examined_in_another_process(monkeypatch):
    monkeypatch.setattr(doctor, "_import_failure", import_failure)
    known = "torch" in sys.modules
    found("torch")
    assert ("torch" in sys.modules) == known


def test_a_torch_that_cannot_be_imported_is_reported_with_its_error(monkeypatch, tmp_path):
    """A package that is installed, but lacks one of its own dependencies."""
    package, metadata = tmp_path / "torch", tmp_path / "torch-9.8.7.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("import a_module_that_is_missing\n", "utf-8")
    (package / "version.py").write_text("cuda = '13.0'\n", "utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.8.7\n", "utf-8")
    monkeypatch.setattr(doctor, "_import_failure", import_failure)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    finding = found("torch")
    assert not finding.found
    assert finding.what.startswith("9.8.7, built for CUDA 13.0, but `import torch` fails: ModuleNotFoundError")
    assert "a_module_that_is_missing" in finding.what
    assert finding.do


@pytest.mark.gpu
def test_the_gpu_of_this_computer():
    driver = driver_here()
    assert driver.cuda is not None
    assert not driver.problem
    assert any(gpu.target for gpu in driver.gpus)
    assert all(gpu.sms > 0 and gpu.memory > 2**30 for gpu in driver.gpus)


def test_configurations_name_what_is_measured_and_what_is_extrapolated(monkeypatch, capsys):
    h100 = {"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "sms": 132, "memory": 80_000_000_000}

    def configurations(*gpus):
        here = Driver((13, 0), tuple(Gpu(g["name"], tuple(g["capability"]), g["sms"], g["memory"]) for g in gpus))
        monkeypatch.setattr(doctor, "driver_here", lambda: here)
        assert main(["doctor", "--json"]) == 0
        return {row["subject"]: row for row in json.loads(capsys.readouterr().out)}["configurations"]

    measured = configurations(H200)
    assert measured["found"]
    assert measured["what"].startswith("NVIDIA H200: measured on NVIDIA H200")
    other = configurations(h100)
    assert not other["found"]
    assert other["what"] == f"{h100['name']}: cost model with 132 SMs, extrapolated from NVIDIA H200"
    assert "warploom tune" in other["do"]
    assert configurations(B200)["what"] == "NVIDIA B200: waves rule, not measured"
    assert configurations()["what"].startswith("of the emulator: sm_90a: measured on NVIDIA H200")
