"""The arguments of a Triton launch as the parameters of its PTX: signatures flattened, descriptors as tensor maps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from warploom.diagnostics import Diag
from warploom.hardware.tensor_maps import MAP_TYPES
from warploom.host.tensor_map import TensorMap
from warploom.triton.releases import Release
from warploom.triton.storages import Storage, Storages

SWIZZLES = {0: "none", 1: "32B", 2: "64B", 3: "128B"}
"""By the number in Triton's metadata of a descriptor, which is that of CUtensorMapSwizzle."""
_ON_HOST = {8: 10, 9: 8, 10: 9}
"""The code of CUtensorMapDataType for an element type of the device's `tensormap.replace.elemtype` (PTX ISA, table of
its values), where they differ."""
_MAP_TYPES = {row.code: name for name, row in MAP_TYPES.items()}
_TF32 = "tf32"

_INTEGERS = {"i1": "u8", "i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64"} | {
    f"u{bits}": f"u{max(bits, 8)}" for bits in (1, 8, 16, 32, 64)
}
_FLOATS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "f32": "f32", "fp64": "f64"}
_NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
ELEMENTS = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
        "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
    )
}  # fmt: skip
"""NumPy's types of elements, by PyTorch's names."""
_DESCRIPTOR = re.compile(r"tensordesc(?:_im2col)?<")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, with the PTX type that a launch file gives it."""

    kind: str
    value: int | float

    def argument(self) -> Any:
        if self.kind in _NUMPY:
            with np.errstate(all="ignore"):
                return np.asarray(self.value, _NUMPY[self.kind])[()]
        return np.dtype(f"{'i' if self.kind[0] == 's' else 'u'}{int(self.kind[1:]) // 8}").type(self.value)


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address inside the memory of a tensor."""

    storage: Storage
    offset: int
    element: str
    """Triton's name of what it points to: `fp16`, `i64`."""

    def argument(self) -> Any:
        return typed(self.storage, self.offset)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor map over the memory of a tensor; `fields` are keywords of `TensorMap`."""

    storage: Storage
    fields: Mapping[str, Any]

    def argument(self) -> Any:
        return TensorMap(typed(self.storage), **self.fields)


def typed(storage: Storage, offset: int = 0) -> Any:
    """The memory from an offset on, with the type and, if it is all of it, the shape of the tensor: messages name
    elements.
    """
    memory, tensor = storage.bytes[offset:], storage.tensor
    name = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
    if name not in ELEMENTS or len(memory) % tensor.element_size():
        return memory
    elements = memory.view(ELEMENTS[name])
    whole = offset == 0 and tensor.is_contiguous() and tensor.numel() == len(elements)
    return elements.reshape(tuple(tensor.shape)) if whole else elements


Parameter = Scalar | Pointer | Descriptor


@dataclass(frozen=True, slots=True)
class Signature:
    """The kernel's own parameters as Triton describes them: types, nested where an argument is a tuple, and what is
    known of each descriptor, in order, if descriptors become tensor maps.
    """

    types: Mapping[str, Any]
    """By the names of the arguments."""
    descriptors: tuple[Mapping[str, Any], ...] | None
    release: Release

    def parameters(self, values: Sequence[Any], storages: Storages) -> list[tuple[str, Parameter]]:
        """The parameters of the PTX kernel for the values of a call, each with its name in messages.

        Constants at the end may be missing, where a program calls a compiled kernel: Triton's launcher skips them.
        """
        missing = list(self.types.values())[len(values) :]
        if len(values) > len(self.types) or any(kind != "constexpr" for kind in missing):
            names = ", ".join(self.types)
            what = f"{len(values)} arguments were given to a compiled kernel, which takes {len(self.types)}: {names}"
            raise Diag.BAD_LAUNCH.error(what=what)
        known = iter(self.descriptors) if self.descriptors else None
        return list(self._flat(self.types.items(), (*values, *missing), known, storages))

    def _flat(
        self, types: Iterable[tuple[str, Any]], values: Iterable[Any], known: Iterator[Mapping[str, Any]] | None,
        storages: Storages,
    ) -> Iterator[tuple[str, Parameter]]:  # fmt: skip
        for (name, kind), value in zip(types, values, strict=True):
            if isinstance(kind, tuple | list):
                named = ((f"{name}[{at}]", each) for at, each in enumerate(kind))
                yield from self._flat(named, value, known, storages)
            elif kind == "constexpr":
                continue
            elif _DESCRIPTOR.match(kind):
                label = labelled(name, storages.tensor_of(value.base))
                descriptor = self._descriptor(kind, value, None if known is None else next(known), storages)
                yield from ((label, each) for each in descriptor)
            elif kind.startswith("*"):
                label = labelled(name, storages.tensor_of(value))
                yield label, pointer(value, kind.removeprefix("*").removeprefix("k"), storages)
            elif kind == "nvTmaDesc":
                what = f"a descriptor of `triton.tools.experimental_descriptor` ({type(value).__name__})"
                raise Diag.NOT_MODELLED.error(what=f"{what}, which Triton 3.4 replaced by `TensorDescriptor`,")
            else:
                yield name, scalar(kind, value)

    def _descriptor(
        self, kind: str, value: Any, known: Mapping[str, Any] | None, storages: Storages
    ) -> Iterator[Parameter]:
        shape, strides = [int(each) for each in value.shape], [int(each) for each in value.strides]
        if known is None:
            yield pointer(value.base, kind.partition("<")[2].partition("[")[0], storages)
            yield from (Scalar("s64", each) for each in (*shape, *strides))
            flags = {"padding": value.padding == "nan" if "padding" in self.release.descriptor_flags else False}
            flags["round_f32_to_tf32"] = bool(getattr(value, "round_f32_to_tf32", False))
            yield from (Scalar("u8", int(flags[each])) for each in self.release.descriptor_flags)
        else:
            yield tensor_map(value, shape, strides, known, storages)
            if known["fp4_padded"] and self.release.fp4_shape_doubled:
                shape[-1] *= 2
        yield from (Scalar("s32", each) for each in shape)
        yield from (Scalar("s64", each) for each in strides)


def labelled(name: str, tensor: Any) -> str:
    """An argument in messages: its name, and the type and shape of its tensor."""
    if tensor is None:
        return name
    shape = ", ".join(str(int(each)) for each in tensor.shape)
    strides = "" if tensor.is_contiguous() else f" with strides {tuple(tensor.stride())}"
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')}[{shape}]{strides}"


def scalar(kind: str, value: Any) -> Scalar:
    """A number as a C launcher would pass it: integers wrap to their width."""
    if kind in _FLOATS:
        return Scalar(_FLOATS[kind], float(value))
    try:
        name = _INTEGERS[kind]
    except KeyError:
        raise Diag.NOT_MODELLED.error(what=f"a Triton argument of type `{kind}`") from None
    if kind in ("i1", "u1"):
        return Scalar(name, int(bool(value)))
    bits = int(name[1:])
    wrapped = int(value) & ((1 << bits) - 1)
    return Scalar(name, wrapped - (1 << bits) if name[0] == "s" and wrapped >> (bits - 1) else wrapped)


def pointer(value: Any, element: str, storages: Storages) -> Parameter:
    """The parameter for a tensor, for anything with `data_ptr()`, for an address or for None."""
    if value is None:
        return Scalar("u64", 0)
    if hasattr(value, "data_ptr"):
        tensor = storages.tensor_of(value)
        if tensor is None:
            return _address(int(value.data_ptr()), element, storages)
        storage = storages.of(tensor)
        if storage is None:
            return Scalar("u64", 0)
        return Pointer(storage, tensor.data_ptr() - storage.address, element)
    return _address(int(value), element, storages)


def _address(address: int, element: str, storages: Storages) -> Parameter:
    """A raw address: a pointer if it lies in a tensor that is known."""
    storage = storages.at(address)
    return Scalar("u64", address) if storage is None else Pointer(storage, address - storage.address, element)


def tensor_map(
    value: Any, shape: Sequence[int], strides: Sequence[int], known: Mapping[str, Any], storages: Storages
) -> Descriptor:
    """The tensor map of a host-side descriptor."""
    code, size = int(known["elem_type"]), int(known["elem_size"])
    name = _TF32 if getattr(value, "round_f32_to_tf32", False) else _MAP_TYPES[_ON_HOST.get(code, code)]
    extents = [*shape[:-1], shape[-1] * 2] if known["fp4_padded"] else list(shape)
    base = storages.tensor_of(value.base)
    storage = None if base is None else storages.of(base)
    if base is None or storage is None:
        raise Diag.BAD_LAUNCH.error(what="the base of a tensor descriptor has no memory on the host")
    fields = {
        "box": [int(each) for each in known["block_size"]],
        "swizzle": SWIZZLES[int(known["swizzle"])],
        "shape": extents,
        "strides": [each * size for each in strides],
        "dtype": name,
        "fill": "nan" if getattr(value, "padding", "zero") == "nan" else "zero",
        "offset": base.data_ptr() - storage.address,
    }
    if known.get("is_im2col"):
        fields["mode"] = "im2col"
        fields["lower_corner"] = [int(each) for each in value.pixel_box_lower_corner]
        fields["upper_corner"] = [int(each) for each in value.pixel_box_upper_corner]
        fields["element_strides"] = [int(each) for each in value.element_strides or (1,) * len(shape)]
    else:
        fields["beyond"] = True
    return Descriptor(storage, fields)
