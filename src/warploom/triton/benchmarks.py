"""Benchmarks and autotuning on an emulator: no function is timed again and again, one configuration is enough."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from warploom.triton.options import Options
from warploom.triton.patches import Patches

_UNTIMED = [math.inf] * 3


def once(
    function: Callable[[], Any], *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any
) -> float | list[float]:
    """Call a function once, in place of `triton.testing.do_bench`; milliseconds of emulation."""
    start = time.perf_counter()
    function()
    taken = (time.perf_counter() - start) * 1e3
    if quantiles is not None:
        return [taken] * len(quantiles)
    return [taken] if return_mode == "all" else taken


def quieten(patches: Patches) -> None:
    """Let `do_bench` and its like call their function once, and skip the reports of `perf_report`."""
    import triton
    from triton import testing

    for name in ("do_bench", "do_bench_cudagraph", "do_bench_cudagraph_proton", "do_bench_proton"):
        if hasattr(testing, name):
            patches.set(testing, name, once)

    def run(mark: Any, *_: Any, **__: Any) -> None:
        name = getattr(mark.fn, "__name__", "a benchmark")
        sys.stderr.write(f"warploom: skipped the benchmark `{name}`: the emulator gives no times of a GPU\n")

    patches.set(testing.Mark, "run", run)
    proton = getattr(getattr(triton, "knobs", None), "proton", None)
    if hasattr(proton, "disable"):
        patches.keep_variable("TRITON_PROTON_DISABLE")  # Triton sets it with the attribute
        patches.set(proton, "disable", True)  # the profiler asks the CUDA driver for times


def tune_once(patches: Patches, options: Options, dry: Callable[[], Any]) -> None:
    """Let an autotuner take the first configuration that compiles and fits, without running the others.

    `dry()` is a context in which launches are prepared and not run. What a tuner remembers of the emulator is removed
    at the end.
    """
    from triton.runtime.autotuner import Autotuner

    prune, bench = Autotuner.prune_configs, Autotuner._bench
    chosen: set[int] = set()
    used: dict[int, tuple[Any, set[Any]]] = {}

    def known(tuner: Any) -> set[Any]:
        """The keys in a tuner's memory; a program's own kind of memory stays as it is."""
        return set(tuner.cache) if isinstance(tuner.cache, Mapping) else set()

    def prune_configs(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        chosen.discard(id(tuner))
        used.setdefault(id(tuner), (tuner, known(tuner)))
        return prune(tuner, *args, **kwargs)

    def _bench(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if options.autotune == "all":
            return bench(tuner, *args, **kwargs)
        if id(tuner) in chosen:
            return _UNTIMED
        with dry():
            times = bench(tuner, *args, **kwargs)
        if not math.isinf(times[0] if isinstance(times, list | tuple) else times):
            chosen.add(id(tuner))
        return times

    def forget() -> None:
        for tuner, before in used.values():
            for key in known(tuner) - before:
                del tuner.cache[key]
            vars(tuner).pop("do_bench", None)  # a cached property that holds the emulator's

    patches.set(Autotuner, "prune_configs", prune_configs)
    patches.set(Autotuner, "_bench", _bench)
    patches.later(forget)
