"""Digests of the results of every kernel family of the library, printed as JSON: `python host_families.py`.

Inputs come from integers alone, and their magnitudes differ so much that the order of every sum matters.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.structured.config import HopperConfig, MatmulConfig

BF16, E4M3, E2M1 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
E8M0 = ml_dtypes.float8_e8m0fnu
TARGETS = ("sm_90a", "sm_100a")
ENDS = np.array([9, 9, 40, 70])
"""A group of few rows, an empty one, and two more."""
Array = np.ndarray[Any, Any]


class Inputs:
    """Numbers that are the same on every computer."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(31)

    def floats(self, *shape: int, dtype: Any = BF16, spread: int = 9) -> Array:
        """Numbers of both signs with exponents in a range, as bit patterns."""
        exponents = self._rng.integers(-spread, spread + 1, shape).astype(np.int64) + 1023
        fractions = self._rng.integers(0, 1 << 52, shape).astype(np.int64)
        signs = self._rng.integers(0, 2, shape).astype(np.int64)
        return (signs << 63 | exponents << 52 | fractions).view(np.float64).astype(dtype)

    def codes(self, *shape: int, dtype: Any = E4M3) -> Array:
        """Finite numbers of a small type."""
        most = {E4M3: 0x7E, E2M1: 0x10}[dtype]
        sign = self._rng.integers(0, 2, shape) << 7 if dtype is E4M3 else 0
        return (self._rng.integers(0, most, shape) | sign).astype(np.uint8).view(dtype)

    def scales(self, *shape: int, dtype: Any = np.float32) -> Array:
        """Positive scale factors."""
        if dtype is E8M0:
            return self._rng.integers(120, 134, shape).astype(np.uint8).view(E8M0)
        if dtype is E4M3:
            return self._rng.integers(0x20, 0x50, shape).astype(np.uint8).view(E4M3)
        return np.abs(self.floats(*shape, dtype=dtype, spread=3))


def matmuls() -> dict[str, Any]:
    """Configurations of every work decomposition."""
    few = {"tile": (64, 32), "consumers": 1}
    return {
        "sm_90a cooperative": HopperConfig(tile=(128, 64)),
        "sm_90a ping-pong": HopperConfig(tile=(64, 64), pingpong=True),
        "sm_90a cluster": HopperConfig(tile=(64, 64), consumers=1, cluster_shape=(2, 1, 1)),
        "sm_90a split-K in a cluster": HopperConfig(num_split_k=2, **few),
        "sm_90a split-K in memory": HopperConfig(num_split_k=2, split_in_cluster=False, **few),
        "sm_90a stream-K": HopperConfig(tile=(64, 64), consumers=1, stream_k=True),
        "sm_100a pair": MatmulConfig(),
        "sm_100a one CTA": MatmulConfig(cta_group=1, mma_shape=(128, 64, 16)),
        "sm_100a split-K": MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=2),
    }


def families() -> dict[str, Callable[[Inputs], Any]]:
    """Every family of both architectures, as a function from inputs to its results."""
    found: dict[str, Callable[[Inputs], Any]] = {}
    for name, config in matmuls().items():
        found[name] = lambda given, config=config, name=name: wl.matmul(
            given.floats(72, 192), given.floats(192, 40), config=config, target=name[: name.index(" ")],
            out_dtype=np.float32,
        )  # fmt: skip
    for target in TARGETS:
        on = {"target": target}
        found |= {
            f"{target} batched": lambda given, on=on: wl.matmul(given.floats(2, 9, 72), given.floats(2, 72, 24), **on),
            f"{target} fp8": lambda given, on=on: wl.matmul(
                given.codes(24, 96), given.codes(40, 96).T, out_dtype=np.float32, **on
            ),
            f"{target} linear": lambda given, on=on: wl.linear(
                given.floats(40, 128), given.floats(56, 128), bias=given.floats(56), residual=given.floats(40, 56),
                activation="gelu_tanh", **on,
            ),
            f"{target} gated": lambda given, on=on: wl.gated_linear(
                given.floats(40, 128), given.floats(32, 128), given.floats(32, 128), **on
            ),
            f"{target} grouped": lambda given, on=on: wl.grouped_matmul(
                given.floats(70, 64), given.floats(4, 64, 48), ENDS, out_dtype=np.float32, **on
            ),
            f"{target} gated grouped": lambda given, on=on: wl.gated_grouped_matmul(
                given.floats(70, 64), given.floats(4, 64, 48), given.floats(4, 64, 48), ENDS, **on
            ),
            f"{target} blockwise": lambda given, on=on: wl.blockwise_matmul(
                given.codes(40, 160), given.codes(24, 160), given.scales(40, 2), given.scales(1, 2), **on
            ),
            f"{target} conv2d": lambda given, on=on: wl.conv2d(
                given.floats(1, 7, 9, 16), given.floats(24, 3, 3, 16), stride=2, padding=1, **on
            ),
        }  # fmt: skip
    return found | block_scaled()


def block_scaled() -> dict[str, Callable[[Inputs], Any]]:
    """The families with block scales, which Blackwell has."""
    formats = {"MXFP8": (E4M3, E8M0, 32), "MXFP4": (E2M1, E8M0, 32), "NVFP4": (E2M1, E4M3, 16)}
    found: dict[str, Callable[[Inputs], Any]] = {}
    for name, (element, scale, run) in formats.items():

        def operands(
            given: Inputs, *shapes: tuple[int, ...], kind: tuple[Any, Any, int] = (element, scale, run)
        ) -> Any:
            element, scale, run = kind
            values = [given.codes(*shape, dtype=element) for shape in shapes]
            return *values, *(given.scales(*shape[:-1], shape[-1] // run, dtype=scale) for shape in shapes)

        found[f"sm_100a {name}"] = lambda given, operands=operands: wl.block_scaled_matmul(
            *operands(given, (40, 128), (24, 128)), out_dtype=np.float32
        )
        found[f"sm_100a grouped {name}"] = lambda given, operands=operands: wl.grouped_block_scaled_matmul(
            *operands(given, (70, 128), (4, 40, 128)), ENDS, out_dtype=np.float32
        )

        def gated(given: Inputs, operands: Any = operands) -> Any:
            a, gate, up, *scales = operands(given, (70, 128), (4, 64, 128), (4, 64, 128))
            return wl.gated_grouped_block_scaled_matmul(a, gate, up, *scales, ENDS)

        found[f"sm_100a gated grouped {name}"] = gated
    found["sm_100a grouped blockwise"] = lambda given: wl.grouped_blockwise_matmul(
        given.codes(70, 160), given.codes(4, 24, 160), given.scales(70, 2), given.scales(4, 1, 2), ENDS
    )
    found["quantise MXFP8"] = lambda given: wl.quantise_mxfp8(given.floats(24, 96, dtype=np.float32))
    found["quantise NVFP4"] = lambda given: wl.quantise_nvfp4(given.floats(24, 96, dtype=np.float32))
    return found


def arrays(result: Any) -> Iterator[Array]:
    """The arrays of a result."""
    if isinstance(result, tuple):
        for each in result:
            yield from arrays(each)
    else:
        yield np.asarray(result)


@np.errstate(all="ignore")
def digests() -> dict[str, str]:
    """A digest of the results of every family."""
    found = {}
    for name, run in families().items():
        digest = hashlib.sha256()
        for array in arrays(run(Inputs())):
            digest.update(np.ascontiguousarray(array).tobytes())
        found[name] = digest.hexdigest()[:16]
    return found


if __name__ == "__main__":
    json.dump(digests(), sys.stdout, indent=1)
