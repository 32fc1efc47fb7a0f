"""Cost of a check: CPU time of `warploom.check` against the plain eager run of another checkout of this repository.

    python bench/check_cost.py --baseline DIR [--rows WORD …] [--repeats 5] [--profile] [--json FILE]

The matmuls are those of the library with a tile of 128 × 128, and Triton's (`machine_kernels.py`). Each checkout runs in a
process of its own with one BLAS thread; the processes alternate, and a row is the best of N warm runs. The bars are 3.5
times the baseline's run at 512³ and 5 times for one tile at K = 16,384. The last rows have the peak memory of a check.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
sys.path.append(str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402  (after the thread counts are set)
from machine_speed import KERNELS, commit, compile_kernel, matmul_case, processor, random_array  # noqa: E402

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "check_cost.json"
LONG = 16_384
Job = tuple[Callable[[], object], Callable[[], object]]
"""A plain run, and a check."""


def library(target: str, m: int, n: int, k: int) -> Job:
    """A GEMM of the library with a tile of 128 × 128."""
    import warploom
    from warploom.structured.config import HopperConfig

    a, b = random_array(np.random.default_rng(1), m, k), random_array(np.random.default_rng(2), k, n)
    options: dict[str, Any] = {"target": target}
    if target == "sm_100a":
        options["config"] = warploom.MatmulConfig(cta_group=1, mma_shape=(128, 128, 16))
    else:
        options["config"] = HopperConfig()  # the tile is 128 × 128 in both checkouts
    return (
        lambda: warploom.matmul(a, b, **options),
        lambda: warploom.check(warploom.matmul.bind(a, b, **options)),
    )


def linear() -> Job:
    """`linear` with bias, GELU and residual, with its default configuration."""
    import warploom

    rng = np.random.default_rng(4)
    x, w, bias, residual = (random_array(rng, *shape) for shape in ((512, 512), (512, 512), (512,), (512, 512)))
    options = {"bias": bias, "activation": "gelu", "residual": residual, "target": "sm_100a"}
    return (
        lambda: warploom.linear(x, w, **options),
        lambda: warploom.check(warploom.linear.bind(x, w, **options)),
    )


def triton(build: dict[str, Any], m: int, n: int, k: int) -> Job:
    """Triton's GEMM with tensor descriptors."""
    import warploom

    case = matmul_case(build, m) if m == n == k else _one_tile(build, k)
    more = {"grid": case.grid, "block": (build["threads"], 1, 1), "shared_bytes": build["shared"]}
    arguments = [*case.args, 0, 0]
    return (
        lambda: warploom.launch(build["ptx"], args=arguments, **more),
        lambda: warploom.check(build["ptx"], launch={"args": arguments, **more}, profile="lenient"),
    )


def _one_tile(build: dict[str, Any], k: int) -> Any:
    from machine_speed import TILE_K, TILE_M, TILE_N, Case, descriptor

    rng = np.random.default_rng(k)
    a, b = random_array(rng, TILE_M, k), random_array(rng, TILE_N, k)
    case = Case("matmul", build, np.empty((TILE_M, TILE_N), a.dtype), a, 1e-2)
    boxes = ((a, (TILE_M, TILE_K)), (b, (TILE_N, TILE_K)), (case.out, (TILE_M, 64)))
    case.args = [*(part for array, box in boxes for part in descriptor(array, box)), TILE_M, TILE_N, k]
    return case


@dataclass(frozen=True)
class Row:
    """A row of the table: the Triton kernel that it needs, its job, and the bar."""

    kernel: str
    job: Callable[[dict[str, Any]], Job]
    bar: float


def _rows() -> dict[str, Row]:
    rows = {"linear 512³ sm_100a": Row("", lambda _: linear(), 3.5)}
    for m, n, k, name, bar in ((512, 512, 512, "512³", 3.5), (128, 128, LONG, f"128×128×{LONG}", 5.0)):
        for target in ("sm_90a", "sm_100a"):
            size = (m, n, k)
            rows[f"library matmul {name} {target}"] = Row(
                "", lambda _, target=target, size=size: library(target, *size), bar
            )
            rows[f"Triton matmul {name} {target}"] = Row(
                f"matmul {target}", lambda build, size=size: triton(build, *size), bar
            )
    return rows


ROWS = _rows()


def work(builds: dict[str, Any], is_checked: bool) -> None:
    """Answer the CPU seconds of each row that is named on standard input."""
    jobs: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in jobs:
            jobs[name] = ROWS[name].job(builds.get(ROWS[name].kernel, {}))[is_checked]
        gc.collect()
        start = time.process_time()
        result = jobs[name]()
        seconds = time.process_time() - start
        verdict = str(getattr(result, "verdict", ""))
        print(json.dumps({"seconds": seconds, "verdict": verdict}), flush=True)


class Side:
    """One checkout, in a process of its own."""

    def __init__(self, root: Path, folder: Path, what: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, __file__, "--worker", str(folder), "--what", what]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, row: str) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(row + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def measure(name: str, sides: dict[str, Side], repeats: int) -> dict[str, Any]:
    """The best warm run of each side, and their ratio."""
    row: dict[str, Any] = {"row": name, "bar": ROWS[name].bar}
    for turn in range(repeats + 1):
        for side, process in sides.items():
            answer = process.run(name)
            if turn:
                row[f"{side}_ms"] = round(min(row.get(f"{side}_ms", np.inf), 1e3 * answer["seconds"]), 1)
            if side == "check":
                row["verdict"] = answer["verdict"]
    if "baseline" in sides:
        row["ratio"] = round(row["check_ms"] / row["baseline_ms"], 2)
    return row


def memory() -> dict[str, float]:
    """The peak memory of a check of one tile without the copies of the operands, in megabytes, for several K extents."""
    found = {}
    for target in ("sm_90a", "sm_100a"):
        for k in (LONG // 4, LONG, 16 * LONG, 64 * LONG):
            check = library(target, 128, 128, k)[1]
            check()
            gc.collect()
            tracemalloc.start()
            check()
            copies = 2 * 128 * k * 2
            found[f"{target} K = {k:,}"] = round((tracemalloc.get_traced_memory()[1] - copies) / 1e6, 1)
            tracemalloc.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="another checkout of this repository")
    parser.add_argument("--rows", nargs="*", default=[""], metavar="WORD", help="rows that contain one of these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--what", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads((options.worker / "builds.json").read_text()), options.what == "check")
        return
    chosen = [name for name in ROWS if any(word in name for word in options.rows)]
    builds = {name: compile_kernel(KERNELS[name]) for name in {ROWS[each].kernel for each in chosen} - {""}}
    if options.profile:
        for name in chosen:
            check = ROWS[name].job(builds.get(ROWS[name].kernel, {}))[1]
            check()
            profile = cProfile.Profile(time.process_time)
            profile.runcall(check)
            print(f"-- profile of {name}")
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "builds.json").write_text(json.dumps(builds))
        sides = {"check": Side(HERE.parent, Path(folder), "check")}
        if options.baseline:
            sides = {"baseline": Side(options.baseline.resolve(), Path(folder), "run"), **sides}
        for name in chosen:
            rows.append(measure(name, sides, options.repeats))
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
        for side in sides.values():
            side.close()
    if options.json:
        data = {
            "machine": processor(),
            "revision": commit(HERE.parent),
            "unit": "milliseconds of CPU time, one BLAS thread, best of the warm runs",
            "repeats": options.repeats,
            "rows": rows,
            "memory_mb": memory(),
        }
        options.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
