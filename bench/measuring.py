"""Timing for the GEMM benchmarks: prepared calls in CUDA graphs, over rotating inputs, with alternating sides."""

from __future__ import annotations

import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from tables import Row

from warploom.diagnostics import Diag, WarploomError
from warploom.ops.planning.prepare import plan

Arguments = dict[str, Any]
Side = Callable[[Arguments], Any]
MOST_SETS, MOST_LAUNCHES = 1024, 300
GRAPH_US = 4000.0
"""Length of the graph of a side that runs alone, in microseconds."""
IDLE = 0.25
"""Seconds without work before a burst at the free clock."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a measurement."""

    rounds: int = 11
    window: float = 3000
    """Length of one graph in microseconds."""
    settled: float = 0.2
    """Seconds in which the sides alternate before timing starts, so that the clock settles at the power limit."""
    third: Callable[..., Any] | None = None
    """A third kernel: `third(a, b, out)` returns a call, or None if it has none for the shape."""
    compiled: float = 0
    """Time limit of PyTorch's compiler for a shape, in seconds; 0 leaves it out."""

    @property
    def hurried(self) -> Options:
        """Return options for a quick run."""
        return replace(self, rounds=min(self.rounds, 5), window=min(self.window, 1500), settled=0)


def call_of(operation: Any, arguments: Arguments, **options: Any) -> Side:
    """Prepare a call for arguments like these; call the operation itself if the kernel needs a copy of one of them."""
    if not arguments["out"].is_cuda:
        return lambda each: operation(**each, **options, target="sm_90a")
    try:
        prepared = plan(operation, **arguments, **options)
    except WarploomError as error:
        if error.diag is not Diag.BAD_PLAN:
            raise
        return lambda each: operation(**each, **options)
    return lambda each: prepared(*(value for value in each.values() if isinstance(value, torch.Tensor)))


def wrong_bits(run: Callable[[], Any], out: torch.Tensor, want: torch.Tensor, repeats: int = 3) -> str:
    """Describe how the result differs, if it does; runs several times, since a race may not show once."""
    for _ in range(repeats):
        out.fill_(float("nan"))
        run()
        if not torch.equal(out, want):
            return f"WRONG: {int((out != want).sum())} of {want.numel()} elements"
    return ""


def bytes_of(arguments: Arguments) -> int:
    return sum(each.numel() * each.element_size() for each in arguments.values() if isinstance(each, torch.Tensor))


def rotating(make: Callable[[], Arguments]) -> list[Arguments]:
    """Make sets of inputs that together exceed three times the L2, up to a maximum number."""
    first = make()
    needed = math.ceil(3 * torch.cuda.get_device_properties(0).L2_cache_size / bytes_of(first))
    return [first, *(make() for _ in range(max(2, min(MOST_SETS, needed)) - 1))]


def captured(calls: list[Callable[[], Any]], launches: int) -> torch.cuda.CUDAGraph:
    """Capture one graph that replays the calls in turn."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(launches):
            calls[number % len(calls)]()
    return graph


def replayed(graphs: list[torch.cuda.CUDAGraph], launches: int, rounds: int, settled: float = 0) -> list[list[float]]:
    """Return microseconds per launch by graph and round; the graphs alternate, for `settled` seconds before timing."""
    times: list[list[float]] = [[] for _ in graphs]
    until = time.monotonic() + settled
    while time.monotonic() < until:
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
    for turn in range(rounds + 1):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(graphs) + 1)]
        graphs[0].replay()  # keeps the queue full
        marks[0].record()
        for graph, mark in zip(graphs, marks[1:], strict=True):
            graph.replay()
            mark.record()
        torch.cuda.synchronize()
        if turn:
            for at, found in enumerate(times):
                found.append(marks[at].elapsed_time(marks[at + 1]) * 1e3 / launches)
    return times


def timed(
    sides: dict[str, Side], sets: list[Arguments], flops: float, options: Options
) -> tuple[dict[str, float], float]:
    """Return microseconds per launch by side, and the first side against itself."""
    guess = max(flops / 650e6, bytes_of(sets[0]) / 3e6, 3)
    launches = max(len(sets), min(MOST_LAUNCHES, int(options.window / guess)))
    graphs = [captured([lambda s=s, each=each: s(each) for each in sets], launches) for s in sides.values()]
    found = replayed([*graphs, *graphs], launches, options.rounds, options.settled)
    count = len(graphs)
    times = {
        name: statistics.median(found[at] + found[at + count]) for name, at in zip(sides, range(count), strict=True)
    }
    return times, statistics.median(found[0]) / statistics.median(found[count])


def graph_for(side: Side, sets: list[Arguments], flops: float) -> tuple[torch.cuda.CUDAGraph, int]:
    """Capture a few milliseconds of one side; return the graph and the calls in it."""
    guess = max(flops / 650e6, bytes_of(sets[0]) / 3e6, 3)
    calls = max(len(sets), min(1000, int(GRAPH_US / guess)))
    return captured([lambda each=each: side(each) for each in sets], calls), calls


def run_alone(graph: Any, calls: int, settle: float, timed: float, batch: int = 8) -> tuple[float, float, float]:
    """Microseconds per call, back to back after the clock has settled; and when timing began and ended.

    `batch` replays are enqueued at once, and at most two batches ahead of the GPU.
    """

    def replay_for(seconds: float) -> int:
        count, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(batch):
                graph.replay()
            count += batch
            torch.cuda.synchronize()
        return count

    replay_for(settle)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start = time.monotonic()
    graph.replay()  # keeps the queue full while the event is recorded
    first.record()
    count, earlier = 0, first
    while not count or time.monotonic() < start + timed:
        pending = torch.cuda.Event()
        for _ in range(batch):
            graph.replay()
        pending.record()
        count += batch
        earlier.synchronize()  # one batch runs while the next is queued
        earlier = pending
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) * 1e3 / (count * calls), start, time.monotonic()


def run_cool(graph: Any, calls: int, bursts: int, idle: float = IDLE) -> float:
    """Microseconds per call in short bursts after idle gaps, when the clock is free: the median of the bursts."""
    times = []
    for _ in range(bursts):
        torch.cuda.synchronize()
        time.sleep(idle)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()  # wakes the clock up
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e3 / calls)
    return statistics.median(times)


def mean_of(rows: list[Row], name: str = "ratio") -> float:
    return math.exp(statistics.fmean(math.log(row[name]) for row in rows))


def copy_rate() -> float:
    """Return the terabytes per second that a large copy reads and writes; much less than usual, if the GPU is shared."""
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    first.record()
    for _ in range(8):
        target.copy_(source)
    last.record()
    torch.cuda.synchronize()
    return 8 * 2 * source.numel() / first.elapsed_time(last) / 1e9


@cache
def machine() -> Row:
    """Describe the GPU and the software."""
    gpu = torch.cuda.get_device_properties(0)
    asked = ["driver_version", "clocks.max.sm", "power.limit", "temperature.gpu"]
    try:
        command = ["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader", "-i", "0"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        driver = dict(zip(asked, (each.strip() for each in output.split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError):
        driver = {}
    try:
        own = version("warploom")
    except PackageNotFoundError:
        own = "from its folder"
    return {
        "gpu": gpu.name,
        "sms": gpu.multi_processor_count,
        "l2_bytes": gpu.L2_cache_size,
        "copy_tb_per_s": round(copy_rate(), 2),
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "warploom": own,
    }


def is_lost() -> bool:
    """Check whether a kernel has faulted, so that nothing else can run in this process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    torch.cuda.empty_cache()
    return False
