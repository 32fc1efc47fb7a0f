"""Launches on a Hopper GPU: parameters, tensor maps, clusters, streams, graphs, prepared calls, failures."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.gpu import kernels
from tests.gpu.here import needs_hopper, torch

from warploom import TensorMap, launch
from warploom.diagnostics import WarploomError
from warploom.host.arrays import Pointers, scratch
from warploom.runtime.gpu import launching as shaped
from warploom.runtime.gpu import loading
from warploom.runtime.gpu.driver import device
from warploom.runtime.gpu.loading import resident_clusters
from warploom.runtime.gpu.prepared import Prepared

pytestmark = needs_hopper
ONE = (1, 1, 1)
BLOCK = (kernels.THREADS, 1, 1)


def bits(array):
    return array.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def on_gpu(array):
    """A NumPy array of any type on the GPU."""
    raw = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).cuda()
    return raw.view(getattr(torch, array.dtype.name)).reshape(array.shape)


def saxpy(x, y, a, **options):
    n = x.shape[0]
    return kernels.saxpy.bind(x, y, a, n, grid=(-(-n // kernels.THREADS), 1, 1), block=BLOCK, **options)


@pytest.mark.parametrize("n", [1, 127, 1000, 4097])
def test_a_user_kernel_matches_the_emulator(n):
    rng = np.random.default_rng()
    x, y = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    gx, gy = on_gpu(x), on_gpu(y)
    launch(saxpy(gx, gy, 1.7))
    launch(saxpy(x, y, 1.7))
    assert bits(gy) == y.tobytes()


def test_views_start_at_their_first_element():
    whole = torch.zeros(64, device="cuda")
    part = whole[5:37]
    launch(saxpy(torch.ones(32, device="cuda"), part, 2.0))
    assert whole.tolist() == [0.0] * 5 + [2.0] * 32 + [0.0] * 27


MAPS = [
    ("bfloat16", (40, 96), (16, 64), "128B", {}),
    ("float16", (40, 96), (16, 32), "64B", {}),
    ("uint8", (40, 96), (24, 32), "32B", {}),
    ("float8_e4m3fn", (17, 256), (8, 128), "128B", {}),
    ("float32", (20, 100), (16, 32), "128B", {"fill": "nan"}),
    ("float32", (20, 100), (16, 32), "none", {"dtype": "tf32", "l2_promotion": "128B"}),
    ("int32", (7, 9, 64), (3, 4, 32), "128B", {}),
    ("uint16", (3, 5, 6, 64), (2, 2, 3, 64), "128B", {}),
    ("float64", (12, 32), (8, 16), "128B", {}),
    ("uint8", (30, 64), (30, 64), "none", {"element_strides": (3, 1)}),
]


@pytest.mark.parametrize(
    ("dtype", "shape", "extent", "swizzle", "more"), MAPS, ids=lambda each: str(each).replace(" ", "")
)
def test_a_tma_box_has_the_layout_of_the_emulator(dtype, shape, extent, swizzle, more):
    rng = np.random.default_rng()
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    raw = rng.integers(0, 0x38, (*shape[:-1], shape[-1] * kind.itemsize)).astype(np.uint8)
    host = raw.view(kind)
    unit = max(16 // kind.itemsize, 1)
    starts = [(0, 0), (shape[-2] - 3, unit), (-2, shape[-1] // unit * unit - unit)]
    for first, second in starts:
        results = []
        for array in (host, on_gpu(host)):
            tensor = TensorMap(array, box=extent, swizzle=swizzle, **more)
            words = tensor.geometry.shared_bytes // 4
            out = np.full(words, 0xABCD, np.uint32)
            out = out if array is host else on_gpu(out)
            launch(kernels.box.bind(tensor, out, first, second, grid=ONE, block=BLOCK, words=words, rank=len(shape)))
            results.append(out.tobytes() if array is host else bits(out))
        assert results[0] == results[1], (first, second)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_clusters(size):
    out = torch.zeros(32, dtype=torch.int32, device="cuda").view(torch.uint32)
    launched = kernels.ranks.bind(out, grid=(32, 1, 1), block=BLOCK, cluster=(size, 1, 1))
    launch(launched)
    assert out.cpu().tolist() == [cta % size + 1000 * size for cta in range(32)]
    assert 1 <= resident_clusters(launched, device(0)) <= 132 * 32 // size


def test_dependent_launches_wait_for_each_other():
    n = 100_000
    x = torch.arange(n, dtype=torch.int32, device="cuda").view(torch.uint32)
    bound = kernels.step.bind(x, n, grid=(-(-n // kernels.THREADS), 1, 1), block=BLOCK)
    call = Prepared(replace(bound, dependent=True), (x,))
    want = np.arange(n, dtype=np.uint32)
    for _ in range(20):
        call(x)
        want = want * np.uint32(3) + np.uint32(1)
    assert np.array_equal(x.cpu().numpy(), want)


POINTEES = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry pointees(.param .u64 table)
{
 .reg .pred %p; .reg .b32 %r<2>; .reg .b64 %rd<4>;
 ld.param.u64 %rd0, [table]; mov.u32 %r0, %ctaid.x;
 mul.wide.u32 %rd1, %r0, 8; add.u64 %rd0, %rd0, %rd1; ld.global.u64 %rd2, [%rd0];
 setp.eq.u64 %p, %rd2, 0;
 @%p ret;
 ld.global.u32 %r1, [%rd2]; add.u32 %r1, %r1, %r0; st.global.u32 [%rd2], %r1;
 ret;
}
"""


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_pointers_to_arrays(count):
    whole = torch.zeros((count, 8), dtype=torch.int32, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for stream in (None, side, None):
        for _ in range(20):  # the memory of the addresses is freed and reused while launches wait
            pointers = Pointers([*whole.unbind()[:-1], None, whole[-1]])
            launch(POINTEES, grid=(count + 1, 1, 1), block=ONE, args=[pointers], stream=stream)
        torch.cuda.synchronize()
    assert whole[:, 0].tolist() == [60 * number for number in (*range(count - 1), count)]
    assert whole[:, 1:].count_nonzero() == 0


def test_streams():
    side = torch.cuda.Stream()
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        y.fill_(5)
        launch(saxpy(x, y, 1.0))
    launch(saxpy(x, y, 0.0), stream=side)
    side.synchronize()
    assert y.unique().tolist() == [6.0]


def test_a_graph_captures_launches_including_module_loading(monkeypatch):
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(shaped, "_SHAPES", {})
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(saxpy(x, y, 1.0))
        launch(saxpy(x, y, 2.0))
    assert y.sum() == 0
    for _ in range(3):
        graph.replay()
    assert y.unique().tolist() == [9.0]


def test_a_launch_object_is_launched_repeatedly():
    n, side = 1000, torch.cuda.Stream()
    x, y = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")
    bound = saxpy(x, y, 1.0)
    for _ in range(3):
        launch(bound)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        launch(bound)
    side.synchronize()
    launch(bound, stream=side)
    side.synchronize()
    assert y.unique().tolist() == [5.0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(bound)
        launch(bound)
    graph.replay()
    assert y.unique().tolist() == [7.0]
    before, y.data = y.data, torch.zeros(n, device="cuda")
    launch(bound)
    assert (y.unique().tolist(), before.unique().tolist()) == ([1.0], [7.0]), "an array may lie elsewhere by now"
    x.data = x.cpu()
    with pytest.raises(WarploomError, match="some arrays are on the host"):
        launch(bound)


def test_launches_of_one_shape_have_separate_arguments():
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    for turn, a in enumerate((1.0, 2.0, 4.0, -0.0, 0.5)):
        launch(saxpy(x, y[turn:], a))
    assert y[:6].tolist() == [1.0, 3.0, 7.0, 7.0, 7.5, 7.5]


def test_prepared_calls_over_rotating_buffers():
    count, n = 64, 3000
    xs = [torch.randn(n, device="cuda") for _ in range(count)]
    ys = [torch.randn(n, device="cuda") for _ in range(count)]
    want = [y.clone() for y in ys]
    call = Prepared(saxpy(xs[0], ys[0], 0.5), (xs[0], ys[0]))
    for _ in range(3):
        for x, y, expected in zip(xs, ys, want, strict=True):
            call(x, y)
            expected.copy_(x * 0.5 + expected)
    assert all(torch.equal(y, expected) for y, expected in zip(ys, want, strict=True))
    assert sum(map(len, call._records.values())) == count
    with pytest.raises(WarploomError, match="its shape"):
        call(xs[0][:-1], ys[0])
    with pytest.raises(WarploomError, match="its dtype"):
        call(xs[0].view(torch.int32), ys[0])
    with pytest.raises(WarploomError, match="it is on cpu"):
        call(xs[0].cpu(), ys[0])


def test_workspace():
    x = torch.zeros(1, dtype=torch.int32, device="cuda").view(torch.uint32)
    own = scratch((kernels.THREADS,), np.uint32), scratch((1,), np.uint32, starts_at_zero=True)
    call = Prepared(kernels.own_memory.bind(x, *own, grid=ONE, block=BLOCK), (x,))
    for turn in (1, 2):
        call(x)
        assert x.item() == kernels.THREADS * 1000 + turn
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(x)
        call(x)
    for turn in (2, 4):
        graph.replay()
        assert x.item() == kernels.THREADS * 1000 + turn, "a graph's memory begins at zero, and is its own"
    call(x)
    assert x.item() == kernels.THREADS * 1000 + 3


def test_a_new_thread_may_launch():
    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    call = Prepared(saxpy(x, y, 1.0), (x, y))
    call(x, y)
    thread = threading.Thread(target=call.launch_at, args=((x.data_ptr(), y.data_ptr()), 0))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert y.unique().tolist() == [2.0]


@pytest.mark.parametrize("library", ["cupy", "jax.numpy"])
def test_arrays_of_other_libraries(library):
    other = pytest.importorskip(library)
    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    written = other.from_dlpack(y) if library == "cupy" else y  # JAX arrays are immutable
    launch(saxpy(other.from_dlpack(x), written, 3.0))
    torch.cuda.synchronize()
    assert y.unique().tolist() == [3.0]


def test_the_driver_can_assemble(monkeypatch):
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(loading, "_fitting_ptxas", lambda *_: None)
    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    call = Prepared(saxpy(x, y, 2.0), (x, y))
    call(x, y)
    assert call.loaded.assembler.startswith("the driver")
    assert y.unique().tolist() == [2.0]


def test_a_kernel_for_another_gpu_is_refused():
    from warploom.trace.kernel import KernelFunction

    other = KernelFunction(kernels.ranks.__wrapped__, "sm_100a", None)
    out = torch.zeros(1, dtype=torch.int32, device="cuda").view(torch.uint32)
    with pytest.raises(WarploomError, match="the kernel is for sm_100a, and the GPU is sm_90a"):
        launch(other.bind(out, grid=ONE, block=BLOCK))


def test_the_first_example_is_right():
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    try:
        import first_kernel as example
    finally:
        sys.path.pop(0)
    rows, columns, depth = 512, 384, 1024
    a = torch.randint(-4, 5, (rows, depth), device="cuda").bfloat16()
    b = torch.randint(-4, 5, (columns, depth), device="cuda").bfloat16()
    d = torch.full((rows, columns), torch.nan, device="cuda")
    maps = [TensorMap(each, box=(example.TILE, example.TILE_K), swizzle="128B") for each in (a, b)]
    grid = (columns // example.TILE, rows // example.TILE, 1)
    launch(example.matmul.bind(*maps, d, depth // example.TILE_K, grid=grid, block=(288, 1, 1)))
    assert torch.equal(d, a.float() @ b.float().T)


def test_a_fault_is_reported_by_the_next_launch():
    program = (
        "import torch\n"
        "from tests.gpu import kernels\n"
        "from warploom import launch\n"
        "x = torch.zeros(4, dtype=torch.int32, device='cuda').view(torch.uint32)\n"
        "launch(kernels.stray.bind(x, 1 << 30, grid=(1, 1, 1), block=(128, 1, 1)))\n"
        "try:\n"
        "    torch.cuda.synchronize()\n"
        "except Exception:\n"
        "    pass\n"
        "launch(kernels.stray.bind(x, 0, grid=(1, 1, 1), block=(128, 1, 1)))\n"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=root, check=False
    )
    assert run.returncode != 0
    assert "failed on the GPU: " in run.stderr, run.stderr[-2000:]
