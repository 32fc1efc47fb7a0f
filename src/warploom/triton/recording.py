"""Launches recorded as launch files: PTX, arguments, memory before and after; `warploom run` replays them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from warploom.launch_file.writing import SUFFIX, recorded_path, text_of, writing
from warploom.triton.arguments import ELEMENTS, Descriptor, Parameter, Pointer, Scalar
from warploom.triton.driver import Call
from warploom.triton.storages import Storage

_DTYPES = {"bool", *ELEMENTS}
"""Element types that launch files have; the memory of others is recorded as bytes."""


@contextmanager
def recorded(call: Call, folder: str | Path, number: int) -> Iterator[None]:
    """Write a launch file for a call that runs in the block; it compares nothing if the call ends in an error."""
    path = path_of(call, folder, number)
    directory = path.parent
    recording = _Recording(call, directory, path.name.removesuffix(SUFFIX))
    with writing(directory):
        recording.write_inputs()
        recording.write({})
    yield
    with writing(directory):
        recording.write(recording.write_results())


def path_of(call: Call, folder: str | Path, number: int) -> Path:
    """The launch file of a call."""
    return recorded_path(folder, number, call.function.name)


class _Recording:
    """The files of one launch."""

    def __init__(self, call: Call, directory: Path, stem: str) -> None:
        self._call, self._directory, self._stem = call, directory, stem
        used = {id(each.storage.bytes): each.storage for each in call.parameters if not isinstance(each, Scalar)}
        used |= {id(each.bytes): each for each in call.storages.reached.values()}
        self._names = {key: f"buffer{number}" for number, key in enumerate(used)}
        self._storages = list(used.values())
        own = len(call.parameters) - call.scratch
        self._scratch = {id(each.storage.bytes) for each in call.parameters[own:] if not isinstance(each, Scalar)}
        self._before = [each.bytes.copy() for each in self._storages]

    def _name(self, storage: Storage) -> str:
        return self._names[id(storage.bytes)]

    def write_inputs(self) -> None:
        (self._directory / f"{self._stem}.ptx").write_text(self._call.function.ptx, "utf-8")
        for storage in self._storages:
            storage.bytes.tofile(self._directory / f"{self._stem}.{self._name(storage)}.bin")

    def write_results(self) -> dict[str, dict[str, Any]]:
        """Write the memory that the launch changed; a read-only buffer with the expected contents for each.

        Scratch memory is not compared: it may hold addresses, such as those in tensor maps made by the kernel.
        """
        expected = {}
        for storage, before in zip(self._storages, self._before, strict=True):
            if id(storage.bytes) not in self._scratch and not np.array_equal(before, storage.bytes):
                file = f"{self._stem}.{self._name(storage)}_after.bin"
                storage.bytes.tofile(self._directory / file)
                expected[f"{self._name(storage)}_after"] = {**_shape(storage), "init": {"file": file}}
        return expected

    def write(self, expected: Mapping[str, dict[str, Any]]) -> None:
        call = self._call
        buffers = {
            self._name(each): {
                **_shape(each), "output": True, "init": {"file": f"{self._stem}.{self._name(each)}.bin"},
            }
            for each in self._storages
        }  # fmt: skip
        document = {
            "ptx": f"{self._stem}.ptx",
            "entry": call.function.name,
            "grid": call.grid,
            "block": (call.threads, 1, 1),
            "cluster": call.cluster,
            "shared_bytes": call.function.shared_bytes,
            "buffers": buffers | dict(expected),
            "args": [self._argument(each) for each in call.parameters],
            "compare": [
                {"expr": f"{name.removesuffix('_after')} == {name}", "equal_nan": True} for name in expected
            ],
        }  # fmt: skip
        (self._directory / f"{self._stem}{SUFFIX}").write_text(text_of(document), "utf-8")

    def _argument(self, each: Parameter) -> dict[str, Any]:
        if isinstance(each, Descriptor):
            return {"tensor_map": self._name(each.storage), **each.fields}
        if isinstance(each, Scalar):
            return {each.kind: _number(each.value)}
        table = self._table(each)
        if table is not None:
            return {"pointers": table}
        return {"pointer": self._name(each.storage), "offset": each.offset}

    def _table(self, each: Pointer) -> list[dict[str, Any] | None] | None:
        """The elements of a tensor that holds addresses only; None for other memory."""
        if not self._call.storages.reached or each.element not in ("i64", "u64"):
            return None
        held = self._before[self._storages.index(each.storage)][each.offset :]
        elements: list[dict[str, Any] | None] = []
        for address in held[: len(held) // 8 * 8].view(np.uint64).tolist():
            storage = self._call.storages.at(address) if address else None
            if address and storage is None:
                return None
            place = storage and (self._name(storage), address - storage.address)
            elements.append({"pointer": place[0], "offset": place[1]} if place else None)
        return elements if any(elements) else None


def _shape(storage: Storage) -> dict[str, Any]:
    """Type and shape of a storage: those of its tensor where that is all of it, in C order, else a row."""
    tensor, size = storage.tensor, len(storage.bytes)
    name = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES or size % tensor.element_size():
        return {"dtype": "uint8", "shape": [size]}
    elements = size // tensor.element_size()
    whole = tensor.is_contiguous() and tensor.numel() == elements
    return {"dtype": name, "shape": list(tensor.shape) if whole else [elements]}


def _number(value: float) -> int | float | str:
    """A number in JSON, which has neither NaN nor infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
