"""PyTorch's compiler as a baseline: `max-autotune-no-cudagraphs`, tuned by its own measurements on an idle GPU.

    python bench/compiled.py 8192x8192x8192,4096x4096x4096      compile the candidates of these shapes ahead

Most of the tuning time is Triton compiling candidates. `warmed` compiles them in parallel processes that share Triton's
cache of compiled kernels; what they measure meanwhile is discarded, since processes that share a GPU disturb each other.
All of PyTorch's backends stay enabled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from shapes import LISTED, Shape, label_of, parsed
from torch.nn import functional

TRITON_CACHE = Path(tempfile.gettempdir()) / "warploom-bench-triton"
MODE = "max-autotune-no-cudagraphs"
Peer = Callable[[dict[str, Any]], torch.Tensor]


def fused(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Compute the reference of both sides; b is K × N."""
    return functional.gelu(functional.linear(a, b.t(), bias), approximate="tanh") + residual


def use_shared_kernels() -> None:
    """Use the cache that `warmed` filled; call it before PyTorch's compiler first runs."""
    os.environ.setdefault("TRITON_CACHE_DIR", str(TRITON_CACHE))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError when the body takes longer."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def compiled_peer(each: dict[str, Any], limit: float) -> Peer:
    """Compile the function; it has been tuned and has run once when it is returned."""
    use_shared_kernels()
    torch._dynamo.reset()
    made = torch.compile(fused, mode=MODE, dynamic=False)

    def run(each: dict[str, Any]) -> torch.Tensor:
        return made(each["a"], each["b"], each["bias"], each["residual"])

    with at_most(limit):
        run(each)
        torch.cuda.synchronize()
    return run


def warmed(shapes: Sequence[Shape], limit: float) -> dict[Shape, str]:
    """Compile the candidates of all shapes in parallel, and report how each ended."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        running = {shape: _started(shape, Path(folder), max(1, cores // max(len(shapes), 1))) for shape in shapes}
        return {shape: _ended(child, limit - (time.monotonic() - started)) for shape, child in running.items()}


def _started(shape: Shape, folder: Path, threads: int) -> subprocess.Popen[bytes]:
    own = folder / label_of(shape)
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(TRITON_CACHE),
        "TORCHINDUCTOR_CACHE_DIR": str(own),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
    }
    command = [sys.executable, __file__, "--one", "x".join(map(str, shape))]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet, process_group=0)


def _ended(child: subprocess.Popen[bytes], limit: float) -> str:
    try:
        status = child.wait(max(limit, 0.1))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # its compiler processes are in its process group
        child.wait()
        return "no end in time"
    return "compiled" if status == 0 else f"status {status}"


def _one(shape: Shape) -> None:
    """Start the process of one shape."""
    m, n, k = shape

    def made(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device="cuda", dtype=torch.bfloat16)

    given = {"a": made(m, k), "b": made(n, k).t(), "bias": made(n), "residual": made(m, n)}
    with torch.no_grad():
        compiled_peer(given, 600)


def main() -> int:
    if "--one" in sys.argv:
        _one(parsed(sys.argv[-1])[0])
        return 0
    started = time.monotonic()
    shapes = parsed(sys.argv[1]) if len(sys.argv) > 1 else LISTED
    for shape, how in warmed(shapes, 240).items():
        print(f"{label_of(shape):20} {how}", flush=True)
    print(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
