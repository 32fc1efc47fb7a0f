"""Time to the first result of a new kernel, in new processes, with empty and with warm caches, next to Triton's.

    python bench/first_result.py [--out bench/results/first_result.json] [--rounds 5] [--jobs 1] [--dry]

Each figure is the median over processes of milliseconds from the call to the result on the GPU; imports, the CUDA
context and the inputs exist before. An empty cache is an empty directory (WARPLOOM_CACHE_DIR, TRITON_CACHE_DIR), a warm
one was filled by another process. Every result is compared with PyTorch's. `--dry` runs warploom's cases without a GPU,
with a driver that launches nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
M, N, K = 1024, 3072, 2048
"""A size that is in no table, so that the cost model chooses the configuration."""
BARS = {"without": 1000, "with": 50}
YARDSTICK = "Triton, plain"
Arguments = dict[str, Any]


def inputs(device: str) -> Arguments:
    import torch

    def make(*shape: int) -> Any:
        return (torch.randn(*shape, device=device) * 0.1).bfloat16()

    return {"a": make(M, K), "b": make(N, K).T, "bias": make(N), "residual": make(M, N)}


def wanted(given: Arguments, case: str) -> Any:
    """Compute the reference with PyTorch in float32."""
    import torch

    product = given["a"].float() @ given["b"].float()
    if "plain" in case:
        return product
    if "own kernel" in case:
        return given["bias"].float() * 3
    made = torch.nn.functional.gelu(product + given["bias"].float(), approximate="tanh")
    return (made * 0.5 if "epilogue" in case else made) + given["residual"].float()


def product_call(case: str) -> Callable[[Arguments], Any]:
    import warploom
    import warploom.torch.dispatch

    factor = 0.5
    options: Arguments = {} if "plain" in case else {"activation": "gelu_tanh"}
    if "epilogue" in case:
        options["epilogue"] = lambda value, at: value * factor
    names = ("a", "b") if "plain" in case else ("a", "b", "bias", "residual")
    return lambda given: warploom.matmul(**{name: given[name] for name in names}, **options)


def own_kernel_call(_: str) -> Callable[[Arguments], Any]:
    import torch

    from warploom import launch
    from warploom.runtime.cache import traces  # noqa: F401  imported by a launch on a GPU
    from warploom.trace import Array, cta_index, kernel, thread

    @kernel
    def tripled(x: Array, y: Array):
        at = cta_index() * 128 + thread()
        y[at] = (x[at].to("f32") * 3.0).to("bf16")

    def call(given: Arguments) -> Any:
        out = torch.empty_like(given["bias"])
        launch(tripled.bind(given["bias"], out, grid=(N // 128, 1, 1), block=(128, 1, 1)))
        return out

    return call


def triton_call(_: str) -> Callable[[Arguments], Any]:
    """A matmul like that of Triton's tutorial; another kernel runs before, since Triton builds its own tools once."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def nothing(x):
        tl.store(x, 0.0)

    @triton.jit
    def product(a, b, d, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        rows = tl.program_id(0) * BM + tl.arange(0, BM)
        columns = tl.program_id(1) * BN + tl.arange(0, BN)
        depth = tl.arange(0, BK)
        sums = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, k, BK):
            left = tl.load(a + rows[:, None] * k + (start + depth)[None, :])
            right = tl.load(b + columns[None, :] * k + (start + depth)[:, None])
            sums = tl.dot(left, right, sums)
        tl.store(d + rows[:, None] * n + columns[None, :], sums.to(tl.bfloat16))

    nothing[(1,)](torch.empty(1, device="cuda"))

    def call(given: Arguments) -> Any:
        out = torch.empty(M, N, dtype=torch.bfloat16, device="cuda")
        grid = (M // 128, N // 128)
        product[grid](given["a"], given["b"], out, M, N, K, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
        return out

    return call


CASES: dict[str, Callable[[str], Callable[[Arguments], Any]]] = {
    "warploom, plain": product_call,
    "warploom, bias, gelu, residual": product_call,
    "warploom, bias, gelu, epilogue, residual": product_call,
    "warploom, user kernel": own_kernel_call,
    YARDSTICK: triton_call,
}


def on_the_gpu(case: str) -> float:
    """Time the first call of this process, in milliseconds."""
    import torch

    call, given = CASES[case](case), inputs("cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    out = call(given)
    torch.cuda.synchronize()
    took = (time.perf_counter() - start) * 1e3
    error = (out.float() - wanted(given, case)).abs().max().item()
    if not error < 0.05:
        sys.exit(f"{case}: the result is off by {error}")
    return took


def without_a_gpu(case: str) -> float:
    """Time the host work alone, with a driver that launches nothing."""
    import torch
    from tests.runtime.fake_driver import FakeLibrary

    from warploom.runtime.gpu import driver
    from warploom.torch import op_library as torch_library

    library = FakeLibrary()
    driver.load_library = lambda: library
    gpu, given = driver.device(0), inputs("cpu")
    torch_library.device = lambda _: gpu
    arguments = {"alpha": 1.0, **({} if "plain" in case else {"beta": 1.0, "activation": "gelu_tanh"})}
    if "epilogue" in case:
        factor = 0.5
        arguments["epilogue"] = lambda value, at: value * factor
    arguments |= {name: given[name] for name in (("a", "b") if "plain" in case else given)}
    arguments["out"] = torch.empty(M, N, dtype=torch.bfloat16)
    addresses = tuple(each.data_ptr() for each in arguments.values() if isinstance(each, torch.Tensor))
    start = time.perf_counter()
    torch_library._planned("matmul", arguments, None).prepared.launch_at(addresses, 0)
    return (time.perf_counter() - start) * 1e3


def in_a_new_process(case: str, folder: str, dry: bool) -> float:
    """Time a case in a new process, with its caches in a directory."""
    environment = {**os.environ, "WARPLOOM_CACHE_DIR": f"{folder}/warploom", "TRITON_CACHE_DIR": f"{folder}/triton"}
    command = [sys.executable, __file__, "--case", case, *(["--dry"] if dry else [])]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        sys.exit(f"{case} ended with status {run.returncode}")
    return float(run.stdout.splitlines()[-1])


def measured(case: str, rounds: int, dry: bool) -> dict[str, Any]:
    """Measure a case with an empty and a warm cache; each round has its own directory."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for found in times.values():
                found.append(in_a_new_process(case, folder, dry))
    return {"case": case, **{f"{name}_ms": statistics.median(found) for name, found in times.items()}, "all_ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="cases measured in parallel")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print((without_a_gpu if options.dry else on_the_gpu)(options.case))
        return
    cases = [case for case in CASES if not options.dry or ("warploom" in case and "own" not in case)]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda case: measured(case, options.rounds, options.dry), cases))
    peer = next((row for row in rows if row["case"] == YARDSTICK), None)
    print(f"{M}×{N}×{K}, milliseconds to the first result{' of the host alone' if options.dry else ''}")
    print(f"{'':42} {'without a cache':>18} {'with it':>12}")
    for row in rows:
        if peer is not None:
            row |= {f"{name}_ratio": row[f"{name}_ms"] / peer[f"{name}_ms"] for name in BARS}
        print(f"{row['case']:42} {row['without_ms']:15.1f} ms {row['with_ms']:9.1f} ms")
    print(f"{'at most':42} {BARS['without']:15.1f} ms {BARS['with']:9.1f} ms")
    if options.out and not options.dry:
        from measuring import machine

        document = {"machine": machine(), "shape": [M, N, K], "yardstick": YARDSTICK, "bars_ms": BARS, "rows": rows}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
