"""Shared-memory matrix descriptors: 64 bits with the address and layout of a tensor-core operand.

Sources: PTX ISA 9.7.15.5.1.2.2 (wgmma) and Table 40 (tcgen05); the bits between the listed fields are zero in every
descriptor that CUTLASS, Triton and CuTe DSL build, so a set bit there is an error. CUTLASS calls bits 46-47 of the
sm_100 form `version` (1); PTX specifies bits 46-48 as 0b001: the same bits. Triton 3.3 to 3.5 leave them 0, as in
Hopper's form, and these releases multiply on Blackwell GPUs; so hardware takes 0 as well. Only descriptors without a
base offset are known to work so: that is what is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from warploom.diagnostics import Diag
from warploom.hardware.bitfields import BitField, broken_constants, pack, text, unpack
from warploom.hardware.swizzles import SWIZZLES, Swizzle

_COMMON = (
    BitField("start", 0, 14),
    BitField("reserved", 14, 2, 0),
    BitField("leading", 16, 14),
    BitField("reserved", 30, 2, 0),
    BitField("stride", 32, 14),
)
LAYOUT: dict[str, tuple[BitField, ...]] = {
    "sm_90": (
        *_COMMON,
        BitField("reserved", 46, 3, 0),
        BitField("base_offset", 49, 3),
        BitField("reserved", 52, 10, 0),
        BitField("swizzle", 62, 2),
    ),
    "sm_100": (
        *_COMMON,
        BitField("version", 46, 3),
        BitField("base_offset", 49, 3),
        BitField("leading_absolute", 52, 1),
        BitField("reserved", 53, 8, 0),
        BitField("swizzle", 61, 3),
    ),
}
"""The fields of each family's descriptor, from bit 0 up."""

SWIZZLE_CODES: dict[str, dict[int, Swizzle]] = {
    "sm_90": {s.sm90_code: s for s in SWIZZLES.values() if s.sm90_code is not None},
    "sm_100": {s.sm100_code: s for s in SWIZZLES.values() if s.sm100_code is not None},
}

VERSION = 0b001
"""Bits 46-48 of the sm_100 form as the PTX ISA specifies them."""
OLD_VERSION = 0
"""Hopper's form, which Triton 3.3 to 3.5 write for Blackwell."""
_UNIT = 16
_ADDRESS_MASK = 0x3FFFF


@dataclass(frozen=True, slots=True)
class SharedDescriptor:
    """A decoded descriptor; addresses and offsets in bytes."""

    start: int
    leading: int
    stride: int
    swizzle: Swizzle
    base_offset: int
    family: str
    value: int

    @property
    def fields(self) -> str:
        """Every field as the bits hold it."""
        return text(LAYOUT[self.family], self.value)


def encode_shared_descriptor(
    family: str, start: int, leading: int, stride: int, swizzle: str = "none", base_offset: int = 0
) -> int:
    """The descriptor of an operand; `start`, `leading` and `stride` are bytes, multiples of 16."""
    mode = SWIZZLES[swizzle]
    code = mode.sm90_code if family == "sm_90" else mode.sm100_code
    if code is None or any(x % _UNIT or x & ~_ADDRESS_MASK for x in (start, leading, stride)):
        raise ValueError(
            f"no {family} descriptor has start {start}, leading {leading}, stride {stride}, swizzle {swizzle}"
        )
    contents = {
        "start": start // _UNIT,
        "leading": leading // _UNIT,
        "stride": stride // _UNIT,
        "version": VERSION,
        "base_offset": base_offset,
        "leading_absolute": 0,
        "swizzle": code,
    }
    return pack(LAYOUT[family], contents)


def _violations(value: int, family: str) -> list[str]:
    fields = LAYOUT[family]
    got = unpack(fields, value)
    broken = broken_constants(fields, value)
    codes = SWIZZLE_CODES[family]
    if got["swizzle"] not in codes:
        legal = ", ".join(f"{code} = {mode.name}" for code, mode in sorted(codes.items()))
        broken.append(f"swizzle is {got['swizzle']} and must be one of {legal}")
    version = got.get("version", VERSION)
    if version != VERSION and (version != OLD_VERSION or got["base_offset"]):
        exception = f" (or {OLD_VERSION:#x} without a base offset)" if version == OLD_VERSION else ""
        broken.append(f"version (bits 46-48) is {version:#x} and must be {VERSION:#x}{exception}")
    if got.get("leading_absolute"):
        broken.append("leading_absolute (bit 52) exists on sm_103a only, and is not modelled")
    return broken


@lru_cache(maxsize=1 << 14)
def decode_shared_descriptor(value: int, family: str) -> SharedDescriptor:
    """The fields of a descriptor, or `BAD_DESCRIPTOR` with every rule it breaks."""
    fields = LAYOUT[family]
    broken = _violations(value, family)
    if broken:
        raise Diag.BAD_DESCRIPTOR.error(
            kind=f"{family} shared-memory matrix", value=value, what="; ".join(broken), fields=text(fields, value)
        )
    got = unpack(fields, value)
    return SharedDescriptor(
        start=got["start"] * _UNIT,
        leading=got["leading"] * _UNIT,
        stride=got["stride"] * _UNIT,
        swizzle=SWIZZLE_CODES[family][got["swizzle"]],
        base_offset=got["base_offset"],
        family=family,
        value=value,
    )
