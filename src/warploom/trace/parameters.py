"""The parameters of a kernel: passed at launch (arrays, tensor maps, scalars) or known while tracing."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from warploom.host.arrays import Buffer, buffer_of, is_array
from warploom.host.tensor_map import BoxGeometry, TensorMap
from warploom.ptx.syntax.model import Variable
from warploom.trace.builder import Builder
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.annotations import Array, Tensor
from warploom.trace.language.types import OF_NUMPY, TYPES, encode, wrap
from warploom.trace.language.values import Value, address_of, compute
from warploom.trace.language.views import View

_ARRAY = re.compile(r"(?:\w+\.)*Array(?:\[['\"]?(\w+)['\"]?\])?")
_TENSOR = re.compile(r"(?:\w+\.)*Tensor(?:\[['\"]?(\w+)['\"]?\])?")
_SCALAR = re.compile(r"(?:\w+\.)*(\w+)")
_OR_NONE = " | None"
_MAP_BYTES, _MAP_ALIGN = 128, 64
_ANY_EXTENT = (1 << 31) - 1
_WIDEST = 16


class Operands:
    """As an annotation: arrays and numbers by name, each passed as a tensor or as a f32."""


class Sizes:
    """As an annotation: integers by name, each passed as a s32."""


@dataclass(frozen=True, repr=False)
class TensorMapArgument:
    """A tensor map inside the kernel: its address, and what is known of it."""

    address: Value
    geometry: BoxGeometry
    name: str = ""

    def __repr__(self) -> str:
        box = self.geometry
        return f"<tensor map `{self.name}`: boxes of {box.box} {box.element.name}, swizzle {box.swizzle.name}>"

    @property
    def box_bytes(self) -> int:
        """Bytes that one box brings."""
        return self.geometry.box_bytes

    def at(self, *coordinates: Value | int) -> At:
        """The box that begins at coordinates in NumPy's order of axes."""
        return At(self.address, 0, tuple(reversed(coordinates)), self)


class Looked(NamedTuple):
    """An argument as a launch takes it, what a trace depends on of it, and what is wrong with it, if anything is."""

    passed: tuple[Any, ...]
    """16-bit floats as their bits, a tensor with the strides that the trace does not know."""
    signature: Any
    problem: str = ""


@dataclass(frozen=True)
class Parameter:
    """A parameter: array, map, scalar or constant, or any where only the argument tells; `type` is what it must be."""

    name: str
    kind: str
    type: str = ""
    optional: bool = False
    """None may be given for it; then nothing is passed."""

    def is_passed(self, value: Any) -> bool:
        """Return whether an argument goes to the device."""
        if value is None and self.optional:
            return False
        return self.kind in ("array", "tensor", "operands", "map", "scalar") or (
            self.kind == "any" and (isinstance(value, TensorMap) or is_array(value))
        )

    def _operand(self, name: str, value: Any) -> Parameter:
        """One of several operands as a parameter of its own."""
        kind = "scalar" if isinstance(value, int | float) else "tensor"
        return Parameter(f"{self.name}_{name}", kind, (self.type or "f32") if kind == "scalar" else "")

    def look(self, value: Any) -> Looked:
        """An argument, looked at once: asking an array for all that it is takes long."""
        if not self.is_passed(value):
            return Looked((), (type(value), value))
        if self.kind == "operands":
            found = {name: self._operand(name, item).look(item) for name, item in value.items()}
            passed = tuple(each for looked in found.values() for each in looked.passed)
            problem = "; ".join(looked.problem for looked in found.values() if looked.problem)
            return Looked(passed, tuple((name, looked.signature) for name, looked in found.items()), problem)
        if self.kind == "scalar":
            problem = self._scalar_problem(value)
            bits = encode(value, self.type) if self.type in ("f16", "bf16") and not problem else value
            return Looked((bits,), self.type, problem)
        if isinstance(value, TensorMap):
            problem = f"`{self.name}` is an array, not a TensorMap" if self.kind == "array" else ""
            return Looked((value,), _box_of(value), problem)
        if self.kind == "map" or not is_array(value):
            wanted = "a TensorMap" if self.kind == "map" else "an array"
            return Looked((), None, f"`{self.name}` is {wanted}, not {_kind_of(value)}")
        return self._looked_at_array(value, buffer_of(value))

    def _looked_at_array(self, value: Any, buffer: Buffer) -> Looked:
        """An array, and of a tensor those strides that the trace does not know."""
        problem, dtype = "", OF_NUMPY.get(buffer.dtype)
        if dtype is None:
            problem = f"`{self.name}` has dtype {buffer.dtype}, which no view reads"
        elif self.type and dtype != self.type:
            problem = f"`{self.name}` is an array of {self.type}, not of {buffer.dtype}"
        elif any(stride % buffer.item for stride in buffer.strides):
            problem = f"`{self.name}` has strides that are not multiples of its elements"
        if self.kind != "tensor":
            return Looked((value,), (buffer.dtype, buffer.shape, buffer.strides), problem)
        strides = _strides(buffer)
        pattern = tuple([stride if stride in (0, 1) else None for stride in strides])
        unknown = [stride for stride in strides if stride not in (0, 1)]
        return Looked((value, *unknown), (buffer.dtype, pattern, _alignment(buffer)), problem)

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
        """Return the object that the author's function receives."""
        if not self.is_passed(value):
            return value
        label = f"{builder.name}_{self.name}"
        if isinstance(value, TensorMap):
            builder.params.append(Variable("param", "b8", label, _MAP_ALIGN, _MAP_BYTES))
            address = compute("cvta.param.u64", "u64", address_of(label, "u64"))
            return TensorMapArgument(address, _box_of(value), self.name)
        if self.kind == "operands":
            return {name: self._operand(name, item).traced(builder, item) for name, item in value.items()}
        if is_array(value):
            buffer = buffer_of(value)
            builder.params.append(Variable("param", "u64", label))
            (pointer,) = emit("ld.param.u64", At(label))
            address = compute("cvta.to.global.u64", "u64", pointer)
            if self.kind == "tensor":
                return _tensor(builder, label, address, buffer)
            return View(address, OF_NUMPY[buffer.dtype], buffer.shape, _strides(buffer), "global")
        builder.params.append(Variable("param", TYPES[self.type].memory, label))
        (scalar,) = emit(f"ld.param.{TYPES[self.type].memory}", At(label))
        return Value(self.type, scalar.operand, scalar.region)


