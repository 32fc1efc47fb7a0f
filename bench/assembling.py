"""Assemble configurations in other processes, from the layouts of their arrays: no GPU is needed, and timing can go on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import ml_dtypes
import numpy as np
import torch
from inputs import Maker

from warploom.diagnostics import WarploomError
from warploom.host.program import text_of
from warploom.ops.planning import planner
from warploom.ops.planning.arrays import ArrayDescriptor, Violations, mapped
from warploom.runtime.cache.disk import user_cache
from warploom.runtime.gpu.driver import Gpu
from warploom.runtime.toolchain.assembler import assemble
from warploom.structured.config.sm90 import HopperConfig

H200 = Gpu("NVIDIA H200", (9, 0), 132, 140 << 30)
_PATIENCE = 120
"""Seconds to wait for one configuration."""


class Describer(Maker):
    """Makes tensors without memory: shapes, strides and dtypes."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.device = "meta"

    def values(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def scales(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")


def described(name: str, tensor: torch.Tensor, address: int) -> ArrayDescriptor:
    text = str(tensor.dtype).removeprefix("torch.")
    dtype = np.dtype(getattr(ml_dtypes, text, text))
    strides = tuple(each * dtype.itemsize for each in tensor.stride())
    return ArrayDescriptor(name, tuple(tensor.shape), strides, dtype, address, "cuda:0")


def planned(operation: Any, given: Mapping[str, Any], config: HopperConfig | None) -> planner.Plan:
    """Plan a call for an H200, from tensors without memory, `out` among them."""
    count = iter(range(1, 100))
    arrays = mapped(given, lambda path, array: described(path, array, next(count) << 33))
    options = {"target": "sm_90a"} | ({} if config is None else {"config": config})
    violations = Violations(operation.__name__)
    request = operation.request({**arrays, **options}, violations, gpu=H200)
    return planner.plan(replace(request, clears=planner.clears_rows(request.kind, "sm_90a")), violations)


def complaint_about(operation: Any, given: Mapping[str, Any], config: HopperConfig | None) -> str:
    """Assemble a configuration into the cache; return why it cannot be used, or an empty string."""
    try:
        launch = planned(operation, given, config).launch
        if launch is None:
            return "needs several launches"
        assembly = assemble(text_of(launch.program), "sm_90a", strict=False, cache=user_cache())
    except WarploomError as error:
        return str(error).splitlines()[0][:200]
    return "; ".join(assembly.losses)[:200]


class Assembler:
    """Runs jobs of one function in other processes, in the order in which they were submitted, each of them once."""

    def __init__(self, build: Callable[[Any], str], processes: int) -> None:
        self.build = build
        self.pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
        self.jobs: dict[Any, Future[str]] = {}

    def submit(self, jobs: Iterable[tuple[Any, Any]]) -> None:
        """Submit pairs of a key and the argument of the function; keys that are known are skipped."""
        for key, job in jobs:
            if key not in self.jobs:
                self.jobs[key] = self.pool.submit(self.build, job)

    def complaints(self, keys: Iterable[Any]) -> dict[Any, str]:
        """Return what is wrong with each of these, when all of them are done."""
        return {key: _result(self.jobs[key]) for key in keys}

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def _result(job: Future[str]) -> str:
    try:
        return job.result(_PATIENCE)
    except Exception as error:  # noqa: BLE001  (a configuration that cannot be built is left out)
        return f"{type(error).__name__}: {error}"[:200]
