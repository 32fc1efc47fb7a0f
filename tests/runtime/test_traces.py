"""Traces on disk: what a later process finds, what makes a new one, damage, many processes, kills."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FunctionType

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.fake_driver import FakeLibrary, FakeTensor

from warploom import launch, matmul
from warploom.host.program import Printed, module_of, text_of
from warploom.kernels.sm90 import matmul as matmul_kernel
from warploom.ops.planning.prepare import bound
from warploom.ptx.syntax.model import Module
from warploom.runtime.cache import traces
from warploom.runtime.cache.disk import Cache, user_cache
from warploom.runtime.gpu.driver import device
from warploom.runtime.gpu.prepared import Prepared
from warploom.structured.cluster import Cluster
from warploom.trace import Array, f32, kernel, thread
from warploom.trace.kernel import KernelFunction

ROOT = Path(__file__).parents[2]
fingerprints = import_module("warploom.runtime.cache.fingerprint")
SHAPE = {"grid": (1, 1, 1), "block": (32, 1, 1)}
SOURCE = "def scale(x: 'Array[f32]', *, steps=1):\n    x[thread()] = x[thread()] * factor\n"
LATER = 1 << 62


@pytest.fixture(autouse=True)
def as_imported(monkeypatch):
    """Edits of the library while its tests run do not affect these."""
    monkeypatch.setattr(fingerprints, "_IMPORTED", LATER)
    version = fingerprints.source_version
    version.cache_clear()
    yield
    version.cache_clear()


@pytest.fixture
def traced(monkeypatch):
    """The kernels that were traced, by name."""
    names: list[str] = []
    own = KernelFunction._trace

    def counted(self, *args):
        names.append(self.name)
        return own(self, *args)

    monkeypatch.setattr(KernelFunction, "_trace", counted)
    return names


def made(source=SOURCE, target="sm_90a", maxnreg=None, **names) -> KernelFunction:
    """A kernel of its own, as a new process has it: it has seen nothing."""
    space = {"Array": Array, "f32": f32, "thread": thread, "factor": 2.0, **names}
    exec(compile(source, "scale.py", "exec"), space)
    return kernel(target=target, maxnreg=maxnreg)(space["scale"])


def on_gpu(shape=(32,), dtype="float32"):
    return FakeTensor(0x10000, shape, dtype)


def entries(folder) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def test_a_second_process_need_not_trace(traced, own_cache):
    first = made().bind(on_gpu(), **SHAPE)
    second = made().bind(on_gpu(), **SHAPE)
    assert traced == ["scale"]
    assert isinstance(second.program, Printed)
    assert text_of(second.program) == text_of(first.program)
    assert (second.shared_bytes, second.entry, second.cluster) == (first.shared_bytes, first.entry, first.cluster)
    fresh = made().bind(np.zeros(32, np.float32), **SHAPE)
    assert module_of(second.program) == fresh.program
    head, whole = second.program.head.kernels[0], fresh.program.kernels[0]
    assert (head.name, head.params, head.directives) == (whole.name, whole.params, whole.directives)
    assert not head.body
    assert len(entries(own_cache)) == 1


def test_a_stored_trace_is_launched_like_a_new_one(install, traced):
    gpu = install(FakeLibrary(sizes=(8,)))
    for at in (0x10000, 0x20000):
        launch(made().bind(FakeTensor(at, (32,), "float32"), **SHAPE), stream=7)
    one, other = gpu.launched
    assert (one.grid, one.block, one.stream) == (other.grid, other.block, other.stream)
    assert [each.parameters[0] for each in gpu.launched] == [at.to_bytes(8, "little") for at in (0x10000, 0x20000)]
    assert traced == ["scale"]
    assert len(gpu.images) == 1, "one text is loaded once"


@pytest.mark.parametrize(
    "change",
    [
        {"factor": 3.0},
        {"factor": 2},
        {"source": SOURCE.replace("* factor", "+ factor")},
        {"source": "\n" + SOURCE},
        {"target": "sm_100a"},
        {"maxnreg": 64},
    ],
    ids="-".join,
)
def test_a_change_of_the_kernel_makes_a_new_trace(traced, change):
    made().bind(on_gpu(), **SHAPE)
    made(**change).bind(on_gpu(), **SHAPE)
    made(**change).bind(on_gpu(), **SHAPE)
    assert traced == ["scale", "scale"]


def test_a_change_of_the_call_makes_a_new_trace(traced):
    for options in ({}, {"block": (64, 1, 1)}, {"cluster": (2, 1, 1), "grid": (2, 1, 1)}, {"steps": 2}):
        for _ in range(2):
            made().bind(on_gpu(), **{**SHAPE, **options})
    for shape in ((32,), (64,)):
        made().bind(on_gpu(shape), **SHAPE)
    assert traced == ["scale"] * 5


def test_another_version_of_the_library_makes_a_new_trace(traced, monkeypatch):
    made().bind(on_gpu(), **SHAPE)
    for module in (fingerprints, traces):
        monkeypatch.setattr(module, "source_version", lambda: "another")
    made().bind(on_gpu(), **SHAPE)
    made().bind(on_gpu(), **SHAPE)
    assert traced == ["scale", "scale"]


def test_files_changed_since_they_were_imported_are_not_what_runs(traced, monkeypatch, own_cache):
    monkeypatch.setattr(fingerprints, "_IMPORTED", 0)
    fingerprints.source_version.cache_clear()
    for _ in range(2):
        assert isinstance(made().bind(on_gpu(), **SHAPE).program, Module)
    assert traced == ["scale", "scale"]
    assert entries(own_cache) == []


def test_values_without_a_fingerprint_are_traced_again(traced, own_cache):
    source = SOURCE.replace("* factor", "* factor.value")

    class Unknown:
        value = 2.0

        def __init__(self):
            self.state = object()

    for _ in range(2):
        made(source, factor=Unknown()).bind(on_gpu(), **SHAPE)
    assert traced == ["scale", "scale"]
    assert entries(own_cache) == []


def test_a_captured_list_is_what_it_holds(traced):
    source = SOURCE.replace("* factor", "* factor[0]")
    for factor in ([2.0], [2.0], [3.0]):
        made(source, factor=factor).bind(on_gpu(), **SHAPE)
    assert traced == ["scale", "scale"]


@pytest.mark.parametrize("damage", ["bytes", "nothing", "another format", "no PTX"])
def test_a_damaged_entry_is_replaced(traced, own_cache, damage):
    first = made().bind(on_gpu(), **SHAPE)
    (place,) = entries(own_cache)
    if damage in ("bytes", "nothing"):
        place.write_bytes(b"" if damage == "nothing" else place.read_bytes()[:-1] + b"?")
    else:
        head = "nonsense" if damage == "no PTX" else None
        junk = json.dumps({"shared_bytes": 0, "head": head} if head else ["of a later day"]).encode() + b"\n.version"
        keys = []
        own = Cache.get
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Cache, "get", lambda self, key: keys.append(key) or own(self, key))
            made().bind(on_gpu(), **SHAPE)
        user_cache().put(keys[-1], junk)
    second, third = (made().bind(on_gpu(), **SHAPE) for _ in range(2))
    assert traced == ["scale", "scale"]
    assert text_of(first.program) == text_of(second.program) == text_of(third.program)


def test_without_a_cache_every_process_traces(traced, monkeypatch, own_cache):
    monkeypatch.setenv("WARPLOOM_CACHE_SIZE", "0")
    for _ in range(2):
        made().bind(on_gpu(), **SHAPE)
    assert traced == ["scale", "scale"]
    assert entries(own_cache) == []


def test_the_emulator_gets_a_module_and_writes_nothing_to_disk(traced, own_cache):
    x = np.arange(32, dtype=np.float32)
    program = made().bind(x, **SHAPE)
    assert isinstance(program.program, Module)
    assert entries(own_cache) == []
    assert traced == ["scale"]


def test_the_emulator_parses_a_cached_text_when_it_runs(traced):
    made().bind(on_gpu(), **SHAPE)
    function = made()
    found = function.bind(on_gpu(), **SHAPE)
    assert traced == ["scale"]
    assert isinstance(found.program, Printed)
    x = np.arange(32, dtype=np.float32)
    launch(replace(found, args=(x,)))
    assert np.array_equal(x, np.arange(32, dtype=np.float32) * 2)
    assert isinstance(function.bind(x, **SHAPE).program, Module), "a launch with host arrays is for the emulator"


def test_a_trace_does_not_depend_on_the_caller_of_bind():
    source = SOURCE + "    Cluster((2, 1))\n"  # which meets at the end, behind the author's last line
    shape = {**SHAPE, "grid": (2, 1, 1), "cluster": (2, 1, 1)}
    x = np.zeros(32, np.float32)
    here = made(source, Cluster=Cluster).bind(x, **shape)
    there = made(source, Cluster=Cluster).bind(x, **shape)
    assert "barrier.cluster" in text_of(here.program)
    assert text_of(here.program) == text_of(there.program)


def test_bounded_waits_accept_a_cached_text(install):
    install(FakeLibrary(sizes=(8, 8)))
    for _ in range(2):
        x = on_gpu()
        Prepared(made().bind(x, **SHAPE), (x,), timeout=1.0)(x)


def fused(gpu, factor, *, m=136, activation="gelu_tanh", scale=None):
    """An operation with an epilogue that captures a number, bound as on tensors of a GPU."""

    def like(*shape):
        return np.zeros(shape, ml_dtypes.bfloat16)

    arguments = {
        "a": like(m, 72),
        "b": like(200, 72).T,
        "bias": like(200),
        "residual": like(m, 200),
        "activation": activation,
        "epilogue": scale or (lambda acc, at: acc * factor),
        "out": like(m, 200),
    }
    return bound(matmul, arguments, gpu).launch


def test_a_users_file_may_have_a_name_that_is_not_utf_8(install, traced, monkeypatch):
    install(FakeLibrary())
    monkeypatch.setattr(matmul_kernel.matmul, "_traces", {})
    space: dict[str, object] = {}
    exec(compile("def scale(acc, at): return acc * 2.0", os.fsdecode(b"/tmp/\xff/author.py"), "exec"), space)
    texts = []
    for _ in range(2):
        matmul_kernel.matmul._traces.clear()
        texts.append(text_of(fused(device(0), 0.5, scale=space["scale"]).program))
    assert len(traced) == 1
    assert texts[0] == texts[1]
    assert "/tmp/\udcff/author.py" in texts[0]


def test_an_operation_with_an_epilogue_is_found(install, traced, monkeypatch):
    install(FakeLibrary())
    gpu = device(0)
    monkeypatch.setattr(matmul_kernel.matmul, "_traces", {})

    def anew(*args, **options):
        matmul_kernel.matmul._traces.clear()
        return fused(gpu, *args, **options)

    texts = [text_of(anew(factor).program) for factor in (0.5, 0.5, 0.25, 0.5)]
    assert len(traced) == 2, "a captured value that changed"
    assert texts[0] == texts[1] == texts[3] != texts[2]
    anew(0.5, m=137)
    assert len(traced) == 2, "one trace serves all sizes"
    anew(0.5, activation="silu")
    assert len(traced) == 3
    state = object()
    for _ in range(2):
        anew(0.5, scale=lambda acc, at: acc * (0.5 if state else 2.0))
    assert len(traced) == 5, "a function that captures a value without a fingerprint"
    assert all(isinstance(anew(factor).program, Printed) for factor in (0.5, 0.25))


WORKER = """
import hashlib, sys
from tests.runtime import test_traces as tests
from warploom.host.program import text_of
from warploom.trace.kernel import KernelFunction
tests.fingerprints._IMPORTED = tests.LATER
traced, own = [], KernelFunction._trace
KernelFunction._trace = lambda self, *args: traced.append(1) or own(self, *args)
print("ready", flush=True)
sys.stdin.readline()
while True:
    for factor in range(4):
        text = text_of(tests.made(factor=float(factor)).bind(tests.on_gpu(), **tests.SHAPE).program)
        digest = hashlib.sha256(text.encode()).hexdigest()
        print(factor, digest, len(traced), flush=True)
    if len(sys.argv) == 1:
        break