def _strides(buffer: Buffer) -> tuple[int, ...]:
    return tuple(stride // buffer.item for stride in buffer.strides)


def _alignment(buffer: Buffer) -> int:
    """Bytes, up to the widest access, that the address of every row is a multiple of; allocations are aligned."""
    return math.gcd(_WIDEST, buffer.address, *(stride for stride in buffer.strides if stride != buffer.item))


def _tensor(builder: Builder, label: str, address: Value, buffer: Buffer) -> View:
    """A view with the strides that come as parameters of their own."""
    strides = list[int | Value]()
    for axis, stride in enumerate(_strides(buffer)):
        if stride in (0, 1):
            strides.append(stride)
            continue
        name = f"{label}_stride{axis}"
        builder.params.append(Variable("param", "s64", name))
        (loaded,) = emit("ld.param.s64", At(name))
        strides.append(loaded)
    shape = (_ANY_EXTENT,) * len(buffer.shape)
    return View(address, OF_NUMPY[buffer.dtype], shape, tuple(strides), "global", alignment=_alignment(buffer))


def _box_of(tensor_map: TensorMap) -> BoxGeometry:
    """Return what a trace may know of a map: all but the sizes, so that one trace serves them all."""
    return replace(tensor_map.geometry, shape=(), strides=(), lower_corner=(), upper_corner=())


def _kind_of(value: Any) -> str:
    return f"an array of {buffer_of(value).dtype}" if is_array(value) else f"a {type(value).__name__}"


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
    if text.endswith(_OR_NONE):
        return replace(_parameter(each.replace(annotation=text.removesuffix(_OR_NONE))), optional=True)
    array, tensor, scalar = (pattern.fullmatch(text) for pattern in (_ARRAY, _TENSOR, _SCALAR))
    if {part.strip().rpartition(".")[2] for part in text.split("|")} == {"TensorMap", "Tensor"}:
        return Parameter(each.name, "tensor")
    if annotation is Operands or text.rpartition(".")[2] == "Operands":
        return Parameter(each.name, "operands")
    if annotation is Sizes or text.rpartition(".")[2] == "Sizes":
        return Parameter(each.name, "operands", "s32")
    if annotation is Tensor or tensor:
        return Parameter(each.name, "tensor", (tensor and tensor[1]) or "")
    if array:
        return Parameter(each.name, "array", array[1] or "")
    if scalar and scalar[1] == "TensorMap":
        return Parameter(each.name, "map")
    if scalar and scalar[1] in TYPES and TYPES[scalar[1]].kind in ("signed", "unsigned", "float"):
        return Parameter(each.name, "scalar", scalar[1])
    return Parameter(each.name, "any" if annotation is inspect.Parameter.empty else "constant")
