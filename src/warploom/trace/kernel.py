"""`@kernel`: a Python function that becomes a PTX module when it is traced, and a launch when it is bound."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.ptx.launch import Launch, Triple
from warploom.ptx.model import Directive, Kernel, Module, Variable
from warploom.ptx.tensor_map import TensorMap
from warploom.trace.builder import Builder, building, here
from warploom.trace.memory import View
from warploom.trace.values import Value, address_of, compute
from warploom.trace.instructions import At, emit

_DTYPES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int16": "s16", "uint16": "u16",
    "int32": "s32", "uint32": "u32", "int64": "s64", "uint64": "u64",
}  # fmt: skip
SCALARS = ("s32", "u32", "s64", "u64", "f32", "f64")


class KernelFunction:
    """A traced kernel: `.trace(...)` gives the module, `.bind(...)` a launch for `launch` and `check`."""

    def __init__(self, function: Callable[..., None], target: str) -> None:
        functools.update_wrapper(self, function)
        self._function, self._target = function, target
        self._parameters = inspect.signature(function).parameters

    def bind(self, *arguments: Any, grid: Triple, block: Triple, cluster: Triple = (1, 1, 1), shared_bytes: int = 0, **constants: Any) -> Launch:
        """A launch of the kernel on these arguments; keywords are Python values known while tracing."""
        values = self._values(arguments, constants)
        module = self.trace(block=block, **values)
        passed = tuple(_passed(self._parameters[name].annotation, value) for name, value in values.items() if _is_device(self._parameters[name].annotation, value))
        return Launch(module, grid, block, passed, self.__name__, cluster, shared_bytes)

    def trace(self, *, block: Triple | None = None, **values: Any) -> Module:
        """Run the function once on symbols and collect what it did."""
        builder = Builder(self._function.__name__)
        with building(builder):
            arguments = {name: _parameter(builder, name, self._parameters[name].annotation, value) for name, value in values.items()}
            self._function(**arguments)
            if builder.region.parent is not None:
                raise Diag.LEFT_LOOP_EARLY.error(builder.region.loc, kind=builder.region.kind)
            emit("ret")
        return _module(builder, self._target, block)

    def _values(self, arguments: tuple[Any, ...], constants: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = inspect.signature(self._function).bind(*arguments, **constants)
        except TypeError as error:
            raise Diag.BAD_KERNEL.error(here(), what=str(error)) from None
        bound.apply_defaults()
        return dict(bound.arguments)


def kernel(function: Callable[..., None] | None = None, *, target: str = "sm_90a") -> Any:
    """Make a function a kernel: parameters annotated with a device type or `TensorMap`, and arrays, are passed at launch."""
    if function is None:
        return functools.partial(kernel, target=target)
    return KernelFunction(function, target)


def _is_device(annotation: Any, value: Any) -> bool:
    return isinstance(value, np.ndarray | TensorMap) or annotation in SCALARS


def _passed(annotation: Any, value: Any) -> Any:
    return value


def _parameter(builder: Builder, name: str, annotation: Any, value: Any) -> Any:
    """What the author's function receives for an argument."""
    label = f"{builder.name}_{name}"
    if isinstance(value, TensorMap):
        builder.params.append(Variable("param", "b8", label, 64, 128))
        window = address_of(label, "u64")
        return compute("cvta.param.u64", "u64", window)
    if isinstance(value, np.ndarray):
        dtype = _DTYPES.get(value.dtype.name)
        if dtype is None:
            raise Diag.BAD_KERNEL.error(here(), what=f"`{name}` has dtype {value.dtype}, which no view reads")
        builder.params.append(Variable("param", "u64", label))
        (pointer,) = emit("ld.param.u64", At(label))
        address = compute("cvta.to.global.u64", "u64", pointer)
        strides = tuple(stride // value.itemsize for stride in value.strides)
        return View(address, dtype, value.shape, strides, "global")
    if annotation in SCALARS:
        builder.params.append(Variable("param", annotation, label))
        (scalar,) = emit(f"ld.param.{annotation}", At(label))
        return Value(annotation, scalar.operand, scalar.region)
    return value


def _module(builder: Builder, target: str, block: Triple | None) -> Module:
    directives = (Directive("reqntid", block),) if block is not None else ()
    traced = Kernel(
        builder.name,
        params=tuple(builder.params),
        directives=directives,
        registers=tuple(builder.registers.items()),
        variables=tuple(builder.shared),
        body=tuple(builder.body),
    )
    files = tuple(enumerate(dict.fromkeys(s.loc.file for s in traced.instructions if s.loc), start=1))
    return Module((8, 6), (target,), (traced,), files=files)