"""


def start(*options) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, *options]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, cwd=ROOT, text=True, env=dict(os.environ), **pipes)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_parallel_and_killed_processes_leave_a_usable_cache(own_cache):
    workers = [start("forever") for _ in range(2)]
    digests = set()
    try:
        for worker in workers:
            assert worker.stdout.readline() == "ready\n", worker.stderr.read()
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            time.sleep(random.uniform(0.05, 0.2))
            assert worker.poll() is None, worker.stderr.read()
            worker.send_signal(signal.SIGKILL)
            digests |= {tuple(line.split()[:2]) for line in worker.communicate()[0].splitlines()[:-1]}
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    made_here = {(str(at), _digest(at)) for at in range(4)}
    assert digests <= made_here
    for path in entries(own_cache):
        assert path.suffix != ".part" or path.stat().st_size, path
    last = start()
    lines = last.communicate("go\n")[0].splitlines()[1:]
    assert {tuple(line.split()[:2]) for line in lines} == made_here
    assert [line.split()[2] for line in lines] == ["0"] * 4, "nothing was traced: this process had kept it"


def _digest(factor: int) -> str:
    text = text_of(made(factor=float(factor)).bind(on_gpu(), **SHAPE).program)
    return hashlib.sha256(text.encode()).hexdigest()


def test_functions_of_the_library_are_their_names():
    own = matmul_kernel.matmul._function
    assert isinstance(own, FunctionType)
    assert fingerprints.fingerprint(own) == fingerprints.fingerprint(own)
    assert fingerprints._is_public(own)
