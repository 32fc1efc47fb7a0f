"""Check GEMM kernels that other people published, as they are and with their defects corrected.

    python bench/public_kernels.py --fast-cu DIR --learn-cuda DIR [--nvcc nvcc] [--out bench/results/public_kernels.json]

The directories are checkouts of github.com/pranjalssh/fast.cu (Hopper) and github.com/gau-nernst/learn-cuda (Blackwell).
nvcc compiles their kernels to PTX; nothing of them is kept but the verdicts. Each case names the launch of the
program's own host code, at a small size, and the corrections, as edits of a copy of the source.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import warploom
from warploom.launch_file import load

HERE = Path(__file__).parent
STUBS = {
    "cublas_v2.h": "typedef void* cublasHandle_t; typedef int cublasStatus_t;\n",
    "torch/library.h": "#include <algorithm>\n#include <cuda_bf16.h>\n#include <iostream>\n#include <stdexcept>\n#include <tuple>\n#define TORCH_CHECK(...)\n",
}
"""Headers that the kernels include for their host code only."""
FAST_CU = "fast.cu"
LEARN_CUDA = "learn-cuda"
PRELUDE = """#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda/barrier>
#include <cuda_bf16.h>
#include <cudaTypedefs.h>
#include <string>
#include <vector>
typedef __nv_bfloat16 bf16;
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
#define cudaCheck(error) (error)
int yo;
"""
SYNC = 'asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");'
FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'


@dataclass(frozen=True)
class Case:
    """A kernel, its launch, and what corrects it."""

    source: str
    file: str
    m: int
    n: int
    k: int
    tile: tuple[int, int, int]
    """M, N and K of the boxes of A and B."""
    threads: int
    shared: int
    """Dynamic shared memory in bytes."""
    cluster: int = 1
    grid: int = 0
    """CTAs; 0: one for each tile."""
    entry: int = 0
    atom: int = 64
    """Elements of the innermost axis of a box, swizzled by 128 bytes if there are 64 of them."""
    box_n: int = 0
    """N of a CTA's box of B; 0: that of the tile."""
    store: tuple[int, int, int] = ()  # type: ignore[assignment]
    """The box of C, if it is stored by TMA."""
    order: bool = False
    """True if the kernel takes a list of tiles for each cluster."""
    profiler: bool = False
    corrections: tuple[tuple[str, str], ...] = field(default=())


def _fast(number: int, **facts: Any) -> Case:
    return Case(FAST_CU, f"examples/matmul/matmul_{number}.cuh", threads=384, tile=(128, 256, 64), cluster=2, **facts)


def _learn(number: int, **facts: Any) -> Case:
    return Case(LEARN_CUDA, f"02e_matmul_sm100/matmul_v{number}.cu", **facts)


