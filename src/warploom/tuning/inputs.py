"""Arrays for `warploom tune`: memory from the driver, with random values that are cheap to make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.ops import blockwise_matmul, grouped_matmul, matmul
from warploom.ops.operation import Operation
from warploom.ops.scaled import BLOCK
from warploom.runtime.gpu.driver import Device
from warploom.runtime.gpu.workspace import Block, allocated
from warploom.tuning.stopwatch import Stopwatch

_PATTERN = 1_048_583
"""Random values that an array repeats: a prime number of them, so that no two rows are equal."""
_NARROW_BITS = 8


@dataclass(frozen=True)
class GpuArray:
    """An array in a GPU's memory; `strides` are in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Block

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = {"data": (self.address, False), "strides": self.strides}
        return {"shape": self.shape, "typestr": f"|V{self.dtype.itemsize}", "version": 3, **place}

    @property
    def mT(self) -> GpuArray:  # noqa: N802  as NumPy calls it
        """The array with its last two axes exchanged."""
        shape, strides = (*self.shape[:-2], *self.shape[:-3:-1]), (*self.strides[:-2], *self.strides[:-3:-1])
        return GpuArray(self.address, shape, strides, self.dtype, self.owner)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The call to tune: sizes, types and epilogue."""

    m: int
    n: int
    k: int
    batch: int = 0
    groups: int = 0
    blockwise: bool = False
    dtype: str = "bf16"
    majors: tuple[str, str] = ("k", "k")
    out_dtype: str | None = None
    bias: bool = False
    residual: bool = False
    activation: str | None = None


class Inputs:
    """A maker of arrays on one GPU."""

    def __init__(self, device: Device, seed: int | None = None) -> None:
        self._device, self._random = device, np.random.default_rng(seed)

    def call(self, wanted: Wanted) -> tuple[Operation, dict[str, Any]]:
        """Return the operation and its arguments: A ~ N(0, 1), B ~ N(0, 1) / sqrt(K), with their majors, and so on."""
        m, n, k = wanted.m, wanted.n, wanted.k
        front = (wanted.batch,) if wanted.batch else ()
        narrow = ELEMENT_TYPES[wanted.dtype].bits <= _NARROW_BITS
        result = wanted.out_dtype or ("bf16" if narrow else wanted.dtype)
        of_weights = (wanted.groups,) if wanted.groups else front
        scale = 1.0 if narrow else k**-0.5
        given: dict[str, Any] = {
            "a": self._along(wanted.majors[0], wanted.dtype, *front, m, k),
            "b": self._along(wanted.majors[1], wanted.dtype, *of_weights, n, k, scale=scale),
        }
        operation: Operation = matmul
        if wanted.blockwise:
            blocks = -(-k // BLOCK)
            given["a_scale"] = self.uniform(blocks, m).mT
            given["b_scale"] = self.uniform(-(-n // BLOCK), blocks)
            operation = blockwise_matmul
        else:
            given["b"] = given["b"].mT
        if wanted.groups:
            given["ends"] = self.ends(m, wanted.groups)
            operation = grouped_matmul
        if wanted.bias:
            given["bias"] = self.normal(result, n)
        if wanted.activation:
            given["activation"] = wanted.activation
        if wanted.residual:
            given["residual"] = self.normal(result, *front, m, n)
        return operation, {**given, "out": self.normal(result, *front, m, n)}

    def normal(self, dtype: str, *shape: int, scale: float = 1.0) -> GpuArray:
        values = self._random.standard_normal(_PATTERN, np.float32) * np.float32(scale)
        return self._repeated(values.astype(ELEMENT_TYPES[dtype].values), shape)

    def _along(self, major: str, dtype: str, *shape: int, scale: float = 1.0) -> GpuArray:
        """Return an array of so many rows and K columns, contiguous along its major."""
        *front, rows, k = shape
        if major == "k":
            return self.normal(dtype, *shape, scale=scale)
        return self.normal(dtype, *front, k, rows, scale=scale).mT

    def uniform(self, *shape: int) -> GpuArray:
        return self._repeated(self._random.uniform(0.5, 1.5, _PATTERN).astype(np.float32), shape)

    def ends(self, rows: int, groups: int) -> GpuArray:
        """Return the ends of groups of random sizes."""
        sizes = self._random.multinomial(rows, self._random.dirichlet(np.full(groups, 4.0)))
        return self._repeated(np.cumsum(sizes).astype(np.int32), (groups,))

    def _repeated(self, values: np.ndarray[Any, Any], shape: tuple[int, ...]) -> GpuArray:
        """Return an array that repeats values to its end."""
        strides = tuple(values.itemsize * int(np.prod(shape[at + 1 :])) for at in range(len(shape)))
        size = values.itemsize * int(np.prod(shape))
        block = allocated(self._device, 0, size, zero=False)
        watch = Stopwatch(self._device)
        done = min(values.nbytes, size)
        watch.write(block.address, np.ascontiguousarray(values).view(np.uint8)[:done])
        while done < size:
            step = min(done, size - done)
            watch.copy(block.address + done, block.address, step)
            done += step
        watch.wait()
        return GpuArray(block.address, shape, strides, values.dtype, block)
