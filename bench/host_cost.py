"""Host time per call, over rotating buffers, against an empty kernel, PyTorch and Triton.

    python bench/host_cost.py [--out FILE.json] [--buffers 64] [--rounds 15]

Needs a Hopper or Blackwell GPU, PyTorch and cuda-bindings; Triton is optional. Every figure is the median over rounds of
microseconds per call, and its ratio to a yardstick in the same run; the candidates alternate. Chains of layers are
reported per layer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from measuring import machine
from tests.gpu import kernels

from warploom import launch
from warploom.runtime.gpu.prepared import Prepared

M, N, K = 64, 256, 128
"""Small, so that the GPU is never the bottleneck."""
LAYERS, GROUPS = 8, 4
MOST_LAUNCHES = 768
"""Fewer launches than a stream queues before the host blocks."""
NOTHING, PRODUCT, SEQUENCE = "empty kernel, cuda.bindings", "torch.mm", "torch addmm, gelu, add"


class Candidate(NamedTuple):
    """A measured call, which takes the number of a buffer, and its yardstick."""

    yardstick: str
    call: Callable[[int], Any]
    launches: int = 1
    """Kernels that a call launches."""
    calls: int = 1
    """Operations that one call performs."""


Candidates = dict[str, Candidate]


def nothing(buffers: int) -> Callable[[int], Any]:
    """Launch an empty kernel with cuda.bindings, as in its documentation, with packed parameters."""
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


def random(buffers: int, *shape: int, kind: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Make a tensor of normally distributed numbers for each buffer."""
    return [torch.randn(*shape, device="cuda").to(kind) for _ in range(buffers)]


def own_kernels(buffers: int) -> Candidates:
    """Launch a user kernel in every way."""
    xs, ys = (random(buffers, 1000, kind=torch.float32) for _ in range(2))
    addresses = [(x.data_ptr(), y.data_ptr()) for x, y in zip(xs, ys, strict=True)]
    shape = {"grid": (8, 1, 1), "block": (kernels.THREADS, 1, 1)}

    def bind(at: int) -> Any:
        return kernels.saxpy.bind(xs[at], ys[at], 1.0, 1000, **shape)

    bound = [bind(at) for at in range(buffers)]
    prepared = Prepared(bound[0], (xs[0], ys[0]))
    stream = torch.cuda.current_stream().cuda_stream
    found = {
        NOTHING: Candidate("", nothing(buffers)),
        "prepared saxpy": Candidate(NOTHING, lambda at: prepared(xs[at], ys[at])),
        "prepared saxpy, addresses only": Candidate(NOTHING, lambda at: prepared.launch_at(addresses[at], stream)),
        "launch(bound saxpy)": Candidate(NOTHING, lambda at: launch(bound[at])),
        "launch(saxpy.bind(…))": Candidate(NOTHING, lambda at: launch(bind(at))),
    }
    triton = triton_call(xs, ys)
    return found | ({"a Triton kernel": Candidate(NOTHING, triton)} if triton is not None else {})


