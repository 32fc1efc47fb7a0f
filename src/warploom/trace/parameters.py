"""What a kernel's parameters are: passed at launch (arrays, tensor maps, scalars) or known while tracing."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from warploom.ptx.model import Variable
from warploom.ptx.tensor_map import BoxGeometry, TensorMap
from warploom.trace.builder import Builder
from warploom.trace.instructions import At, emit
from warploom.trace.memory import View
from warploom.trace.types import OF_NUMPY, TYPES, encode, wrap
from warploom.trace.values import Value, address_of, compute

_ARRAY = re.compile(r"(?:\w+\.)*Array(?:\[['\"]?(\w+)['\"]?\])?")
_SCALAR = re.compile(r"(?:\w+\.)*(\w+)")
_MAP_BYTES, _MAP_ALIGN = 128, 64


class Array:
    """As an annotation: an array of any element type; `Array[f32]` of that one."""

    def __class_getitem__(cls, dtype: str) -> str:
        return f"Array[{dtype}]"


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map inside the kernel: its address, and what is known of it."""

    address: Value
    geometry: BoxGeometry

    @property
    def box_bytes(self) -> int:
        """Bytes that one box brings."""
        return self.geometry.box_bytes

    def at(self, *coordinates: Value | int) -> At:
        """The box that begins at coordinates in NumPy's order of axes."""
        return At(self.address, 0, tuple(reversed(coordinates)))


@dataclass(frozen=True)
class Parameter:
    """A parameter: array, map, scalar or constant, or any where only the argument tells; `type` is what it must be."""

    name: str
    kind: str
    type: str = ""

    def is_passed(self, value: Any) -> bool:
        """Whether an argument goes to the device."""
        return self.kind in ("array", "map", "scalar") or (
            self.kind == "any" and isinstance(value, np.ndarray | TensorMap)
        )

    def passed(self, value: Any) -> Any:
        """The argument as a launch takes it: 16-bit floats as their bits."""
        return encode(value, self.type) if self.type in ("f16", "bf16") and self.kind == "scalar" else value

    def problem(self, value: Any) -> str:
        """What is wrong with an argument, or nothing."""
        if not self.is_passed(value):
            return ""
        if self.kind == "scalar":
            return self._scalar_problem(value)
        if self.kind == "map" and not isinstance(value, TensorMap):
            return f"`{self.name}` is a TensorMap, not {_kind_of(value)}"
        if isinstance(value, TensorMap):
            return f"`{self.name}` is an array, not a TensorMap" if self.kind == "array" else ""
        if not isinstance(value, np.ndarray):
            return f"`{self.name}` is an array, not {_kind_of(value)}"
        dtype = OF_NUMPY.get(value.dtype.name)
        if dtype is None:
            return f"`{self.name}` has dtype {value.dtype}, which no view reads"
        if self.type and dtype != self.type:
            return f"`{self.name}` is an array of {self.type}, not of {value.dtype}"
        if any(stride % value.itemsize for stride in value.strides):
            return f"`{self.name}` has strides that are no whole elements"
        return ""

    def _scalar_problem(self, value: Any) -> str:
        whole = TYPES[self.type].kind != "float"
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
            return f"`{self.name}` is a .{self.type}, not {_kind_of(value)}"
        if whole and int(value) != value:
            return f"`{self.name}` is a .{self.type}, not {value}"
        if whole and wrap(int(value), self.type) != value:
            return f"`{self.name}` = {value} does not fit in a .{self.type}"
        return ""

    def traced(self, builder: Builder, value: Any) -> Any:
        """What the author's function receives."""
        if not self.is_passed(value):
            return value
        label = f"{builder.name}_{self.name}"
        if isinstance(value, TensorMap):
            builder.params.append(Variable("param", "b8", label, _MAP_ALIGN, _MAP_BYTES))
            return TensorMapArgument(compute("cvta.param.u64", "u64", address_of(label, "u64")), value.geometry)
        if isinstance(value, np.ndarray):
            builder.params.append(Variable("param", "u64", label))
            (pointer,) = emit("ld.param.u64", At(label))
            address = compute("cvta.to.global.u64", "u64", pointer)
            strides = tuple(stride // value.itemsize for stride in value.strides)
            return View(address, OF_NUMPY[value.dtype.name], value.shape, strides, "global")
        builder.params.append(Variable("param", TYPES[self.type].memory, label))
        (scalar,) = emit(f"ld.param.{TYPES[self.type].memory}", At(label))
        return Value(self.type, scalar.operand, scalar.region)


def _kind_of(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def parameters_of(signature: inspect.Signature) -> list[Parameter]:
    """A function's parameters by their annotations: names of types, as text or as they are."""
    return [_parameter(each) for each in signature.parameters.values()]


def _parameter(each: inspect.Parameter) -> Parameter:
    if each.kind is inspect.Parameter.KEYWORD_ONLY:
        return Parameter(each.name, "constant")
    annotation = each.annotation
    if annotation in (TensorMap, Array):
        return Parameter(each.name, "map" if annotation is TensorMap else "array")
    text = annotation.strip("'\"") if isinstance(annotation, str) else ""
    array, scalar = _ARRAY.fullmatch(text), _SCALAR.fullmatch(text)
    if array:
        return Parameter(each.name, "array", array[1] or "")
    if scalar and scalar[1] == "TensorMap":
        return Parameter(each.name, "map")
    if scalar and scalar[1] in TYPES and TYPES[scalar[1]].kind not in ("pred", "pair"):
        return Parameter(each.name, "scalar", scalar[1])
    return Parameter(each.name, "any" if annotation is inspect.Parameter.empty else "constant")


def signature_of(parameter: Parameter, value: Any) -> Any:
    """What a trace depends on of an argument."""
    if not parameter.is_passed(value):
        return (type(value), value)
    if isinstance(value, TensorMap):
        return value.geometry
    if isinstance(value, np.ndarray):
        return (value.dtype.name, value.shape, value.strides)
    return parameter.type