_STAGES = 3 * (128 + 256) * 64 * 2
_STAGES_7 = (227 * 1024 - 36) // ((128 + 128) * 64 * 2 + 16)
_LAPPED = (("    // MMA\n", "    __syncthreads();\n    // MMA\n"),)
_LAPPED_TWICE = (*_LAPPED, ("    // load\n", "    __syncthreads();\n    // load\n"))
_WAIT, _COMMIT = (f'asm volatile("cp.async.bulk.{name};");' for name in ("wait_group 0", "commit_group"))
_OVER = f"{_COMMIT}\n            }}\n        }}\n    }}\n"
_SYNC_10 = 'asm volatile("bar.sync 10, 256;\\n");'
_SYNC_12 = 'asm volatile("bar.sync %0, 128;\\n" ::"r"(wg_idx + 2) : "memory");'
CASES = (
    _fast(
        10, m=2048, n=2048, k=192, grid=128, shared=_STAGES + 128 * 256 * 2 + 1024, store=(2, 256, 64),
        corrections=((_SYNC_10, FENCE + _SYNC_10), (_WAIT, _WAIT + _SYNC_10), (_OVER, _OVER + SYNC)),
    ),
    _fast(12, m=512, n=1024, k=256, grid=6, shared=_STAGES + 256 * (128 + 16) * 2 + 1024, store=(1, 256, 72), order=True,
          corrections=((_SYNC_12, FENCE + _SYNC_12), (_WAIT, _WAIT + _SYNC_12), (_OVER, _OVER + SYNC))),
    _learn(1, m=256, n=256, k=512, tile=(128, 256, 256), threads=128, shared=(128 + 256) * 256 * 2, entry=1, atom=8,
           corrections=_LAPPED_TWICE),
    _learn(2, m=256, n=256, k=512, tile=(128, 256, 256), threads=128, shared=(128 + 256) * 256 * 2, entry=1,
           corrections=_LAPPED_TWICE),
    _learn(3, m=256, n=256, k=640, tile=(128, 256, 128), threads=128, shared=2 * (128 + 256) * 128 * 2,
           corrections=_LAPPED),
    _learn(4, m=256, n=256, k=1024, tile=(128, 128, 64), threads=128, shared=7 * (128 + 128) * 64 * 2),
    _learn(5, m=512, n=512, k=1024, tile=(128, 256, 64), box_n=128, threads=128, shared=7 * (128 + 128) * 64 * 2,
           cluster=2, profiler=True),
    _learn(6, m=512, n=512, k=1024, tile=(128, 256, 64), box_n=128, threads=192, shared=7 * (128 + 128) * 64 * 2,
           cluster=2, grid=4, profiler=True),
    _learn(7, m=512, n=512, k=1024, tile=(128, 256, 64), box_n=128, threads=192,
           shared=_STAGES_7 * ((128 + 128) * 64 * 2 + 16) + 36, cluster=2, grid=4, profiler=True),
)  # fmt: skip


