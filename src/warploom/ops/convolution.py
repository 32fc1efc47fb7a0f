"""`conv2d`: convolutions with a fused epilogue, as an implicit GEMM in one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.kernels.convolution import Pair, Window
from warploom.ops.dense import check_operands
from warploom.ops.operation import operation
from warploom.ops.planning.arrays import Violations
from warploom.ops.signatures import Conv2dOptions

if TYPE_CHECKING:
    from warploom.ops.signatures import Conv2d

_IMAGES = range(4, 5)
_LEAST = {"stride": 1, "padding": 0, "dilation": 1}


def _conv2d(
    x: Any, w: Any, violations: Violations, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1
) -> dict[str, Any] | None:
    """Convolve images x (n, h, w, c) with filters w (k, r, s, c), as neural networks do: without flipping the filter.

    The result is (n, p, q, k). `stride`, `padding` and `dilation` are a number, or one for rows and one for columns;
    zeros pad every side. The kernel reads the pixels of each tap in place, by im2col tensor maps: nothing is unfolded.
    The keywords are those of `matmul`: bias (k,), residual (n, p, q, k); `at.row` counts the pixels of all images.
    Channels that are contiguous, in rows of a multiple of 16 bytes, are read without a copy. Tensors of PyTorch are
    NCHW and OIHW, as in `torch.nn.functional.conv2d`, and should be in channels_last.
    """
    found = len(violations)
    given = {"stride": stride, "padding": padding, "dilation": dilation}
    pairs = {name: _pair(name, value, violations) for name, value in given.items()}
    if not check_operands({"x": x, "w": w}, (_IMAGES, _IMAGES), violations):
        return None
    if x.shape[-1] != w.shape[-1]:
        violations.add("w", w, f"must have {x.shape[-1]} channels, those of `x`, {x.dtype} {tuple(x.shape)}")
    for name, array in (("x", x), ("w", w)):
        if 0 in array.shape[1:]:
            violations.add(name, array, "must have pixels and channels")
    if len(violations) > found:
        return None
    window = Window(tuple(w.shape[1:3]), tuple(x.shape[1:3]), **pairs)  # type: ignore[arg-type]
    if min(window.output) < 1:
        rule = f"must reach at most as far as the padded images of `x`, {x.dtype} {tuple(x.shape)}"
        violations.add("w", w, f"{rule}: the result would be {window.output} pixels")
    for problem in window.problems():
        violations.add(*problem)
    if len(violations) > found:
        return None
    shape = (x.shape[0], *window.output, w.shape[0])
    return {"a": x, "b": w, "shape": shape, "row_axes": 3, "window": window}


def _pair(name: str, value: Any, violations: Violations) -> Pair | None:
    """A number for rows and one for columns."""
    least = _LEAST[name]
    numbers = tuple(value) if isinstance(value, tuple | list) else (value, value)
    whole = all(isinstance(each, int | np.integer) and not isinstance(each, bool) for each in numbers)
    if len(numbers) != 2 or not whole or min(numbers) < least:
        violations.add(name, value, f"must be a whole number of at least {least}, or two of them")
        return None
    down, along = map(int, numbers)
    return down, along


conv2d: Conv2d = operation(_conv2d, Conv2dOptions)