def products(buffers: int) -> Candidates:
    """GEMMs with and without epilogues, against PyTorch's."""
    import warploom.ops as wl
    from warploom.ops.planning.prepare import plan_matmul
    from warploom.runtime.gpu.driver import device
    from warploom.structured.config import HopperConfig, MatmulConfig

    xs, ws, biases = random(buffers, M, K), random(buffers, N, K), random(buffers, N)
    residuals, outs = random(buffers, M, N), random(buffers, M, N)
    turned = [w.T for w in ws]
    call, fused = plan_matmul(xs[0], turned[0], out=outs[0]), {"activation": "gelu_tanh"}

    def theirs(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        return torch.nn.functional.gelu(torch.addmm(bias, x, w.T), approximate="tanh") + residual

    def ours(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        return wl.linear(x, w, bias=bias, residual=residual, **fused)

    def over(function: Callable[..., Any]) -> Callable[[int], Any]:
        return lambda at: function(xs[at], ws[at], biases[at], residuals[at])

    compiled = {function: over(torch.compile(function, fullgraph=True)) for function in (theirs, ours)}
    is_hopper = device(torch.cuda.current_device()).target == "sm_90a"
    config, scale = HopperConfig() if is_hopper else MatmulConfig(), 0.5

    def scaled(at: int) -> Any:
        return wl.linear(xs[at], ws[at], epilogue=lambda acc, _: acc * scale)

    def with_operand(at: int) -> Any:
        return wl.linear(xs[at], ws[at], epilogue=lambda acc, _, s: acc * s, operands={"s": biases[at]})

    return {
        PRODUCT: Candidate("", lambda at: torch.mm(xs[at], turned[at])),
        SEQUENCE: Candidate(PRODUCT, over(theirs), 3),
        "prepared matmul": Candidate(NOTHING, lambda at: call(xs[at], turned[at], outs[at])),
        "linear": Candidate(PRODUCT, lambda at: wl.linear(xs[at], ws[at])),
        "linear, out": Candidate("linear", lambda at: wl.linear(xs[at], ws[at], out=outs[at])),
        "linear, config": Candidate("linear", lambda at: wl.linear(xs[at], ws[at], config=config)),
        "linear, epilogue": Candidate("linear", scaled),
        "linear, epilogue and operand": Candidate("linear", with_operand),
        "linear, bias, gelu, residual": Candidate(SEQUENCE, over(ours)),
        f"{SEQUENCE}, compiled": Candidate(SEQUENCE, compiled[theirs], 2),
        "linear, bias, gelu, residual, compiled": Candidate(f"{SEQUENCE}, compiled", compiled[ours]),
    }


def chains(buffers: int) -> Candidates:
    """Chain equal layers in one compiled function, with nothing to fuse between them."""
    import warploom.ops as wl

    xs, weights = random(buffers, M, K), [layer / K**0.5 for layer in random(LAYERS, K, K)]

    def chain(linear: Callable[..., Any]) -> Callable[[int], Any]:
        def layers(x: Any, weights: list[Any]) -> Any:
            for weight in weights:
                x = linear(x, weight)
            return x

        compiled = torch.compile(layers, fullgraph=True)
        return lambda at: compiled(xs[at], weights)

    names = {"torch": torch.nn.functional.linear, "warploom": wl.linear}
    calls = {name: chain(linear) for name, linear in names.items()}
    theirs = f"one of {LAYERS} torch linears, compiled"
    return {
        theirs: Candidate(PRODUCT, calls["torch"], LAYERS, LAYERS),
        f"one of {LAYERS} linears, compiled": Candidate(theirs, calls["warploom"], LAYERS, LAYERS),
    }


def derived(buffers: int) -> Candidates:
    import warploom.ops as wl

    xs, ws = ([each.requires_grad_() for each in random(buffers, *shape)] for shape in ((M, K), (N, K)))

    def graded(linear: Callable[..., Any]) -> Callable[[int], Any]:
        def call(at: int) -> Any:
            with torch.enable_grad():
                return linear(xs[at], ws[at])

        return call

    gradients = random(buffers, M, N)

    def both_ways(linear: Callable[..., Any]) -> Callable[[int], Any]:
        def call(at: int) -> None:
            with torch.enable_grad():
                linear(xs[at], ws[at]).backward(gradients[at])
            xs[at].grad = ws[at].grad = None

        return call

    theirs, theirs_too = "torch linear with grad", "torch linear, forward and backward"
    return {
        theirs: Candidate(PRODUCT, graded(torch.nn.functional.linear)),
        "linear with grad": Candidate(theirs, graded(wl.linear)),
        theirs_too: Candidate(PRODUCT, both_ways(torch.nn.functional.linear), 3),
        "linear, forward and backward": Candidate(theirs_too, both_ways(wl.linear), 3),
    }


def pairs_and_groups(buffers: int) -> Candidates:
    """Gated and grouped GEMMs, against PyTorch's where it has them."""
    import warploom.ops as wl

    xs, gates, ups = random(buffers, M, K), random(buffers, N, K), random(buffers, N, K)
    experts = [each.transpose(1, 2) for each in random(buffers, GROUPS, N, K)]
    ends = torch.tensor([M * group // GROUPS for group in range(1, GROUPS + 1)], dtype=torch.int32, device="cuda")
    linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
    gated, grouped = "torch two linears, silu, mul", "torch._grouped_mm"
    found = {
        gated: Candidate(PRODUCT, lambda at: silu(linear(xs[at], gates[at])) * linear(xs[at], ups[at]), 4),
        "gated_linear": Candidate(gated, lambda at: wl.gated_linear(xs[at], gates[at], ups[at])),
    }
    peer = getattr(torch, "_grouped_mm", None)
    if peer is not None:
        found[grouped] = Candidate(PRODUCT, lambda at: peer(xs[at], experts[at], offs=ends), 3)
    ours = Candidate(grouped if peer else PRODUCT, lambda at: wl.grouped_matmul(xs[at], experts[at], ends), 2)
    return found | {"grouped_matmul": ours}


def candidates(buffers: int) -> Candidates:
    from warploom.ops.planning.planner import TARGETS
    from warploom.runtime.gpu.driver import device

    found = own_kernels(buffers)
    if device(torch.cuda.current_device()).target in TARGETS:
        for make in (products, chains, derived, pairs_and_groups):
            found |= make(buffers)
    return found


def measured(call: Callable[[int], Any], buffers: int, turns: int = 4) -> float:
    """Time a burst that fits into the GPU's queue, in microseconds per call."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(turns):
        for at in range(buffers):
            call(at)
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return seconds / (turns * buffers) * 1e6


def about(buffers: int, rounds: int) -> dict[str, Any]:
    """Describe the measurement and the system."""
    shapes = {"products": [M, N, K], "layers of a chain": [M, K, K], "groups": GROUPS, "saxpy": [1000]}
    return {
        "what": "host_cost",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "shapes": shapes,
        "inputs": "N(0, 1) in bfloat16, weights of a chain / sqrt(K); saxpy in float32",
        "buffers": buffers,
        "rounds": rounds,
    }


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
            for name, each in calls.items():
                turns = max(1, min(4, MOST_LAUNCHES // (options.buffers * each.launches)))
                took = measured(each.call, options.buffers, turns) / each.calls
                if round_ >= 2:
                    times[name].append(took)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        {
            "call": name,
            "us": us,
            "yardstick": calls[name].yardstick,
            "ratio": us / medians[calls[name].yardstick or name],
        }
        for name, us in medians.items()
    ]
    for row in rows:
        print(f"{row['call']:40} {row['us']:8.2f} µs   {row['ratio']:6.2f} × {row['yardstick'] or 'itself'}")
    if options.out:
        document = {**about(options.buffers, options.rounds), "rows": rows}
        options.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
