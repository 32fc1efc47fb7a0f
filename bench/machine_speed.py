"""Speed of the emulator: CPU time of Triton kernels and of the library's own, against another checkout of this repository.

Each checkout runs in a process of its own, with one BLAS thread; the processes alternate, and a row is the best of N
warm runs. Every result is compared with NumPy, and a row's result must be bit-equal under every schedule. A matmul with
tensor descriptors is also compared with Triton's interpreter (TRITON_INTERPRET=1, operands cast to float32, because the
interpreter has no bf16 dot).

    python bench/machine_speed.py [--baseline DIR] [--engine numpy] [--rows WORD …] [--repeats 5] [--interpreter]
                                  [--profile] [--json FILE]
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import hashlib
import importlib.metadata
import json
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import ml_dtypes  # noqa: E402  (after the thread counts are set)
import numpy as np  # noqa: E402

HERE = Path(__file__).resolve().parent
BF16 = np.dtype(ml_dtypes.bfloat16)
TILE_M, TILE_N, TILE_K = 128, 128, 64
TILES = {"BM": TILE_M, "BN": TILE_N, "BK": TILE_K}
LOADED, STORED = f"tensordesc<bf16[{TILE_M},{TILE_K}]>", f"tensordesc<bf16[{TILE_M},{TILE_N}]>"
MATRICES = {"a_desc": LOADED, "b_desc": LOADED, "c_desc": STORED, "M": "i32", "N": "i32", "K": "i32"}
POINTERS = {"M": "i32", "N": "i32", "K": "i32"}
HEAD = dict.fromkeys(("q_desc", "k_desc", "v_desc", "o_desc"), "tensordesc<bf16[64,64]>")


@dataclass(frozen=True)
class Kernel:
    """A Triton kernel of `machine_kernels.py` as it is compiled."""

    function: str
    signature: dict[str, str]
    constants: dict[str, object]
    arch: int = 90
    options: dict[str, int] = field(default_factory=lambda: {"num_warps": 4, "num_stages": 3})
    aligned: bool = False


MATMULS = {
    f"matmul {target}": Kernel("matmul", MATRICES, {**TILES, "CAST": False}, arch)
    for target, arch in (("sm_90a", 90), ("sm_100a", 100))
}
KERNELS = {
    "softmax": Kernel("softmax", {"x": "*fp32", "y": "*fp32", "columns": "i32"}, {"BLOCK": 4096}),
    "layer norm": Kernel(
        "layer_norm",
        {"x": "*fp32", "y": "*fp32", "weight": "*fp32", "bias": "*fp32", "columns": "i32"},
        {"BLOCK": 1024},
    ),
    "ieee dot": Kernel(
        "dot",
        {"a": "*fp32", "b": "*fp32", "c": "*fp32", **POINTERS},
        {"BM": 64, "BN": 64, "BK": 32, "PRECISION": "ieee"},
    ),
    "attention": Kernel("attention", HEAD | {"length": "i32", "scale": "fp32"}, {"BM": 64, "BN": 64, "D": 64}),
    "cp.async": Kernel(
        "dot",
        {"a": "*bf16", "b": "*bf16", "c": "*bf16", **POINTERS},
        {"BM": 64, "BN": 64, "BK": 32, "PRECISION": "tf32"},
        aligned=True,
    ),
    "mma.sync": Kernel(
        "dot",
        {"a": "*bf16", "b": "*bf16", "c": "*bf16", **POINTERS},
        {"BM": 32, "BN": 64, "BK": 32, "PRECISION": "tf32"},
        aligned=True,
    ),
    "persistent sm_90a": Kernel("persistent", MATRICES, {**TILES, "PROGRAMS": 16}, 90),
    "persistent sm_100a": Kernel("persistent", MATRICES, {**TILES, "PROGRAMS": 16}, 100),
    **MATMULS,
}


class Case:
    """A launch with fresh outputs each time, and what its result must be."""

    def __init__(self, kernel: str, build: dict[str, Any], out: np.ndarray, expected: np.ndarray, loose: float) -> None:
        self.kernel, self.build, self.out, self.expected, self.loose = kernel, build, out, expected, loose
        self.grid: tuple[int, int, int] = (1, 1, 1)
        self.args: list[Any] = []

    def run(self, **options: Any) -> tuple[float, np.ndarray]:
        from warploom import launch

        self.out[...] = np.nan
        block, shared = (self.build["threads"], 1, 1), self.build["shared"]
        start = time.process_time()
        launch(self.build["ptx"], grid=self.grid, block=block, shared_bytes=shared, args=[*self.args, 0, 0], **options)
        return time.process_time() - start, self.out


class LibraryCase:
    """A call of the library."""

    def __init__(self, call: Callable[[], np.ndarray], expected: np.ndarray) -> None:
        self.call, self.expected, self.loose = call, expected, 2e-2

    def run(self) -> tuple[float, np.ndarray]:
        start = time.process_time()
        out = self.call()
        return time.process_time() - start, out


def random_array(rng: np.random.Generator, *shape: int, dtype: Any = BF16) -> np.ndarray:
    return rng.standard_normal(shape, np.float32).astype(dtype)


def descriptor(array: np.ndarray, box: tuple[int, int]) -> list[object]:
    from warploom import TensorMap

    return [TensorMap(array, box=box, swizzle="128B"), *array.shape, array.shape[1], 1]


def softmax_case(build: dict[str, Any]) -> Case:
    x = random_array(np.random.default_rng(1), 64, 4096, dtype=np.float32)
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    case = Case("softmax", build, np.empty_like(x), powers / powers.sum(axis=1, keepdims=True), 1e-5)
    case.grid, case.args = (64, 1, 1), [x, case.out, 4096]
    return case


def layer_norm_case(build: dict[str, Any]) -> Case:
    rng = np.random.default_rng(2)
    x, w, b = (random_array(rng, *shape, dtype=np.float32) for shape in ((128, 777), (777,), (777,)))
    wide = x.astype(np.float64)
    spread = np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5)
    case = Case("layer norm", build, np.empty_like(x), (wide - wide.mean(axis=1, keepdims=True)) / spread * w + b, 1e-5)
    case.grid, case.args = (128, 1, 1), [x, case.out, w, b, 777]
    return case


def dot_case(build: dict[str, Any], size: int, dtype: Any, loose: float, rows: int = 64) -> Case:
    rng = np.random.default_rng(size)
    a, b = random_array(rng, size, size, dtype=dtype), random_array(rng, size, size, dtype=dtype)
    case = Case("dot", build, np.empty_like(a), a.astype(np.float64) @ b.astype(np.float64), loose)
    case.grid, case.args = (size // rows, size // 64, 1), [a, b, case.out, size, size, size]
    return case


def attention_case(build: dict[str, Any]) -> Case:
    rng = np.random.default_rng(3)
    q, k, v = (random_array(rng, 512, 64) for _ in range(3))
    scores = q.astype(np.float64) @ k.astype(np.float64).T / 8
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = powers @ v.astype(np.float64) / powers.sum(axis=1, keepdims=True)
    case = Case("attention", build, np.empty_like(q), expected, 2e-2)
    boxes = [part for array in (q, k, v, case.out) for part in descriptor(array, (64, 64))]
    case.grid, case.args = (8, 1, 1), [*boxes, 512, float(np.float32(np.log2(np.e) / 8))]
    return case


def matmul_case(build: dict[str, Any], size: int, programs: int = 0) -> Case:
    rng = np.random.default_rng(size)
    a, b = random_array(rng, size, size), random_array(rng, size, size)
    case = Case("matmul", build, np.empty_like(a), a.astype(np.float32) @ b.astype(np.float32).T, 1e-2)
    boxes = ((a, (TILE_M, TILE_K)), (b, (TILE_N, TILE_K)), (case.out, (TILE_M, 64)))
    case.args = [*(part for array, box in boxes for part in descriptor(array, box)), size, size, size]
    case.grid = (programs, 1, 1) if programs else (size // TILE_M, size // TILE_N, 1)
    return case


def linear_case(_: dict[str, Any]) -> LibraryCase:
    import warploom

    rng = np.random.default_rng(4)
    x, w, bias, residual = (random_array(rng, *shape) for shape in ((512, 512), (512, 512), (512,), (512, 512)))
    sums = x.astype(np.float64) @ w.astype(np.float64).T + bias.astype(np.float64)
    gelu = 0.5 * sums * (1 + np.tanh(np.sqrt(2 / np.pi) * (sums + 0.044715 * sums**3)))

    def call() -> np.ndarray:
        return warploom.linear(x, w, bias=bias, activation="gelu", residual=residual, target="sm_100a")

    return LibraryCase(call, gelu + residual.astype(np.float64))


def split_k_case(_: dict[str, Any]) -> LibraryCase:
    import warploom

    rng = np.random.default_rng(5)
    a, b = random_array(rng, 128, 2048), random_array(rng, 2048, 128)
    config = warploom.MatmulConfig(cta_group=1, mma_shape=(128, 128, 16), num_split_k=4)

    def call() -> np.ndarray:
        return warploom.matmul(a, b, config=config, target="sm_100a")

    return LibraryCase(call, a.astype(np.float64) @ b.astype(np.float64))


class Nothing:
    """An observer that ignores every event."""

    def on_event(self, event: object) -> None:
        """Ignore it."""


class Count:
    """An observer that counts events, in batches."""

    def __init__(self) -> None:
        self.events = 0

    def on_event(self, event: object) -> None:
        self.events += 1

    def on_events(self, batch: Any) -> None:
        self.events += len(batch)


@dataclass(frozen=True)
class Row:
    """A row of the table: the kernel it needs, its case, and the options of the launch."""

    kernel: str
    case: Callable[[dict[str, Any]], Case | LibraryCase]
    options: dict[str, Any] = field(default_factory=dict)
    like: str = ""
    """The row whose result must have the same bits."""


ROWS = {
    "softmax 64×4096": Row("softmax", softmax_case),
    "layer norm 128×777": Row("layer norm", layer_norm_case),
    "ieee dot 128³": Row("ieee dot", lambda build: dot_case(build, 128, np.float32, 1e-5)),
    "attention 512×64": Row("attention", attention_case),
    "matmul 512³ sm_90a": Row("matmul sm_90a", lambda build: matmul_case(build, 512)),
    "matmul 512³ sm_100a": Row("matmul sm_100a", lambda build: matmul_case(build, 512)),
    "persistent matmul 1024³ sm_90a": Row("persistent sm_90a", lambda build: matmul_case(build, 1024, 16)),
    "persistent matmul 1024³ sm_100a": Row("persistent sm_100a", lambda build: matmul_case(build, 1024, 16)),
    "library linear 512³ sm_100a": Row("", linear_case),
    "library split-K 128×128×2048 sm_100a": Row("", split_k_case),
    "mma.sync 256³": Row("mma.sync", lambda build: dot_case(build, 256, BF16, 1e-2, rows=32)),
    "cp.async 256³": Row("cp.async", lambda build: dot_case(build, 256, BF16, 1e-2)),
    "cp.async 256³, lazy": Row(
        "cp.async", lambda build: dot_case(build, 256, BF16, 1e-2), {"schedule": "lazy"}, "cp.async 256³"
    ),
    "cp.async 256³, random": Row(
        "cp.async", lambda build: dot_case(build, 256, BF16, 1e-2), {"schedule": "random", "seed": 1}, "cp.async 256³"
    ),
}
for _like in ("softmax 64×4096", "layer norm 128×777", "matmul 512³ sm_90a", "matmul 512³ sm_100a"):
    _row = ROWS[_like]
    ROWS[f"{_like}, random"] = Row(_row.kernel, _row.case, {"schedule": "random", "seed": 1}, _like)
    ROWS[f"{_like}, observed"] = Row(_row.kernel, _row.case, {"observers": [Nothing()]}, _like)
    ROWS[f"{_like}, counted"] = Row(_row.kernel, _row.case, {"observers": [Count()]}, _like)


def compile_kernel(kernel: Kernel) -> dict[str, Any]:
    """Compile a kernel with Triton: its PTX, shared bytes and threads."""
    import machine_kernels
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**kernel.signature, **dict.fromkeys(kernel.constants, "constexpr")}
    # Arguments are multiples of 16, as a launch through Triton finds out: without it there is no `cp.async`.
    aligned = {(at,): [["tt.divisibility", 16]] for at in range(len(kernel.signature))} if kernel.aligned else {}
    source = ASTSource(getattr(machine_kernels, kernel.function), signature, kernel.constants, aligned)
    built = triton.compile(source, target=GPUTarget("cuda", kernel.arch, 32), options=kernel.options)
    return {"ptx": built.asm["ptx"], "shared": built.metadata.shared, "threads": 32 * built.metadata.num_warps}


def wrong(got: np.ndarray, expected: np.ndarray, loose: float) -> str:
    """Describe the difference from the expected result; empty if there is none."""
    error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
    return "" if error < loose else f"wrong result: relative error {error}"


def work(folder: Path) -> None:
    """Answer one JSON line for each row named on standard input: CPU seconds, digest of the result, error."""
    cases: dict[str, Case | LibraryCase] = {}
    for line in sys.stdin:
        name = line.strip()
        row = ROWS[name]
        try:
            first = name not in cases
            if first:
                builds = json.loads((folder / "builds.json").read_text())
                cases[name] = row.case(builds.get(row.kernel, {}))
            gc.collect()
            seconds, out = cases[name].run(**row.options)
            answer: dict[str, object] = {
                "seconds": seconds,
                "first": first,
                "digest": hashlib.sha256(out.tobytes()).hexdigest()[:16],
                "error": wrong(out, cases[name].expected, cases[name].loose),
            }
        except Exception as error:  # noqa: BLE001  (a row that fails is reported, and the others go on)
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


class Side:
    """One checkout, in a process of its own."""

    def __init__(self, root: Path, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, __file__, "--worker", str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, row: str) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(row + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def measure(name: str, sides: dict[str, Side], repeats: int) -> dict[str, Any]:
    """Measure one row on every side in turn: the first run of each, then the best of the warm ones."""
    row: dict[str, Any] = {"row": name}
    for turn in range(repeats + 1):
        for side, process in sides.items():
            answer = process.run(name)
            if answer.get("error"):
                row.setdefault(f"{side}_error", answer["error"])
                continue
            if row.setdefault(f"{side}_digest", answer["digest"]) != answer["digest"]:
                row[f"{side}_error"] = "results of two runs differ"
            key = f"{side}_first_ms" if turn == 0 else f"{side}_ms"
            row[key] = round(min(row.get(key, np.inf), 1e3 * answer["seconds"]), 3)
    if "baseline_ms" in row and "here_ms" in row:
        row["speedup"] = round(row["baseline_ms"] / row["here_ms"], 3)
    return row


INTERPRET = """
import os, sys, time, json
os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, sys.argv[2])
import numpy as np, torch
torch.set_num_threads(1)
from triton.tools.tensor_descriptor import TensorDescriptor
import machine_kernels
a, b = (torch.from_numpy(np.load(sys.argv[1] + "/" + n + ".npy")).to(torch.bfloat16) for n in "ab")
size = a.shape[0]
def once():
    c = torch.full((size, size), float("nan"), dtype=torch.bfloat16)
    d = lambda t, box: TensorDescriptor(t, list(t.shape), [t.shape[1], 1], box)
    start = time.process_time()
    grid, boxes = (size // 128, size // 128), (d(a, [128, 64]), d(b, [128, 64]), d(c, [128, 128]))
    machine_kernels.matmul[grid](*boxes, size, size, size, BM=128, BN=128, BK=64, CAST=True)
    return time.process_time() - start, c
once()
for line in sys.stdin:
    seconds, c = once()
    np.save(sys.argv[1] + "/c.npy", c.float().numpy())
    print(json.dumps(seconds), flush=True)
"""


def interpreted(size: int, repeats: int) -> float:
    """Return the best CPU time of Triton's interpreter on the matmul, in milliseconds."""
    rng = np.random.default_rng(size)
    a, b = random_array(rng, size, size), random_array(rng, size, size)
    best = np.inf
    with tempfile.TemporaryDirectory() as folder:
        for name, array in (("a", a), ("b", b)):
            np.save(f"{folder}/{name}.npy", array.astype(np.float32))
        command = [sys.executable, "-c", INTERPRET, folder, str(HERE)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin
            assert peer.stdout
            for _ in range(repeats):
                peer.stdin.write("\n")
                peer.stdin.flush()
                best = min(best, 1e3 * json.loads(peer.stdout.readline()))
                found = wrong(np.load(f"{folder}/c.npy"), a.astype(np.float32) @ b.astype(np.float32).T, 1e-2)
                if found:
                    raise SystemExit(f"Triton's interpreter: {found}")
            peer.stdin.close()
    return best


def profiled(name: str, builds: dict[str, Any]) -> None:
    row = ROWS[name]
    case = row.case(builds.get(row.kernel, {}))
    case.run(**row.options)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(case.run, **row.options)
    print(f"-- profile of {name}")
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def report(row: dict[str, Any]) -> str:
    """One line of the table."""
    parts = [f"{row['row']:38}"]
    for side in ("baseline", "here"):
        if f"{side}_ms" in row:
            parts.append(f"{side} {row[f'{side}_ms']:9.1f} ms (first {row[f'{side}_first_ms']:7.1f})")
        if f"{side}_error" in row:
            parts.append(f"{side}: {row[f'{side}_error']}")
    if "speedup" in row:
        parts.append(f"speed-up {row['speedup']:5.2f}")
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="another checkout of this repository")
    parser.add_argument("--rows", nargs="*", default=[""], metavar="WORD", help="rows that contain one of these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", choices=("auto", "native", "numpy"), default="auto", help="WARPLOOM_ENGINE")
    parser.add_argument("--interpreter", action="store_true", help="measure Triton's interpreter as well")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, help="write the rows to a file; rows that it has of other runs stay")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    os.environ["WARPLOOM_ENGINE"] = options.engine
    chosen = [name for name in ROWS if any(word in name for word in options.rows)]
    needed = {ROWS[name].kernel for name in chosen} - {""}
    builds = {name: compile_kernel(KERNELS[name]) for name in needed}
    if options.profile:
        for name in chosen:
            profiled(name, builds)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "builds.json").write_text(json.dumps(builds))
        roots = {"baseline": options.baseline.resolve()} if options.baseline else {}
        sides = {side: Side(root, Path(folder)) for side, root in {**roots, "here": HERE.parent}.items()}
        for name in chosen:
            rows.append(measure(name, sides, options.repeats))
            print(report(rows[-1]), flush=True)
        for side in sides.values():
            side.close()
    digests = {row["row"]: row.get("here_digest") for row in rows}
    differing = [row for row in digests if ROWS[row].like in digests and digests[row] != digests[ROWS[row].like]]
    for name in differing:
        print(f"{name}: its bits differ from those of {ROWS[name].like}")
    interpreter = {}
    if options.interpreter:
        interpreter = {f"matmul {size}³": round(interpreted(size, options.repeats), 3) for size in (512,)}
        print(*(f"Triton's interpreter, {name} {ms:.1f} ms" for name, ms in interpreter.items()), sep="\n")
    if options.json:
        packages = ("numpy", "ml_dtypes", "triton", "torch", "llvmlite")
        there = {found.metadata["Name"].replace("-", "_") for found in importlib.metadata.distributions()}
        versions = {name: importlib.metadata.version(name) for name in packages if name in there}
        commits = {side: commit(root) for side, root in {**roots, "here": HERE.parent}.items()}
        data = {
            "machine": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "versions": versions,
            "commits": commits,
            "unit": "milliseconds of CPU time, one BLAS thread, best of the warm runs; `first` is the first run",
            "repeats": options.repeats,
            "engine": options.engine,
            "interpreter_ms": interpreter,
            "rows": merged(options.json, [{**row, "here": commits["here"]} for row in rows]),
        }
        options.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if differing or any("here_error" in row for row in rows):
        raise SystemExit(1)


def merged(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a file with those of this run in the place of older ones, in the order of the table."""
    before = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    found = {row["row"]: row for row in (*before, *rows)}
    order = list(ROWS)
    return sorted(found.values(), key=lambda row: order.index(row["row"]) if row["row"] in order else len(order))


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def commit(root: Path) -> str:
    """The commit of a checkout, with a mark if files differ from it."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
