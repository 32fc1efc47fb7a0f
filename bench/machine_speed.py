"""Speed of the emulator against Triton's own interpreter, on one matmul with tensor descriptors.

The kernel is compiled to PTX for sm_90a and sm_100a and run by the emulator; its source runs under TRITON_INTERPRET=1
with operands cast to float32 (the interpreter has no bf16 dot). One BLAS thread, alternating runs, the best of N.

    python bench/machine_speed.py [--size 512] [--repeats 7] [--profile] [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.metadata
import json
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import ml_dtypes  # noqa: E402  (after the thread counts are set)
import numpy as np  # noqa: E402

TILE_M, TILE_N, TILE_K = 128, 128, 64
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def matmul(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CAST: tl.constexpr):
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = a_desc.load([row, k * BK])
        b = b_desc.load([column, k * BK])
        if CAST:
            total = tl.dot(a.to(tl.float32), b.to(tl.float32).T, total)
        else:
            total = tl.dot(a, b.T, total)
    c_desc.store([row, column], total.to(tl.bfloat16))
"""


def inputs(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    return tuple(rng.standard_normal((size, size), np.float32).astype(ml_dtypes.bfloat16) for _ in range(2))


def compile_ptx(arch: int) -> tuple[str, int, int]:
    """Compile the kernel for one architecture; return (PTX, shared bytes, threads)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    folder = Path(tempfile.mkdtemp())
    (folder / "kernel_source.py").write_text(KERNEL)
    sys.path.insert(0, str(folder))
    import kernel_source

    tile = {"a_desc": f"tensordesc<bf16[{TILE_M},{TILE_K}]>", "b_desc": f"tensordesc<bf16[{TILE_N},{TILE_K}]>"}
    signature = {**tile, "c_desc": f"tensordesc<bf16[{TILE_M},{TILE_N}]>", "M": "i32", "N": "i32", "K": "i32"}
    constants = {"BM": TILE_M, "BN": TILE_N, "BK": TILE_K, "CAST": False}
    source = ASTSource(kernel_source.matmul, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
    built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4, "num_stages": 3})
    return built.asm["ptx"], built.metadata.shared, 32 * built.metadata.num_warps


def run_machine(ptx: str, shared: int, threads: int, size: int) -> tuple[float, np.ndarray, object]:
    from warploom import TensorMap, launch

    a, b = inputs(size)
    c = np.full((size, size), np.nan, np.float32).astype(ml_dtypes.bfloat16)

    def descriptor(array: np.ndarray, box: tuple[int, int]) -> list[object]:
        return [TensorMap(array, box=box, swizzle="128B"), *array.shape, array.shape[1], 1]

    args = [
        *descriptor(a, (TILE_M, TILE_K)),
        *descriptor(b, (TILE_N, TILE_K)),
        *descriptor(c, (TILE_M, 64)),
        size,
        size,
        size,
        0,
        0,
    ]
    grid = (size // TILE_M, size // TILE_N, 1)
    start = time.perf_counter()
    run = launch(ptx, grid=grid, block=(threads, 1, 1), shared_bytes=shared, args=args)
    return time.perf_counter() - start, c, run


INTERPRET = """
import os, sys, time, json
for n in ("OMP_NUM_THREADS","OPENBLAS_NUM_THREADS","MKL_NUM_THREADS"): os.environ[n] = "1"
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
torch.set_num_threads(1)
from triton.tools.tensor_descriptor import TensorDescriptor
import kernel_source
a, b = (torch.from_numpy(np.load(sys.argv[1] + "/" + n + ".npy")).to(torch.bfloat16) for n in "ab")
size = a.shape[0]
def once():
    c = torch.full((size, size), float("nan"), dtype=torch.bfloat16)
    d = lambda t, box: TensorDescriptor(t, list(t.shape), [t.shape[1], 1], box)
    start = time.perf_counter()
    grid, boxes = (size // 128, size // 128), (d(a, [128, 64]), d(b, [128, 64]), d(c, [128, 128]))
    kernel_source.matmul[grid](*boxes, size, size, size, BM=128, BN=128, BK=64, CAST=True)
    return time.perf_counter() - start, c
once()
for line in sys.stdin:
    seconds, c = once()
    np.save(sys.argv[1] + "/c.npy", c.float().numpy())
    print(json.dumps(seconds), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs="*", default=[512])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    builds = {target: compile_ptx(arch) for target, arch in (("sm_90a", 90), ("sm_100a", 100))}
    rows = [measure(size, options.repeats, builds) for size in options.size]
    for row in rows:
        print(f"{row['size']}³  Triton interpreter {row['interpreter_ms']:8.1f} ms")
        for target in builds:
            print(f"       emulator {target:8} {row[target + '_ms']:8.1f} ms   ratio {row[target + '_ratio']:.2f}")
    if options.profile:
        profile = cProfile.Profile()
        for target, build in builds.items():
            print(f"-- profile of {target}, {options.size[0]}³")
            profile = cProfile.Profile()
            profile.runcall(run_machine, *build, options.size[0])
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)
    if options.json:
        versions = {name: importlib.metadata.version(name) for name in ("numpy", "triton", "torch")}
        data = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "versions": versions,
            "inputs": "standard normal, bf16",
            "tiles": [TILE_M, TILE_N, TILE_K],
            "rows": rows,
        }
        options.json.write_text(json.dumps(data, indent=1) + "\n")


def measure(size: int, repeats: int, builds: dict[str, tuple[str, int, int]]) -> dict[str, float]:
    """Return the best times of alternating runs; every result is checked."""
    a, b = inputs(size)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, array in (("a", a), ("b", b)):
            np.save(f"{folder}/{name}.npy", array.astype(np.float32))
        Path(folder, "kernel_source.py").write_text(KERNEL)
        with subprocess.Popen(
            [sys.executable, "-c", INTERPRET, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as peer:
            assert peer.stdin
            assert peer.stdout
            for _ in range(repeats):
                peer.stdin.write("\n")
                peer.stdin.flush()
                best["interpreter_ms"] = min(
                    best.get("interpreter_ms", np.inf), 1e3 * json.loads(peer.stdout.readline())
                )
                check(np.load(f"{folder}/c.npy"), expected)
                for target, build in builds.items():
                    seconds, c, _ = run_machine(*build, size)
                    check(c.astype(np.float32), expected)
                    best[f"{target}_ms"] = min(best.get(f"{target}_ms", np.inf), 1e3 * seconds)
            peer.stdin.close()
    ratios = {f"{target}_ratio": best[f"{target}_ms"] / best["interpreter_ms"] for target in builds}
    return {"size": size, **best, **ratios}


def check(got: np.ndarray, expected: np.ndarray) -> None:
    error = np.abs(got - expected).max() / np.abs(expected).max()
    if not error < 1e-2:
        raise SystemExit(f"wrong result: relative error {error}")


if __name__ == "__main__":
    main()
