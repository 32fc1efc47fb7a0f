"""Products on PyTorch tensors that give more than D, or are made of pairs: one op, which fills tensors that are there.

It has no derivative of its own; `torch_kept` derives calls by what this op keeps for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from warploom.diagnostics import Diag
from warploom.ops.planning.aliasing import overlap
from warploom.ops.planning.epilogue import Options, check_names
from warploom.ops.planning.extras import extras_by
from warploom.ops.planning.violations import Faults
from warploom.torch.arguments import Form, check_written, raise_all
from warploom.torch.fast_path import changed, remember
from warploom.torch.op_library import (
    FACTORS,
    GROUPED,
    LIBRARY,
    Plan,
    compute,
    key_of,
    operands_by_name,
    read_ends,
    result_of,
)

PAIRED = {"gated_linear": ("x", "w_gate", "w_up"), "gated_grouped_matmul": ("a", "b_gate", "b_up", "ends")}
"""By operation of pairs, the tensors that it multiplies."""
_FUSED = (
    "Tensor(z!) out, Tensor(y!)[] further, str operation, Tensor[] factors, Tensor? bias, Tensor? up_bias, "
    "Tensor? residual, Tensor[] operands, float[] numbers, float alpha, float beta, str activation, str extras"
)
LIBRARY.define(f"fused_into({_FUSED}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))


def fused_into(
    out: Tensor,
    further: list[Tensor],
    operation: str,
    factors: list[Tensor],
    bias: Tensor | None,
    up_bias: Tensor | None,
    residual: Tensor | None,
    operands: list[Tensor],
    numbers: list[float],
    alpha: float,
    beta: float,
    activation: str,
    extras: str,
) -> Plan | None:
    """D into `out`, and what the extras name into the further tensors; the plan by which it was computed, if any."""
    more = extras_by(extras)
    given: dict[str, Any] = {
        **dict(zip({**FACTORS, **PAIRED}[operation], factors, strict=True)),
        "gate_bias" if operation in PAIRED else "bias": bias,
        "up_bias": up_bias,
        "residual": residual if beta != 0 else None,
        "activation": activation or None,
        "operands": operands_by_name(operands, numbers, more) or None,
        "outputs": dict(zip(more.outputs, further, strict=True)) or None,
    }
    arguments = {name: value for name, value in given.items() if value is not None}
    if "ends" in arguments:
        arguments["ends"] = read_ends(arguments["ends"])
    arguments |= {"alpha": alpha, "beta": beta, **more.options(), "out": out}
    key = key_of(extras, alpha, beta, activation, *numbers, *arguments)
    return compute(operation, arguments, key, more.function)


def _write(*given: Any) -> None:
    fused_into(*given)


for _key in ("CUDA", "CPU"):
    LIBRARY.impl("fused_into", _write, _key)
torch.library.register_fake("warploom::fused_into", lambda *given: None, lib=LIBRARY)  # noqa: ARG005


def outputs_of(options: Options, form: Form, read: list[Tensor], faults: Faults) -> list[Tensor]:
    """The further outputs as the kernel writes them; each must be as the result is, and nobody else's memory."""
    check_names(options, faults)
    given = options.outputs if isinstance(options.outputs, Mapping) else {}
    found: list[Tensor] = []
    others = [*read, *([options.out] if isinstance(options.out, Tensor) else [])]
    for name, value in given.items():
        argument = f"outputs[{name!r}]"
        if not isinstance(value, Tensor) or tuple(value.shape) != form.shape:
            faults.add(argument, value, f"it must be a tensor as the result is, {form.shape}")
        elif not _is_matrix(value, form):
            faults.add(argument, value, f"its strides {value.stride()} are not those of a matrix {form.core}")
        elif not torch.compiler.is_compiling() and any(overlap(value, other) for other in others):
            faults.add(argument, value, "it overlaps another tensor of the call")
        else:
            check_written(argument, value, faults)
            found.append(value.view(form.core))
            others.append(value)
    return found


def _is_matrix(tensor: Tensor, form: Form) -> bool:
    """Whether a tensor like the result lies as the kernel sees it."""
    if tensor.is_contiguous() or form.shape == form.core:
        return True
    if torch.compiler.is_compiling():
        return False
    try:
        tensor.view(form.core)
    except RuntimeError:
        return False
    return True


def run_fused(
    function: str,
    operation: str,
    form: Form,
    addends: Mapping[str, Any],
    rest: tuple[Any, ...],
    extras: str,
    options: Options,
    key: Any,
    own: list[Tensor],
) -> Tensor:
    """D and its further outputs; `rest` are operands, numbers, alpha, beta and activation, as the op takes them.

    With a key, nobody else is to hear of the call, which is remembered with the caller's own tensors.
    """
    faults = Faults(function)
    added = [addends.get(name) for name in ("bias", "up_bias", "residual")]
    read = [each for each in (*form.factors, *added, *rest[0]) if isinstance(each, Tensor)]
    further = outputs_of(options, form, read, faults)
    raise_all(faults)
    results = [each for each in (*further, options.out) if each is not None]
    if torch.is_grad_enabled() and any(each.requires_grad for each in (*read, *results)):
        named = [f"`{name}`" for name in ("epilogue", "outputs", "out") if getattr(options, name) is not None]
        named += ["a function for `pair`"] if callable(options.pair) else []
        raise Diag.NO_DERIVATIVE.error(what=" and ".join(named))
    out: Tensor | None = options.out
    directly = out is not None and _is_writable(out, form, read)
    if out is not None and directly:
        made = out.view(form.core)
    elif out is not None and operation in GROUPED:
        made = out.reshape(form.core).clone()  # what a kernel does not write is to stay
    else:
        made = result_of(operation, form.factors, options.out_dtype if out is None else out.dtype)
        if operation in GROUPED:
            made.zero_()
    given = (made, further, operation, list(form.factors), *added, *rest, extras)
    if key is None:
        torch.ops.warploom.fused_into(*given)
    else:
        plan, is_partial = fused_into(*given), operation in GROUPED
        remember(key, plan, made.view(form.shape), own, [*read, *further], starts_at_zero=is_partial)
    for each in further:
        changed(each)
    if out is None:
        return made.view(form.shape)
    return changed(out) if directly else out.copy_(made.view(form.shape))


def _is_writable(out: Tensor, form: Form, read: list[Tensor]) -> bool:
    """Whether a kernel can write the caller's tensor without changing what it still reads."""
    fits = out.is_contiguous() or tuple(out.shape) == form.core
    return fits and not torch.compiler.is_compiling() and not any(overlap(out, each) for each in read)
