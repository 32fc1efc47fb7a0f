"""`torch.compile` while the emulator is the GPU: Inductor writes Triton kernels for the emulated target."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from warploom.triton.benchmarks import once
from warploom.triton.cuda_queries import properties
from warploom.triton.options import Options
from warploom.triton.patches import Patches

_CONFIGURATION = {
    "cpu_backend": "triton",  # tensors are on the host
    "compile_threads": 1,  # other processes have no emulator
    "use_static_cuda_launcher": False,  # it calls the CUDA driver
    "force_disable_caches": True,
}


def compile_graphs(patches: Patches, options: Options) -> None:
    """Prepare Inductor when a program calls `torch.compile`: importing it takes seconds."""
    original = torch.compile
    prepared: list[bool] = []

    def prepare() -> None:
        if not prepared:
            prepared.append(True)
            _prepare(patches, options)

    @functools.wraps(original)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        prepare()
        return original(*args, **kwargs)

    patches.set(torch, "compile", compiled)
    if "torch._inductor.compile_fx" in sys.modules:  # functions may have been compiled before the block
        prepare()


def _prepare(patches: Patches, options: Options) -> None:
    from torch import _dynamo
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import config
    from torch._inductor.runtime import benchmarking, triton_helpers
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    if not hasattr(config, "cpu_backend"):
        return
    for forget in (_dynamo.reset, _forget_queries):  # graphs that were compiled for the host, and what is known of it
        forget()
        patches.later(forget)
    settings = config.patch({name: value for name, value in _CONFIGURATION.items() if hasattr(config, name)})
    settings.__enter__()
    patches.later(lambda: settings.__exit__(None, None, None))
    for name in ("set_driver_to_cpu", "set_driver_to_gpu"):
        patches.set(triton_helpers, name, _nothing)
    known = {**vars(properties(options)), "type": "cuda", "index": 0, "cc": options.arch}
    device = DeviceProperties(**{name: known[name] for name in DeviceProperties._fields if name in known})
    patches.set(DeviceProperties, "create", classmethod(lambda cls, device_: device))
    for name in ("exchange_device", "maybe_exchange_device"):  # captured when the class was made
        patches.set(CudaInterface, name, staticmethod(lambda device_: 0))
    if options.autotune == "first":
        patches.set(CachingAutotuner, "benchmark_all_configs", _in_order)
    if not options.bench:
        for each in {type(benchmarking.benchmarker), *type(benchmarking.benchmarker).__mro__[:-1]}:
            if "benchmark_gpu" in vars(each):
                patches.set(each, "benchmark_gpu", _once)


def _forget_queries() -> None:
    """Make PyTorch ask again whether there is a GPU that Triton compiles for, and what it can do."""
    from torch.utils import _triton

    for each in vars(_triton).values():
        if callable(clear := getattr(each, "cache_clear", None)):
            clear()


def _nothing() -> None:
    pass


def _in_order(tuner: Any, *args: Any, **kwargs: Any) -> dict[Any, float]:
    """Times by which the first configuration is the best."""
    return {launcher: float(place) for place, launcher in enumerate(tuner.launchers)}


def _once(benchmarker: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    return once(function, *args, **kwargs)