def compiled(case: Case, root: Path, folder: Path, nvcc: str, *, corrected: bool) -> Path:
    """The PTX of a case, with its corrections if asked for."""
    copy = folder / case.source
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".git"))
    file = copy / case.file
    text = file.read_text("utf-8")
    for old, new in case.corrections if corrected else ():
        if text.count(old) != 1:
            raise SystemExit(f"{case.file}: the text of a correction occurs {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    file.write_text(text, "utf-8")
    for name, contents in STUBS.items():
        (folder / "stubs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "stubs" / name).write_text(contents, "utf-8")
    target, flags, unit = "sm_100a", [], file
    if case.source == FAST_CU:
        number = re.sub(r"\D", "", file.stem)
        unit = copy / f"{file.stem}.cu"
        call = f"runKernel{number}(8192, 8192, 8192, a, a, a, order);"
        unit.write_text(
            f'{PRELUDE}#include "{case.file}"\nvoid instantiate(bf16 *a, int *order) {{ {call} }}\n', "utf-8"
        )
        target, flags = "sm_90a", ["-Dloc=0"]  # an assertion of the host code names a variable that is gone
    ptx = folder / f"{file.stem}.ptx"
    command = [nvcc, "-std=c++17", f"-arch={target}", "-O3", "-w", "-lineinfo", "--expt-relaxed-constexpr", *flags]
    subprocess.run([*command, f"-I{folder / 'stubs'}", "-ptx", str(unit), "-o", str(ptx)], check=True)
    return ptx


def launch_file(case: Case, ptx: Path) -> Path:
    """A launch file with the arguments of the program's host code."""
    entries = re.findall(r"\.entry (\w+)\(", ptx.read_text("utf-8"))
    tile_m, tile_n, tile_k = case.tile

    def box(name: str, rows: int, columns: int, extents: tuple[int, int, int], swizzle: str) -> dict[str, Any]:
        atom = case.atom if swizzle != "none" or case.atom != 64 else 64
        shape, strides = [columns // atom, rows, atom], [2 * atom, 2 * columns, 2]
        return {"tensor_map": name, "shape": shape, "strides": strides, "box": list(extents), "swizzle": swizzle}

    swizzle = "128B" if case.atom == 64 else "none"
    a = box("a", case.m, case.k, (tile_k // case.atom, tile_m, case.atom), swizzle)
    b = box("b", case.n, case.k, (tile_k // case.atom, case.box_n or tile_n, case.atom), swizzle)
    sizes = [{"s32": case.m}, {"s32": case.n}, {"s32": case.k}]
    buffers: dict[str, Any] = {
        "a": {"dtype": "bfloat16", "shape": [case.m, case.k]},
        "b": {"dtype": "bfloat16", "shape": [case.n, case.k]},
    }
    if case.source == FAST_CU:  # C is column-major
        buffers["c"] = {"dtype": "bfloat16", "shape": [case.n, case.m], "output": True}
        args = [*sizes, box("c", case.n, case.m, case.store, "none"), a, b]
        expression = "c == b @ a.T"
    else:
        buffers["c"] = {"dtype": "bfloat16", "shape": [case.m, case.n], "output": True}
        args = [a, b, {"pointer": "c"}, *sizes, *([{"u64": 0}, {"s32": 0}] if case.profiler else [])]
        expression = "c == a @ b.T"
    if case.order:
        lists, length = 64, 128
        order = [-1] * (lists * length)
        clusters = case.grid // case.cluster
        tiles = [(i << 16) | j for i in range(case.m // tile_m // case.cluster) for j in range(case.n // tile_n)]
        for at, tile in enumerate(tiles):
            order[at % clusters * length + at // clusters] = tile
        buffers["order"] = {"dtype": "int32", "shape": [len(order)], "init": {"values": order}}
        args.append({"pointer": "order"})
    grid = case.grid or case.m // tile_m * (case.n // tile_n)
    written = {
        "ptx": ptx.name, "entry": entries[case.entry], "grid": [grid, 1, 1], "block": [case.threads, 1, 1],
        "cluster": [case.cluster, 1, 1], "shared_bytes": case.shared, "buffers": buffers, "args": args,
        "compare": [{"expr": expression, "rtol": 0.01, "atol": 0.05}],
    }  # fmt: skip
    path = ptx.with_suffix(".launch.json")
    path.write_text(json.dumps(written), "utf-8")
    return path


def judged(case: Case, path: Path) -> dict[str, Any]:
    """The verdict on a launch, and whether the eager run is right."""
    file = load(path)
    buffers = file.allocate()
    try:
        warploom.launch(file.launch(buffers))
        right = "right" if not file.check(buffers) else "wrong"
    except warploom.WarploomError as error:
        right = error.code
    started = time.process_time()
    report = warploom.check(file.launch(file.allocate()), profile="lenient")
    findings = [
        {
            "code": each.code,
            "lines": [f"{Path(party.loc.file).name}:{party.loc.line}" for party in each.parties],
            "witness": each.witness.text if each.witness is not None and each.witness.confirmed else "",
        }
        for each in report.findings
    ]
    seconds = round(time.process_time() - started, 1)
    return {"eager": right, "verdict": str(report.verdict), "findings": findings, "cpu_s": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast-cu", type=Path, metavar="DIR")
    parser.add_argument("--learn-cuda", type=Path, metavar="DIR")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "public_kernels.json")
    options = parser.parse_args()
    roots = {FAST_CU: options.fast_cu, LEARN_CUDA: options.learn_cuda}
    commits = {
        name: subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name, root in roots.items()
        if root is not None
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if case.source not in commits:
                continue
            row: dict[str, Any] = {"source": case.source, "file": case.file, "m": case.m, "n": case.n, "k": case.k}
            for corrected in (False, True) if case.corrections else (False,):
                ptx = compiled(case, roots[case.source], Path(folder), options.nvcc, corrected=corrected)
                row["corrected" if corrected else "as published"] = judged(case, launch_file(case, ptx))
            rows.append(row)
            print(
                case.file, {name: each["verdict"] for name, each in row.items() if isinstance(each, dict)}, flush=True
            )
            options.out.write_text(json.dumps({"commits": commits, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
