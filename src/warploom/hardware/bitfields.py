"""Bit fields of a descriptor: one table drives encoding, decoding and the text that an error prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BitField:
    """A run of bits. `fixed` is the only legal value of a field that carries no information."""

    name: str
    low: int
    width: int
    fixed: int | None = None

    def get(self, value: int) -> int:
        return (value >> self.low) & ((1 << self.width) - 1)

    def put(self, content: int) -> int:
        if not 0 <= content < 1 << self.width:
            raise ValueError(f"{self.name} = {content} does not fit in {self.width} bits")
        return content << self.low

    @property
    def bits(self) -> str:
        return f"bit {self.low}" if self.width == 1 else f"bits {self.low}-{self.low + self.width - 1}"


def pack(table: Iterable[BitField], contents: Mapping[str, int]) -> int:
    """The value whose fields hold `contents`; fixed fields fill themselves."""
    return sum(f.put(contents[f.name] if f.fixed is None else f.fixed) for f in table)


def unpack(table: Iterable[BitField], value: int) -> dict[str, int]:
    """Every field of a value that carries information."""
    return {f.name: f.get(value) for f in table if f.fixed is None}


def text(table: Iterable[BitField], value: int) -> str:
    """All fields of a value as text, for an error message."""
    return ", ".join(f"{f.name} {f.get(value):#x} ({f.bits})" for f in table)


def broken_constants(table: Iterable[BitField], value: int) -> list[str]:
    """One sentence for each fixed field that holds something else."""
    return [
        f"{f.name} ({f.bits}) is {f.get(value):#x} and must be {f.fixed:#x}"
        for f in table
        if f.fixed is not None and f.get(value) != f.fixed
    ]
