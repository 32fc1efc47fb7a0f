"""Registers as rows: what a tensor-core instruction reads and writes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class RowNames(NamedTuple):
    """The registers of a brace list without their contents, the same for every group."""

    file: str
    indices: tuple[int, ...]
    adjacent: bool

    @property
    def selector(self) -> slice | list[int]:
        """The registers as something that indexes the rows of their file."""
        return slice(self.indices[0], self.indices[-1] + 1) if self.adjacent else list(self.indices)


class Rows:
    """The registers of a brace list for the lanes of a group: one slice of the register file where it can be."""

    __slots__ = ("block", "file", "indices", "parts")

    def __init__(
        self, block: Array | None, parts: tuple[Array, ...] | None, file: str, indices: tuple[int, ...]
    ) -> None:
        self.block, self.parts, self.file, self.indices = block, parts, file, indices

    @property
    def names(self) -> RowNames:
        """The names alone, which outlive the group."""
        return RowNames(self.file, self.indices, self.block is not None)

    def __len__(self) -> int:
        return len(self.block) if self.block is not None else len(self.parts or ())

    def read(self) -> Array:
        """All registers as one (register, lane) array; a view where they are adjacent."""
        return self.block if self.block is not None else np.stack(self.parts or ())

    def write(self, values: Array, mask: Array | None = None) -> None:
        """Set all registers from a (register, lane) array."""
        if self.block is not None:
            np.copyto(self.block, values, where=True if mask is None else mask)
        else:
            for part, value in zip(self.parts or (), values, strict=True):
                np.copyto(part, value, where=True if mask is None else mask)


def as_rows(values: Any) -> Array:
    """The values that an instruction returned for a brace list, as rows: integers that all lanes share become
    columns of one.
    """
    if isinstance(values, np.ndarray):
        return values
    if all(isinstance(value, int) for value in values):
        return np.array(values, np.uint64)[:, None]
    return np.array(np.broadcast_arrays(*values))
