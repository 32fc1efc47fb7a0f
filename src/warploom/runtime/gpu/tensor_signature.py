"""Signatures of tensors: comparison with earlier ones in type, shape, strides, device and `requires_grad`.

It is asked at every call, so it is asked at once. PyTorch's compiler asks the same before it runs what it compiled, and
has a function for it. That is not promised to others: it is tried out once, and where it does not answer as it must,
attributes are compared one by one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

Likeness = Callable[..., bool]
"""Return True if tensors match those that it was made from; a TypeError may mean False."""


def likeness_of(arrays: Sequence[Any], of_rows: Collection[int] = ()) -> Likeness:
    """Return a function that recognises arrays like these; arrays of other libraries match nothing.

    Those at the positions `of_rows` may have any extent of their first axis.
    """
    torch = sys.modules.get("torch")
    if torch is None or not arrays or not all(isinstance(array, torch.Tensor) for array in arrays):
        return _none_is
    return _by_guards(torch, arrays, of_rows) if _guards_tell() else _by_attributes(arrays, of_rows)


def _none_is(*_: Any) -> bool:
    return False


def _sizes(tensor: Any, *, any_rows: bool) -> list[int | None]:
    """Return the extents that are compared, None for one that is not."""
    return [None if any_rows and not axis else extent for axis, extent in enumerate(tensor.shape)]


def _by_guards(torch: Any, tensors: Sequence[Any], of_rows: Collection[int] = ()) -> Likeness:
    guards = torch._C._dynamo.guards.TensorGuards(  # noqa: SLF001
        *tensors,
        dynamic_dims_sizes=[_sizes(each, any_rows=at in of_rows) for at, each in enumerate(tensors)],
        dynamic_dims_strides=[list(each.stride()) for each in tensors],
    )
    is_like: Likeness = guards.check
    return is_like


def _by_attributes(tensors: Sequence[Any], of_rows: Collection[int] = ()) -> Likeness:
    def attributes(given: Sequence[Any]) -> list[Any]:
        return [_attributes(each, any_rows=at in of_rows) for at, each in enumerate(given)]

    wanted = attributes(tensors)
    return lambda *given: attributes(given) == wanted


def _attributes(tensor: Any, *, any_rows: bool) -> tuple[Any, ...]:
    if not hasattr(tensor, "stride"):
        raise TypeError(tensor)
    sizes = _sizes(tensor, any_rows=any_rows)
    return (type(tensor), sizes, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)


@functools.cache
def _guards_tell() -> bool:
    """Return True if PyTorch's function accepts matching tensors and rejects all others."""
    torch = sys.modules["torch"]
    one = torch.zeros(2, 2)
    wanting = one.clone().requires_grad_()
    others = (one.double(), one.T, one[:1], one[None], one.to("meta"), torch.nn.Parameter(one), wanting)
    try:
        is_like, of_rows = _by_guards(torch, (one, one)), _by_guards(torch, (one, one), (0,))
        rows, columns = torch.zeros(3, 2), torch.zeros(2, 3)
        takes_rows = of_rows(rows, one) and not of_rows(one, rows) and not of_rows(columns, one)
        return takes_rows and is_like(torch.ones(2, 2), one) and not any(is_like(one, other) for other in others)
    except (AttributeError, TypeError, RuntimeError, SystemError):
        return False
