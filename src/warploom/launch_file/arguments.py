"""The arguments of a launch file, converted to the values that `launch` takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from warploom.diagnostics import WarploomError
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.host.arrays import Pointers
from warploom.host.structs import Struct
from warploom.host.tensor_map import TensorMap
from warploom.launch_file.buffers import LARGEST_INTEGER, Array, Buffer, memory_of

Argument = dict[str, Any]


def violations(argument: Argument, buffers: Mapping[str, Buffer], invalid: Collection[str]) -> Iterator[str]:
    """Problems of an argument that the schema cannot express; those of its buffer have been reported already."""
    name = argument.get("tensor_map", argument.get("pointer"))
    if "struct" in argument:
        yield from _struct_violations(argument, buffers, invalid)
        return
    if name is not None and name not in buffers:
        if name not in invalid:
            yield f"there is no buffer `{name}`; the file has {', '.join(buffers) or 'none'}"
    elif "tensor_map" in argument:
        try:
            _tensor_map(argument, buffers[argument["tensor_map"]].blank())
        except WarploomError as error:
            yield from error.notes
    elif "pointers" in argument:
        for number, each in enumerate(map(_pointer, argument["pointers"])):
            for problem in violations(each, buffers, invalid) if each else ():
                yield f"element {number}: {problem}"
    elif "pointer" in argument:
        buffer, offset = buffers[argument["pointer"]], int(argument.get("offset", 0))
        if offset and offset >= buffer.span_bytes:
            yield f"starts at byte {offset} of `{buffer.name}`, which has {buffer.span_bytes}"
    elif "bytes" not in argument:
        yield from _scalar_violations(*next(iter(argument.items())))


def _struct_violations(argument: Argument, buffers: Mapping[str, Buffer], invalid: Collection[str]) -> Iterator[str]:
    """Problems of the fields, and if there are none, of the places that they have."""
    problems = [
        f"fields[{number}]: {problem}"
        for number, field in enumerate(argument["fields"])
        for problem in violations(field["value"], buffers, invalid)
    ]
    starts = Counter(int(field["at"]) for field in argument["fields"])
    problems += [f"{count} fields begin at byte {at}" for at, count in starts.items() if count > 1]
    if not problems and not invalid:
        try:
            build(argument, {name: buffer.blank() for name, buffer in buffers.items()})
        except WarploomError as error:
            problems += error.notes
    yield from problems


def _scalar_violations(name: str, value: str | float) -> Iterator[str]:
    kind = ELEMENT_TYPES[name]
    if not kind.is_float:
        if not kind.low <= _integer(value) <= kind.high:
            yield f"{value} is not a value of .{name} ({kind.low} to {kind.high})"
    elif isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
        yield f"{value} is too large to be written as an integer"


def build(argument: Argument, buffers: Mapping[str, Array]) -> object:
    """The value to launch with; arrays and tensor maps share memory with their buffers."""
    if "tensor_map" in argument:
        return _tensor_map(argument, buffers[argument["tensor_map"]])
    if "pointers" in argument:
        return Pointers(build(each, buffers) if each else None for each in map(_pointer, argument["pointers"]))
    if "pointer" in argument:
        array, offset = buffers[argument["pointer"]], int(argument.get("offset", 0))
        return memory_of(array).view(np.uint8)[offset:] if offset else array
    if "struct" in argument:
        fields = {int(field["at"]): build(field["value"], buffers) for field in argument["fields"]}
        return Struct(int(argument["struct"]), fields)
    if "bytes" in argument:
        return bytes.fromhex(argument["bytes"])
    name, value = next(iter(argument.items()))
    kind = ELEMENT_TYPES[name]
    with np.errstate(over="ignore"):  # a number beyond the type's range is its infinity
        return kind.values.type(float(value) if kind.is_float else _integer(value))


def _pointer(element: str | Argument | None) -> Argument:
    """An element of `pointers` as an argument of its own; None for null."""
    return {"pointer": element} if isinstance(element, str) else element or {}


def _integer(value: str | float) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)


def _tensor_map(argument: Argument, array: Array) -> TensorMap:
    """A tensor map: every key except the buffer's name is a keyword of `TensorMap` of the same name."""
    return TensorMap(array, **{key: value for key, value in argument.items() if key != "tensor_map"})
