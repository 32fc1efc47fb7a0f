"""Launches of CUDA programs recorded as launch files: PTX, arguments, memory before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from warploom.cuda.memory import Bytes, DeviceMemory
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.launch import Launch
from warploom.launch_file.writing import SUFFIX, text_of, writing

_MAP_ALIGNMENT = 64
Maps = Mapping[bytes, Mapping[str, Any]]
"""Keywords of tensor maps, by their bytes; a map begins with its address."""


@contextmanager
def recorded(launch: Launch, path: Path, memory: DeviceMemory, maps: Maps) -> Iterator[None]:
    """Write a launch file for a launch that runs in the block; it compares nothing if the launch ends in an error.

    The file has the allocations to which the arguments lead; addresses that lie in memory are not followed.
    """
    recording = _Recording(launch, path, memory, maps)
    with writing(path.parent):
        recording.write_inputs()
        recording.write({})
    yield
    with writing(path.parent):
        recording.write(recording.write_results())


class _Recording:
    """The files of one launch."""

    def __init__(self, launch: Launch, path: Path, memory: DeviceMemory, maps: Maps) -> None:
        self._launch, self._path, self._memory, self._maps = launch, path, memory, maps
        self._stem = path.name.removesuffix(SUFFIX)
        self._used: dict[int, Bytes] = {}
        self._arguments = [self._argument(raw) for raw in launch.args]
        self._before = {start: array.copy() for start, array in self._used.items()}

    def _name(self, start: int) -> str:
        return f"buffer{list(self._used).index(start)}"

    def _file(self, name: str) -> Path:
        return self._path.with_name(f"{self._stem}.{name}.bin")

    def write_inputs(self) -> None:
        self._path.with_name(f"{self._stem}.ptx").write_text(str(self._launch.program), "utf-8")
        for start, array in self._used.items():
            array.tofile(self._file(self._name(start)))

    def write_results(self) -> dict[str, int]:
        """Write the memory that the launch changed; the names of the expected buffers and their sizes."""
        expected = {}
        for start, array in self._used.items():
            if not np.array_equal(self._before[start], array):
                name = f"{self._name(start)}_after"
                array.tofile(self._file(name))
                expected[name] = len(array)
        return expected

    def write(self, expected: Mapping[str, int]) -> None:
        sizes = {self._name(start): len(array) for start, array in self._used.items()}
        buffers = {name: {**self._buffer(name, size), "output": True} for name, size in sizes.items()}
        document = {
            "ptx": f"{self._stem}.ptx",
            "entry": self._launch.entry,
            "grid": self._launch.grid,
            "block": self._launch.block,
            "cluster": self._launch.cluster,
            "shared_bytes": self._launch.shared_bytes,
            "buffers": buffers | {name: self._buffer(name, size) for name, size in expected.items()},
            "args": self._arguments,
            "compare": [{"expr": f"{name.removesuffix('_after')} == {name}"} for name in expected],
        }
        self._path.write_text(text_of(document), "utf-8")

    def _buffer(self, name: str, size: int) -> dict[str, Any]:
        return {"dtype": "uint8", "shape": [size], "init": {"file": self._file(name).name}}

    def _argument(self, raw: bytes) -> dict[str, Any]:
        """An argument with its addresses and tensor maps as references to buffers."""
        fields: list[dict[str, Any]] = []
        plain = at = 0
        while at < len(raw):
            found = self._reference(raw, at)
            if found is None:
                at += min(8 - at % 8, len(raw) - at)
                continue
            if plain < at:
                fields.append({"at": plain, "value": {"bytes": raw[plain:at].hex()}})
            size, value = found
            fields.append({"at": at, "value": value})
            plain = at = at + size
        if not fields:
            return {"bytes": raw.hex()}
        if len(fields) == 1 and plain == len(raw) and not fields[0]["at"]:
            only: dict[str, Any] = fields[0]["value"]
            return only
        if plain < len(raw):
            fields.append({"at": plain, "value": {"bytes": raw[plain:].hex()}})
        return {"struct": len(raw), "fields": fields}

    def _reference(self, raw: bytes, at: int) -> tuple[int, dict[str, Any]] | None:
        """The size and the argument of an address or of a tensor map at a byte of a structure."""
        if at % 8 or at + 8 > len(raw):
            return None
        word = int.from_bytes(raw[at : at + 8], "little")
        place = self._memory.at(word)
        if place is None:
            return None
        self._used[place[0]] = place[1]
        name, offset = self._name(place[0]), word - place[0]
        fields = self._maps.get(raw[at : at + MAP_BYTES]) if at % _MAP_ALIGNMENT == 0 else None
        if fields is not None:
            return MAP_BYTES, {"tensor_map": name, "offset": offset, **fields}
        return 8, {"pointer": name, "offset": offset}
