"""Time of the first call for each new M: p50 and p99 over random M, with the calls that waited for a new kernel.

    python bench/new_sizes.py [--out FILE.json] [--count 500] [--most 8192] [--n 4096] [--k 4096] [--planning]

Needs a Hopper GPU and PyTorch. A call is `linear(x[:m], w)` with an M that the process has not seen. With `--planning` no
GPU is needed: the time is that of planning for an H200, from the arguments to the launch, without the driver. The cache on
disk is a new folder, so that every kernel is traced, and on a GPU assembled, in this process. Most of that is done in the
background: after the sizes, the same number of others is measured when nothing is left to be built.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Call(NamedTuple):
    """The first call for an M: its time, and whether it waited for a kernel that was not there."""

    m: int
    ms: float
    is_new: bool


def planning(n: int, k: int) -> Callable[[int], int]:
    """Return a function that plans a `linear` of m rows for an H200, and returns the number of kernels so far."""
    import ml_dtypes
    import numpy as np

    from warploom.ops.dense import linear
    from warploom.ops.planning.arrays import ArrayDescriptor, Violations
    from warploom.ops.planning.planner import plan
    from warploom.runtime.gpu.driver import Gpu

    gpu, dtype = Gpu("NVIDIA H200", (9, 0), 132, 140 << 30), np.dtype(ml_dtypes.bfloat16)
    programs: dict[int, Any] = {}

    def array(name: str, rows: int, columns: int, address: int) -> ArrayDescriptor:
        return ArrayDescriptor(name, (rows, columns), (2 * columns, 2), dtype, address, "cuda:0")

    def call(m: int) -> int:
        given = {"x": array("x", m, k, 1 << 30), "w": array("w", n, k, 2 << 30), "out": array("out", m, n, 3 << 30)}
        violations = Violations("linear")
        launch = plan(linear.request({**given, "target": "sm_90a"}, violations, gpu=gpu), violations).launch
        assert launch is not None
        programs[id(launch.program)] = launch.program
        return len(programs)

    return call


def calls(n: int, k: int, most: int) -> Callable[[int], int]:
    """Return a function that calls `linear` on the GPU with m rows, and returns how many calls have waited so far."""
    import torch

    import warploom
    from warploom.runtime import waits

    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU; --planning needs none")
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (most, n))

    def call(m: int) -> int:
        warploom.linear(x[:m], w)
        return waits.summary().waited

    return call


def measured(call: Callable[[int], int], sizes: list[int], settle: Callable[[], Any]) -> list[Call]:
    """Time the first call of each size, after one that loads what all need."""
    before, found = call(sizes[0]), list[Call]()
    for m in sizes[1:]:
        settle()
        start = time.perf_counter()
        after = call(m)
        found.append(Call(m, 1e3 * (time.perf_counter() - start), after > before))
        before = after
    return found


def summary(found: list[Call]) -> dict[str, Any]:
    """Quantiles of all calls, and of those that needed no new kernel."""
    rows = {"all": found, "that did not wait": [each for each in found if not each.is_new]}
    quantiles = {}
    for name, each in rows.items():
        times = sorted(call.ms for call in each)
        last = len(times) - 1
        quantiles[name] = {
            "calls": len(times),
            "p50": statistics.median(times),
            "p90": times[round(0.9 * last)],
            "p99": times[round(0.99 * last)],
            "most": times[-1],
        }
    return quantiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--most", type=int, default=8192)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--k", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--planning", action="store_true", help="plan for an H200 without a GPU")
    options = parser.parse_args()
    sizes = random.Random(options.seed).sample(range(1, options.most + 1), min(options.count + 1, options.most))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["WARPLOOM_CACHE_DIR"] = folder
        if options.planning:
            found = measured(planning(options.n, options.k), sizes, lambda: None)
        else:
            import torch

            from warploom.runtime import waits
            from warploom.runtime.background import worker

            call = calls(options.n, options.k, options.most)
            found = measured(call, sizes, torch.cuda.synchronize)
            print(waits.summary())
            worker().wait(120)
            others = [m for m in range(1, options.most + 1) if m not in sizes]
            later = measured(call, random.Random(options.seed).sample(others, len(sizes)), torch.cuda.synchronize)
            print(waits.summary())
            worker().wait(120)
    rows = summary(found) | ({} if options.planning else {"later": summary(later)["all"]})
    for name, row in rows.items():
        print(
            f"{name:22} {row['calls']:5} calls   p50 {row['p50']:8.3f}   p99 {row['p99']:8.3f}   most {row['most']:8.3f} ms"
        )
    if options.out:
        about = {"what": "new_sizes", "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **vars(options)}
        about["out"] = str(options.out)
        options.out.write_text(json.dumps({**about, "rows": rows, "calls": found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
