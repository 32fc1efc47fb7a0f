"""`torch.compile` while the emulator is the GPU: Inductor writes Triton kernels for the emulated target."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from warploom.triton.benchmarks import once
from warploom.triton.cuda_queries import properties
from warploom.triton.host_tensors import CUDA, HostTensors
from warploom.triton.options import Options
from warploom.triton.patches import Patches

_CONFIGURATION = {
    "cpu_backend": "triton",  # tensors are on the host
    "compile_threads": 1,  # other processes have no emulator
    "use_static_cuda_launcher": False,  # it calls the CUDA driver
    "force_disable_caches": True,
}


def compile_graphs(patches: Patches, options: Options, mode: HostTensors) -> None:
    """Prepare Inductor when a program calls `torch.compile`: importing it takes seconds."""
    original = torch.compile
    prepared: list[bool] = []

    def prepare() -> None:
        if not prepared:
            prepared.append(True)
            _trace_as_on_a_gpu(patches, mode)
            _prepare(patches, options)

    @functools.wraps(original)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        prepare()
        return original(*args, **kwargs)

    patches.set(torch, "compile", compiled)
    if "torch._inductor.compile_fx" in sys.modules:  # functions may have been compiled before the block
        prepare()


def _trace_as_on_a_gpu(patches: Patches, mode: HostTensors) -> None:
    """Let the tensors of traced functions answer that they are on the GPU, and the graphs run on the host."""
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.variables.tensor import TensorVariable

    def answered(attribute: Any) -> Any:
        def answer(variable: Any, translator: Any) -> Any:
            before = variable.device
            if before is not None and before.type == "cpu":
                variable.device = CUDA
            try:
                return attribute(variable, translator)
            finally:
                variable.device = before

        return answer

    for name in ("method_attr_device", "method_attr_is_cuda"):
        if hasattr(TensorVariable, name):
            patches.set(TensorVariable, name, answered(getattr(TensorVariable, name)))
    patches.set(TensorVariable, "method_attr_is_cpu", _is_cpu)
    call = OutputGraph.call_user_compiler

    def call_user_compiler(graph: Any, *args: Any, **kwargs: Any) -> Any:
        return mode.compiled(call(graph, *args, **kwargs))

    patches.set(OutputGraph, "call_user_compiler", call_user_compiler)


def _is_cpu(variable: Any, translator: Any) -> Any:
    from torch._dynamo.variables import ConstantVariable

    return None if variable.device is None else ConstantVariable.create(False)


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
