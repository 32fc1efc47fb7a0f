"""`warploom triton`: scripts as they are, and their exit statuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from warploom.cli import main

SCRIPT = """
    import sys
    import torch
    import triton
    import triton.language as tl
    from triton.runtime import driver

    DEVICE = driver.active.get_active_torch_device()

    @triton.jit
    def scale(x, out, n, factor, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            out = torch.empty(x.shape, device="cuda")
            assert x.device == DEVICE == out.device and x.is_cuda
            scale[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), factor, BLOCK=128)
            return out

        @staticmethod
        def backward(ctx, gradient):
            out = torch.empty(gradient.shape, device="cuda")
            scale[(triton.cdiv(out.numel(), 128),)](gradient.contiguous(), out, out.numel(), ctx.factor, BLOCK=128)
            return out, None

    calls = []

    @triton.testing.perf_report(triton.testing.Benchmark(
        x_names=["n"], x_vals=[1], line_arg="p", line_vals=["a"], line_names=["a"], plot_name="p", args={}))
    def benchmark(n, p):
        calls.append("benchmark")

    if __name__ == "__main__":
        torch.manual_seed(0)
        x = torch.randn(300, device=DEVICE, requires_grad=True)
        y = Scale.apply(x, 3.0)
        y.sum().backward()
        assert torch.equal(y, 3 * x) and torch.equal(x.grad, torch.full((300,), 3.0, device="cuda"))
        host = y.cpu()
        y.data.zero_()
        assert host.abs().sum() > 0
        triton.testing.do_bench(lambda: calls.append("do_bench"))
        benchmark.run(print_data=True)
        torch.cuda.synchronize()
        print(torch.cuda.get_device_capability(), sys.argv[1:], calls)
        if "wrong" in sys.argv:
            torch.testing.assert_close(y, y + 1)
        if "fault" in sys.argv:
            scale[(1,)](x.detach(), y.detach(), 1 << 30, 1.0, BLOCK=1024)
        if "cause" in sys.argv:
            try:
                {}["key"]
            except KeyError as error:
                raise RuntimeError("no key") from error
        if "leave" in sys.argv:
            sys.exit(7)
        if "hang" in sys.argv:
            while True:
                pass
