"""tcgen05 instruction descriptors: 32 bits with the types, shape and options of an MMA (PTX ISA Tables 42-44)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from warploom.diagnostics import Diag
from warploom.hardware.bitfields import BitField, broken_constants, pack, text, unpack
from warploom.hardware.mma_shapes import (
    TENSOR_KINDS,
    TRANSPOSED_BYTE_N,
    WEIGHT_STATIONARY_M,
    WEIGHT_STATIONARY_N,
    TensorKind,
)
from warploom.hardware.tmem import SCALE_CHUNK_FACTORS

_OPERANDS = (
    BitField("negate_a", 13, 1),
    BitField("negate_b", 14, 1),
    BitField("transpose_a", 15, 1),
    BitField("transpose_b", 16, 1),
    BitField("n", 17, 6),
)
_PLAIN = (
    BitField("sparsity_selector", 0, 2),
    BitField("sparse", 2, 1),
    BitField("saturate", 3, 1),
    BitField("d_type", 4, 2),
    BitField("reserved", 6, 1, 0),
    BitField("a_type", 7, 3),
    BitField("b_type", 10, 3),
    *_OPERANDS,
    BitField("reserved", 23, 1, 0),
    BitField("m", 24, 5),
    BitField("reserved", 29, 1, 0),
    BitField("max_shift", 30, 2),
)
_SCALED_HEAD = (
    BitField("reserved", 0, 2, 0),
    BitField("sparse", 2, 1),
    BitField("reserved", 3, 1, 0),
    BitField("scale_b_id", 4, 2),
    BitField("reserved", 6, 1, 0),
    BitField("a_type", 7, 3),
)
_SCALED_TAIL = (
    *_OPERANDS,
    BitField("scale_type", 23, 1),
    BitField("reserved", 24, 3, 0),
    BitField("m", 27, 2),
    BitField("scale_a_id", 29, 2),
)
_MX8 = (*_SCALED_HEAD, BitField("b_type", 10, 3), *_SCALED_TAIL, BitField("reserved", 31, 1, 0))
_MX4 = (
    *_SCALED_HEAD,
    BitField("b_type", 10, 2),
    BitField("reserved", 12, 1, 0),
    *_SCALED_TAIL,
    BitField("k96", 31, 1),
)
LAYOUT: dict[str, tuple[BitField, ...]] = {
    **dict.fromkeys(("f16", "tf32", "f8f6f4", "i8"), _PLAIN),
    "mxf8f6f4": _MX8,
    "mxf4": _MX4,
    "mxf4nvf4": _MX4,
}
"""The fields of each kind's descriptor, from bit 0 up."""

_M_UNIT = {"plain": 16, "scaled": 128}
_N_UNIT = 8


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """A decoded instruction descriptor."""

    kind: TensorKind
    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str
    negate_a: bool
    negate_b: bool
    transpose_a: bool
    transpose_b: bool
    saturate: bool
    scale_type: str | None
    scale_a_id: int
    scale_b_id: int
    value: int

    @property
    def k(self) -> int:
        return self.kind.k

    @property
    def a_element(self) -> str:
        """A's type in the packing that this kind has in shared memory: a name of `machine.elements.ELEMENTS`."""
        return self.kind.stored(self.a_type)

    @property
    def b_element(self) -> str:
        """B's type in the packing that this kind has in shared memory."""
        return self.kind.stored(self.b_type)

    @property
    def fields(self) -> str:
        """Every field as the bits hold it."""
        return text(LAYOUT[self.kind.name], self.value)


def encode_instruction_descriptor(
    kind: str,
    m: int,
    n: int,
    a_type: str,
    b_type: str,
    d_type: str = "f32",
    *,
    negate_a: bool = False,
    negate_b: bool = False,
    transpose_a: bool = False,
    transpose_b: bool = False,
    saturate: bool = False,
    scale_type: str = "ue8m0",
    scale_a_id: int = 0,
    scale_b_id: int = 0,
) -> int:
    """Encode the descriptor of an MMA; a value too large for its field is a ValueError, other illegal values are
    reported by decoding.
    """
    row = TENSOR_KINDS[kind]
    unit = _M_UNIT["scaled" if row.scales else "plain"]
    if m % unit or n % _N_UNIT:
        raise ValueError(f"M = {m} is not a multiple of {unit}, or N = {n} not one of {_N_UNIT}")
    contents = {
        "a_type": row.codes[a_type],
        "b_type": row.codes[b_type],
        "negate_a": negate_a,
        "negate_b": negate_b,
        "transpose_a": transpose_a,
        "transpose_b": transpose_b,
        "m": m // unit,
        "n": n // _N_UNIT,
        "sparse": 0,
        "sparsity_selector": 0,
        "max_shift": 0,
        "k96": 0,
    }
    if row.scales:
        contents |= {"scale_type": row.scales[scale_type], "scale_a_id": scale_a_id, "scale_b_id": scale_b_id}
    else:
        contents |= {"d_type": row.d_codes[d_type], "saturate": saturate}
    return pack(LAYOUT[kind], contents)


def _shape_violations(
    row: TensorKind, got: dict[str, int], m: int, n: int, b_bits: int, group: int, ws: bool
) -> list[str]:
    broken = []
    legal_m = WEIGHT_STATIONARY_M if ws else row.m[group]
    legal_n = WEIGHT_STATIONARY_N if ws else row.n[group]
    where = f"cta_group::{group}{' with .ws' if ws else ''}"
    if ws and (group != 1 or row.scales):
        broken.append("`.ws` exists for cta_group::1 and the kinds without block scaling only")
    if m not in legal_m:
        broken.append(f"M is {m}; kind::{row.name} with {where} has {', '.join(map(str, legal_m))}")
    if n not in legal_n:
        broken.append(f"N is {n}; kind::{row.name} with {where} has {_steps(legal_n)}")
    elif got["transpose_b"] and row.transpose and b_bits == 8 and n not in TRANSPOSED_BYTE_N[group]:
        broken.append(f"N is {n}; an N-major 8-bit B with {where} has {_steps(TRANSPOSED_BYTE_N[group])}")
    return broken


