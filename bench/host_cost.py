"""What a call costs the host, over rotating buffers, against a launch of nothing, PyTorch's calls and Triton's.

    python bench/host_cost.py [--out FILE.json] [--buffers 64] [--rounds 15]

Needs a Hopper or Blackwell GPU, PyTorch and cuda-bindings; Triton if it is there. Every figure is the median over
rounds of microseconds per call, and a ratio to its yardstick in the same run; the candidates take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.gpu import kernels

from warploom import launch
from warploom.runtime.prepared import Prepared

M, N, K = 64, 256, 128
"""Small, so that the GPU is never what is waited for."""


def nothing(buffers: int) -> Callable[[int], Any]:
    """A launch of an empty kernel by cuda.bindings, as its documentation has it, with parameters packed before."""
    from cuda.bindings import driver

    text = b".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry nothing(.param .u64 a) { ret; }\n"
    status, module = driver.cuModuleLoadData(text)
    assert status == driver.CUresult.CUDA_SUCCESS, status
    status, function = driver.cuModuleGetFunction(module, b"nothing")
    assert status == driver.CUresult.CUDA_SUCCESS, status
    import numpy as np

    values = [np.array([number], np.uint64) for number in range(buffers)]
    packed = [np.array([each.ctypes.data], np.uint64) for each in values]
    addresses = [each.ctypes.data for each in packed]
    stream = torch.cuda.current_stream().cuda_stream

    def call(at: int) -> Any:
        return driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, addresses[at], 0)

    call.held = (values, packed)
    return call


def triton_call(xs: list[Any], ys: list[Any]) -> Callable[[int], Any] | None:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit
    def add(x, y, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(y + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

    return lambda at: add[(8,)](xs[at], ys[at], 1000, block=128)


def candidates(buffers: int) -> dict[str, tuple[str, Callable[[int], Any]]]:
    """Name → (yardstick, call with the number of a buffer)."""
    xs = [torch.randn(1000, device="cuda") for _ in range(buffers)]
    ys = [torch.randn(1000, device="cuda") for _ in range(buffers)]
    addresses = [(x.data_ptr(), y.data_ptr()) for x, y in zip(xs, ys, strict=True)]
    bound = kernels.saxpy.bind(xs[0], ys[0], 1.0, 1000, grid=(8, 1, 1), block=(kernels.THREADS, 1, 1))
    prepared = Prepared(bound, (xs[0], ys[0]))
    stream = torch.cuda.current_stream().cuda_stream
    found: dict[str, tuple[str, Callable[[int], Any]]] = {
        "nothing, cuda.bindings": ("", nothing(buffers)),
        "prepared saxpy": ("nothing, cuda.bindings", lambda at: prepared(xs[at], ys[at])),
        "prepared saxpy, addresses only": (
            "nothing, cuda.bindings",
            lambda at: prepared.launch_at(addresses[at], stream),
        ),
        "launch(bound saxpy)": ("nothing, cuda.bindings", lambda at: launch(bound)),
    }
    triton = triton_call(xs, ys)
    if triton is not None:
        found["a Triton kernel"] = ("nothing, cuda.bindings", triton)
    return found | products(buffers)


def products(buffers: int) -> dict[str, tuple[str, Callable[[int], Any]]]:
    import warploom.ops as wl
    from warploom.ops.prepare import plan_matmul
    from warploom.ops.product import TARGETS
    from warploom.runtime.driver import device

    def make(*shape: int) -> list[Any]:
        return [torch.randn(*shape, device="cuda").bfloat16() for _ in range(buffers)]

    xs, ws, biases, residuals, outs = make(M, K), make(N, K), make(N), make(M, N), make(M, N)
    turned = [w.T for w in ws]
    gelu = torch.nn.functional.gelu

    def sequence(at: int) -> Any:
        return gelu(torch.addmm(biases[at], xs[at], turned[at]), approximate="tanh") + residuals[at]

    found: dict[str, tuple[str, Callable[[int], Any]]] = {
        "torch.mm": ("", lambda at: torch.mm(xs[at], turned[at])),
        "torch addmm, gelu, add": ("torch.mm", sequence),
    }
    if device(torch.cuda.current_device()).target not in TARGETS:
        return found
    call = plan_matmul(xs[0], turned[0], out=outs[0])
    fused = {"activation": "gelu_tanh"}
    compiled = torch.compile(lambda x, w, b, r: wl.linear(x, w, bias=b, residual=r, **fused), fullgraph=True)
    grads = [(x.clone().requires_grad_(), w.clone().requires_grad_()) for x, w in zip(xs, ws, strict=True)]

    def graded(at: int) -> Any:
        with torch.enable_grad():
            return wl.linear(*grads[at])

    def theirs(at: int) -> Any:
        with torch.enable_grad():
            return torch.nn.functional.linear(*grads[at])

    return found | {
        "prepared matmul": ("nothing, cuda.bindings", lambda at: call(xs[at], turned[at], outs[at])),
        "linear": ("torch.mm", lambda at: wl.linear(xs[at], ws[at])),
        "linear, bias, gelu, residual": (
            "torch addmm, gelu, add",
            lambda at: wl.linear(xs[at], ws[at], bias=biases[at], residual=residuals[at], **fused),
        ),
        "the same, compiled": (
            "torch addmm, gelu, add",
            lambda at: compiled(xs[at], ws[at], biases[at], residuals[at]),
        ),
        "torch linear with grad": ("torch.mm", theirs),
        "linear with grad": ("torch linear with grad", graded),
    }


def measured(call: Callable[[int], Any], buffers: int, turns: int = 4) -> float:
    """Microseconds per call of a burst that the GPU's queue holds."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(turns):
        for at in range(buffers):
            call(at)
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return seconds / (turns * buffers) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--buffers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU")
    torch.zeros(1, device="cuda")
    with torch.no_grad():
        calls = candidates(options.buffers)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for round_ in range(options.rounds + 2):
            for name, (_, call) in calls.items():
                took = measured(call, options.buffers)
                if round_ >= 2:
                    times[name].append(took)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        {"call": name, "us": medians[name], "yardstick": yardstick, "ratio": medians[name] / medians[yardstick or name]}
        for name, (yardstick, _) in calls.items()
    ]
    for row in rows:
        print(f"{row['call']:34} {row['us']:8.2f} µs   {row['ratio']:6.2f} × {row['yardstick'] or 'itself'}")
    if options.out:
        told = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