"""


def run(tmp_path, *arguments, options=()):
    script = tmp_path / "scale.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "warploom", "triton", *options, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)


def test_a_script_runs(tmp_path):
    done = run(tmp_path, "--flag", "-x", options=("--target", "sm_100", "--record", str(tmp_path / "launches")))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(10, 0) ['--flag', '-x'] ['do_bench']\n"
    assert "skipped the benchmark `benchmark`" in done.stderr
    assert sorted(file.name for file in (tmp_path / "launches").glob("*.json")) == [
        "000_scale.launch.json",
        "001_scale.launch.json",
    ]


@pytest.mark.parametrize(
    ("argument", "status", "message"),
    [
        ("wrong", 1, "AssertionError: Tensor-likes are not close!"),
        ("fault", 2, "OUT_OF_BOUNDS"),
        ("cause", 1, "The above exception was the direct cause"),
        ("leave", 7, ""),
    ],
)
def test_exit_statuses(tmp_path, argument, status, message):
    done = run(tmp_path, argument)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    if message:
        assert "scale.py" in done.stderr
        assert "runpy" not in done.stderr


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "x"])
@pytest.mark.parametrize("command", ["triton", "cuda"])
def test_a_wrong_timeout(command, seconds, capsys):
    assert main([command, "--timeout", seconds, "program"]) == 3
    assert f"argument --timeout: `{seconds}` is not a positive number of seconds" in " ".join(
        capsys.readouterr().err.split()
    )


def test_timeout(tmp_path):
    done = run(tmp_path, "hang", options=("--timeout", "20"))
    assert done.returncode == 2
    assert "TIMEOUT" in done.stderr
    assert "in __main__.<module>, line" in done.stderr


LONG = """
    import torch, triton, triton.language as tl

    @triton.jit
    def count(out, n):
        total = 0
        for i in range(n):
            total = (total * 5 + i) ^ i
            tl.store(out, total)

    count[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"), 1 << 30)
"""


def test_a_timeout_within_a_launch_names_the_kernel_and_its_warps(tmp_path):
    script = tmp_path / "long.py"
    script.write_text(textwrap.dedent(LONG))
    command = [sys.executable, "-m", "warploom", "triton", "--timeout", "20", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 2
    assert "TIMEOUT" in done.stderr
    assert "in `count` on the emulator:" in done.stderr
    assert "can run  `" in done.stderr
    assert "in warploom" not in done.stderr


def call(tmp_path, text, *options, **environment):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "warploom", "triton", *options, str(script)]
    given = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, env=given)


def test_a_timeout_ends_a_script_that_catches_it(tmp_path):
    done = call(
        tmp_path,
        """
        import time
        try:
            while True:
                time.sleep(0.1)
        except Exception:
            print("caught", flush=True)
        while True:
            time.sleep(0.1)
        """,
        *("--timeout", "8"),
    )
    assert (done.returncode, done.stdout) == (2, "caught\n")
    assert "TIMEOUT" in done.stderr


def test_a_timeout_and_a_limit_hold_for_checks(tmp_path):
    done = call(tmp_path, LONG, "--check", "--timeout", "20")
    assert done.returncode == 2
    assert "TIMEOUT" in done.stderr
    done = call(tmp_path, LONG, "--check", "--limit", "5000")
    assert done.returncode == 2
    assert "LIMIT: The run reached its limit" in done.stderr
    assert "because the run was given up: The run reached its limit" in done.stderr
    assert "limit 5000." in done.stderr.partition("INCOMPLETE")[2]


LISTENING = """
import signal, sys
from warploom.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in processes that a shell runs in the background
sys.exit(main())
"""


def test_a_user_who_stops_a_script_sees_its_line(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("print('started', flush=True)\nwhile True:\n    pass  # here\n")
    command = [sys.executable, "-c", LISTENING, "triton", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "started\n"
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=600)
    assert started.returncode == 130
    assert "program.py" in err
    assert "line " in err
    assert err.endswith("\ninterrupted\n")


def test_a_script_that_is_no_python_has_no_frames_of_others(tmp_path):
    done = call(tmp_path, "def f(:\n")
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert "runpy" not in done.stderr


def test_an_error_in_a_launch_has_the_frames_of_the_script_only(tmp_path):
    (tmp_path / "file").write_text("")
    done = call(tmp_path, LONG, "--record", str(tmp_path / "file" / "below"))
    assert done.returncode == 3
    assert "UNWRITABLE_FILE" in done.stderr
    assert done.stderr.count("File ") == 1


COPY = """
    import sys, torch, triton, triton.language as tl

    @triton.jit
    def twice(x, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    twice[(1,)](torch.ones(8, device="cuda"), SIZE, BLOCK=32)
"""


def test_a_message_names_the_script_and_not_another_one_with_the_same_kernel(tmp_path):
    for name, size, status in (("first", 7, 0), ("second", 9, 2)):
        (tmp_path / name).mkdir()
        script = tmp_path / name / f"{name}.py"
        script.write_text(textwrap.dedent(COPY.replace("SIZE", str(size))))
        command = [sys.executable, "-m", "warploom", "triton", str(script)]
        given = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, env=given)
        assert done.returncode == status, done.stderr
    assert "--> second.py:7" in done.stderr


def test_a_script_that_is_not_there(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "warploom", "triton", str(tmp_path / "none.py")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "UNREADABLE_FILE" in done.stderr


def run_module(folder, name, *arguments):
    command = [sys.executable, "-m", "warploom", "triton", "-m", name, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=1200)


def test_a_module_runs_as_python_runs_it(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("COUNT = 300\n")
    text = textwrap.dedent(SCRIPT).replace("import torch\n", "import torch\nfrom .sizes import COUNT\n", 1)
    (package / "scale.py").write_text(text.replace("torch.randn(300", "torch.randn(COUNT"))
    (package / "__main__.py").write_text("import sys\nprint(sys.argv[1:], __package__)\n")
    done = run_module(tmp_path, "package.scale", "--flag")
    assert done.returncode == 0, done.stderr
    assert "['--flag']" in done.stdout
    failed = run_module(tmp_path, "package.scale", "fault")
    assert failed.returncode == 2
    assert "scale.py" in failed.stderr
    assert "runpy" not in failed.stderr
    assert run_module(tmp_path, "package", "-m", "x").stdout == "['-m', 'x'] package\n"


@pytest.mark.parametrize("name", ["none", "package.none", "none.of.these", "a..b", "sys"])
def test_a_module_that_is_not_there(tmp_path, monkeypatch, capsys, name):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["triton", "-m", name]) == 3
    assert f"BAD_COMMAND: argument -m: {name} is neither a module in" in capsys.readouterr().err


def test_a_package_without_a_main_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["triton", "-m", "bare"]) == 3
    assert "bare is a package without a module `__main__`" in capsys.readouterr().err


THREADS = """
    import sys
    import threading
    from concurrent.futures import ThreadPoolExecutor

    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def double(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    def work(n):
        x = torch.randn(n, device="cuda")
        assert x.is_cuda and x.device == torch.device("cuda", 0)
        out = torch.empty(n, device="cuda")
        double[(triton.cdiv(n, 128),)](x, out, n, BLOCK=128)
        return torch.equal(out, 2 * x)

    def fault():
        x = torch.randn(10, device="cuda")
        double[(1,)](x, x, 1000, BLOCK=1024)

    def wrong():
        raise RuntimeError("the program's own")

    done = []
    threads = [threading.Thread(target=lambda n=n: done.append(work(n))) for n in range(100, 104)]
    threads.append(threading.Thread(target={"fault": fault, "wrong": wrong}.get(sys.argv[1], lambda: work(1))))
    for each in threads:
        each.start()
    pool = ThreadPoolExecutor(2)
    assert all(pool.map(work, range(300, 304)))
    for each in threads[:4]:
        each.join()
    print(done)
"""


@pytest.mark.parametrize(("argument", "status"), [("right", 0), ("fault", 2), ("wrong", 0)])
def test_threads_see_the_emulated_gpu(tmp_path, argument, status):
    script = tmp_path / "threads.py"
    script.write_text(textwrap.dedent(THREADS))
    command = [sys.executable, "-m", "warploom", "triton", str(script), argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert (done.returncode, done.stdout) == (status, "[True, True, True, True]\n"), done.stderr
    if argument == "fault":
        assert "OUT_OF_BOUNDS" in done.stderr
        assert "in fault" in done.stderr
        assert "warploom/" not in done.stderr
    assert ("RuntimeError: the program's own" in done.stderr) == (argument == "wrong")
