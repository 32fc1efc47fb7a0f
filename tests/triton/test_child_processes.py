"""Python processes that a program starts: spawned, forked, by `subprocess`, and the workers of pytest-xdist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from warploom.commands.triton import run_script
from warploom.triton.children.environment import STARTUP, VARIABLE

ROOT = Path(__file__).parents[2]
KERNEL = """
    import torch, triton
    import triton.language as tl

    @triton.jit
    def scale(x, out, n, factor, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)

    def work(factor):
        x = torch.randn(300, device="cuda")
        out = torch.full_like(x, float("nan"))
        scale[(3,)](x, out, 300, float(factor), BLOCK=128)
        assert torch.equal(out, x * factor) and torch.cuda.get_device_capability() == (10, 0)
"""
PROGRAM = """
    import subprocess, sys
    import torch.multiprocessing as processes
    from kernel import work

    if __name__ == "__main__":
        work(2)
        subprocess.run([sys.executable, "-c", "import kernel; kernel.work(3)"], check=True)
        processes.spawn(work, nprocs=1)
        forked = processes.get_context("fork").Process(target=work, args=(5,))
        forked.start(), forked.join()
        assert forked.exitcode == 0
        imports = "import sys, os; print(*sorted({'torch', 'triton', 'warploom'} & set(sys.modules)), os.environ['NEXT'])"
        subprocess.run([sys.executable, "-c", imports], check=True)
"""
RACE = """
    import torch, triton
    import triton.language as tl

    @triton.jit
    def count(x):
        tl.store(x, tl.load(x) + 1)

    count[(4,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
"""
OWN_MACHINE = """
    import torch, warploom.triton

    assert torch.cuda.get_device_capability() == (9, 0)
    with warploom.triton.machine("sm_100"):
        assert torch.cuda.get_device_capability() == (10, 0)
    assert not torch.cuda.is_available()
"""
SUITE = """
    import pytest
    from kernel import work

    @pytest.mark.parametrize("factor", [2, 3, 4, 5])
    def test_scale(factor):
        work(factor)
"""


@pytest.fixture
def environment(monkeypatch):
    """The environment of a process that finds this checkout."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")))
    monkeypatch.setenv("PYTHONPATH", path)
    return path


def written(folder: Path, **programs: str) -> Path:
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder / f"{name}.py"


def test_processes_that_a_program_starts_run_kernels(tmp_path, environment, monkeypatch, capfd):
    own = tmp_path / "own"
    own.mkdir()
    written(own, sitecustomize="import os; os.environ['NEXT'] = 'and the next module'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((environment, str(own))))
    monkeypatch.chdir(tmp_path)
    program = written(tmp_path, kernel=KERNEL, program=PROGRAM)
    before = dict(os.environ)
    assert run_script(program, [], target="sm_100", record="recorded") == 0
    assert dict(os.environ) == before
    assert capfd.readouterr().out.split("\n")[-2] == "and the next module"  # it has imported nothing
    folders = sorted((tmp_path / "recorded").glob("process*"))
    assert len(folders) == 3
    factors = set[float]()
    for folder in (tmp_path / "recorded", *folders):
        (file,) = folder.glob("*.launch.json")
        factors |= {
            value for each in json.loads(file.read_text())["args"] for key, value in each.items() if key == "f32"
        }
    assert factors == {2.0, 3.0, 0.0, 5.0}  # `spawn` calls its function with the number of the process


def test_a_race_in_a_process_is_an_error_there(tmp_path, environment, capfd):
    program = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, sys.argv[1]]).returncode)"
    start = written(tmp_path, race=RACE, start=program)
    assert run_script(start, [str(tmp_path / "race.py")]) == 0
    assert "REFUTED" not in capfd.readouterr().err
    assert run_script(start, [str(tmp_path / "race.py")], check=True) == 1
    assert capfd.readouterr().err.count("1 of 1 checked launches are REFUTED") == 1


def test_a_machine_of_its_own_takes_the_place_of_the_inherited_one(tmp_path, environment):
    program = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]], check=True)"
    start = written(tmp_path, own=OWN_MACHINE, start=program)
    assert run_script(start, [str(tmp_path / "own.py")]) == 0


def test_workers_of_a_test_suite_have_the_emulator(tmp_path, environment):
    suite = written(tmp_path, kernel=KERNEL, test_suite=SUITE)
    options = ("-p", "warploom.triton.pytest_plugin", "--triton-target", "sm_100", "-n", "2", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-q", *options, str(suite)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_without_packages_or_options_nothing_is_replaced(tmp_path):
    """A process of a Python that has no PyTorch, or that no program on the emulator has started."""
    written(tmp_path, torch="here = True")
    finders = "import sys, torch; print(torch.here, *(getattr(each, 'awaits_import', '') for each in sys.meta_path))"
    for options in ("", "{}"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(STARTUP), str(tmp_path))), VARIABLE: options}
        command = [sys.executable, "-S", "-c", f"import sitecustomize; {finders}"]  # no site-packages, so no Triton
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True"], done.stdout
