"""A product without extras as an op of few arguments: what stands in a compiled graph, where every argument takes time.

It has no derivative: `matmul`, which has one, is this op below it, so that compiled code, which has been derived
already, goes through Python once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from warploom.ops.planning.extras import PLAIN
from warploom.torch.fast_path import is_below_autograd, launched_again, remember, state
from warploom.torch.op_library import LIBRARY, result_of, run_into

LIBRARY.define(
    "plain_matmul(Tensor a, Tensor b, Tensor? bias, Tensor? residual, str following) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _written(alpha: float, beta: float, activation: str, out_dtype: torch.dtype | None) -> str:
    """What follows a product as one text, which another process can read."""
    return f"{alpha!r} {beta!r} {activation or '-'} {str(out_dtype).rpartition('.')[2]}"


@cache
def _read(following: str) -> tuple[float, float, str, torch.dtype | None]:
    alpha, beta, activation, dtype = following.split(" ")
    return float(alpha), float(beta), activation.strip("-"), None if dtype == "None" else getattr(torch, dtype)


def _multiply(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, following: str) -> Tensor:
    """A new result, of a call that was made before or of one that is planned."""
    tensors = [each for each in (a, b, bias, residual) if each is not None]
    key = (following, a.shape, b.shape, bias is None, residual is None, is_below_autograd(), *state())
    made = launched_again(key, tensors)
    if made is None:
        alpha, beta, activation, out_dtype = _read(following)
        made = result_of("matmul", (a, b), out_dtype)
        plan = run_into("matmul", made, (a, b), bias, residual, [], [], alpha, beta, activation, PLAIN)
        remember(key, plan, made, tensors, tensors)
    return made


for _key in ("CUDA", "CPU"):
    LIBRARY.impl("plain_matmul", _multiply, _key)
LIBRARY.impl("plain_matmul", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake(
    "warploom::plain_matmul", lambda *given: result_of("matmul", given[:2], _read(given[-1])[3]), lib=LIBRARY
)


def plain_or_whole(keys: Any, *given: Any) -> Any:
    """The op `matmul` below its derivative: with few arguments where nothing is in the others."""
    a, b, bias, residual, operands, numbers, *following, extras = given
    if operands or numbers or extras != PLAIN:
        return torch.ops.warploom.matmul.default.redispatch(keys, *given)
    return torch.ops.warploom.plain_matmul.default.redispatch(keys, a, b, bias, residual, _written(*following))