def _steps(sizes: tuple[int, ...]) -> str:
    """A list of sizes as text, long ones as a range with a step."""
    step = sizes[-1] - sizes[-2]
    if len(sizes) < 4 or sizes[1] - sizes[0] == step == sizes[-1] // len(sizes):
        return f"{sizes[0]}..{sizes[-1]} in steps of {step}" if len(sizes) >= 4 else ", ".join(map(str, sizes))
    return ", ".join(map(str, sizes))


def _option_violations(
    row: TensorKind, got: dict[str, int], types: tuple[str | None, str | None, str | None]
) -> list[str]:
    a_type, b_type, d_type = types
    broken = []
    for name, code, found, legal in (
        ("a_type", got["a_type"], a_type, row.codes),
        ("b_type", got["b_type"], b_type, row.codes),
        ("d_type", got.get("d_type", 0), d_type, row.d_codes),
    ):
        if found is None:
            broken.append(
                f"{name} is {code}; kind::{row.name} has " + ", ".join(f"{v} = {k}" for k, v in legal.items())
            )
    if row.name == "f16" and d_type == "f16" and "bf16" in (a_type, b_type):
        broken.append("d_type f16 needs f16 operands, not bf16")
    if got["sparse"] or got.get("sparsity_selector"):
        broken.append("sparse or sparsity_selector is set; a dense tcgen05.mma has 0")
    if got.get("saturate") and row.name != "i8":
        broken.append("saturate is for kind::i8 only")
    if (got["negate_a"] or got["negate_b"]) and not row.negate:
        broken.append(f"kind::{row.name} cannot negate")
    if (got["transpose_a"] or got["transpose_b"]) and not row.transpose:
        broken.append(f"kind::{row.name} cannot transpose")
    if got.get("k96"):
        broken.append("K = 96 (bit 31) exists on sm_103a only, and is not modelled")
    return broken


def _scale_violations(row: TensorKind, got: dict[str, int], scale_type: str | None, vectors: int | None) -> list[str]:
    if not row.scales or row.scale_vectors is None:
        return []
    if scale_type is None:
        return [
            f"scale_type is {got['scale_type']}; kind::{row.name} has "
            + ", ".join(f"{v} = {k}" for k, v in row.scales.items())
        ]
    broken = []
    legal = row.scale_vectors[scale_type]
    if vectors is not None and vectors not in legal:
        broken.append(
            f"{scale_type} scales of kind::{row.name} come {' or '.join(map(str, legal))} to a row, not {vectors}"
        )
    width = vectors if vectors is not None else min(legal)
    broken += [
        f"{name} is {got[name]}; {width} scale factors to a row need {_ids(width)}"
        for name in ("scale_a_id", "scale_b_id")
        if got[name] % width or got[name] + width > SCALE_CHUNK_FACTORS
    ]
    return broken


def _ids(width: int) -> str:
    return " or ".join(str(i) for i in range(0, SCALE_CHUNK_FACTORS, width))


@lru_cache(maxsize=1 << 10)
def decode_instruction_descriptor(
    value: int, kind: str, cta_group: int, *, weight_stationary: bool = False, scale_vectors: int | None = None
) -> InstructionDescriptor:
    """The fields of an instruction descriptor, or `BAD_DESCRIPTOR` with every rule it breaks.

    `scale_vectors` is the number of scale factors per row (1, 2 or 4, from `.scale_vec::NX` or `.block16/.block32`);
    with None that rule is not checked.
    """
    row, fields = TENSOR_KINDS[kind], LAYOUT[kind]
    got = unpack(fields, value)
    types = {code: name for name, code in row.codes.items()}
    a_type, b_type = types.get(got["a_type"]), types.get(got["b_type"])
    d_type = {code: name for name, code in row.d_codes.items()}.get(got["d_type"]) if row.d_codes else "f32"
    scale_type = {code: name for name, code in row.scales.items()}.get(got["scale_type"]) if row.scales else None
    m = got["m"] * _M_UNIT["scaled" if row.scales else "plain"]
    n = got["n"] * _N_UNIT
    broken = [
        *broken_constants(fields, value),
        *_shape_violations(row, got, m, n, row.element_bits, cta_group, weight_stationary),
        *_option_violations(row, got, (a_type, b_type, d_type)),
        *_scale_violations(row, got, scale_type, scale_vectors),
    ]
    if broken or a_type is None or b_type is None or d_type is None:
        raise Diag.BAD_DESCRIPTOR.error(
            kind=f"tcgen05 kind::{kind} instruction", value=value, what="; ".join(broken), fields=text(fields, value)
        )
    return InstructionDescriptor(
        kind=row,
        m=m,
        n=n,
        a_type=a_type,
        b_type=b_type,
        d_type=d_type,
        negate_a=bool(got["negate_a"]),
        negate_b=bool(got["negate_b"]),
        transpose_a=bool(got["transpose_a"]),
        transpose_b=bool(got["transpose_b"]),
        saturate=bool(got.get("saturate", 0)),
        scale_type=scale_type,
        scale_a_id=got.get("scale_a_id", 0),
        scale_b_id=got.get("scale_b_id", 0),
        value=value,
    )
