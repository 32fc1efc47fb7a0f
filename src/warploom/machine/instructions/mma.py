"""`mma.sync`: a warp multiplies small matrices that lie in its registers; the warps of a convoy do so at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.fragments import Fragment, mma_a, mma_b, mma_c, mma_c_packed
from warploom.hardware.mma_shapes import WARP_D_TYPES, WARP_MIXES, WARP_SHAPES, WarpShape
from warploom.machine.core.participation import whole_warps
from warploom.machine.core.registry import Run, executes
from warploom.machine.numerics.products import products
from warploom.machine.semantics.functions import array_function
from warploom.machine.tensor.elements import ELEMENTS, settle
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Vector

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]

_LIMITS = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class Moves:
    """The mapping of registers [register, warp, lane] to matrices [warp, row, column] of whole registers, and back."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    matrix: tuple[int, int]
    back_split: tuple[int, ...]
    back_order: tuple[int, ...]
    registers: int

    @classmethod
    def of(cls, fragment: Fragment) -> Moves:
        """The recipe of a fragment with an axis for the warps before that of the lanes."""
        held, spelled = fragment.registers + "W" + fragment.lanes, "W" + fragment.rows + fragment.columns
        sizes = dict(fragment.sizes) | {"W": -1}
        return cls(
            tuple(sizes[letter] for letter in held),
            tuple(held.index(letter) for letter in spelled),
            fragment.matrix_shape,
            tuple(sizes[letter] for letter in spelled),
            tuple(spelled.index(letter) for letter in held),
            fragment.register_shape[0],
        )

    def matrices(self, registers: Array) -> Array:
        """One matrix per warp: a copy."""
        return registers.reshape(self.split).transpose(self.order).reshape(-1, *self.matrix)

    def lists(self, matrices: Array) -> Array:
        """The registers [register, lane] that hold one matrix per warp: a copy."""
        return matrices.reshape(self.back_split).transpose(self.back_order).reshape(self.registers, -1)


@executes("mma.sync")
def multiply(op: Op) -> Run:
    """D = A·B + C."""
    shape = _read(op)
    d_type, wide = op["d_type"], shape.bits == ELEMENT_TYPES["f64"].bits
    word = np.dtype(np.uint64 if wide else np.uint32)
    a_moves, b_moves = Moves.of(mma_a(shape.m, shape.a_registers)), Moves.of(mma_b(shape.b_registers))
    c_moves = Moves.of(mma_c_packed(shape.m) if d_type == "f16" else mma_c(shape.m))
    check_counts(op, {"a": a_moves.registers, "b": b_moves.registers, "c": c_moves.registers, "d": c_moves.registers})
    a_decode, b_decode, combine = decoder(op["a_type"]), decoder(op["b_type"]), combined(op)
    saturate = bool(op["satfinite"])
    c_values = ELEMENT_TYPES[d_type].values

    def run(g: Group, mask: Array | None, a: tuple[Any, ...], b: tuple[Any, ...], c: tuple[Any, ...]) -> Array:
        whole_warps(g, mask, op)
        left = a_decode(a_moves.matrices(gathered(a, g.lanes, word)))
        right = b_decode(b_moves.matrices(gathered(b, g.lanes, word)))
        start = c_moves.matrices(gathered(c, g.lanes, word)).view(c_values)
        return c_moves.lists(combine(left, right, start, saturate).view(word))

    return run


def gathered(values: tuple[Any, ...], lanes: int, word: np.dtype[Any]) -> Array:
    """Registers as one (register, lane) array."""
    out = np.empty((len(values), lanes), word)
    for row, value in zip(out, values, strict=True):
        row[...] = value
    return out


def decoder(element: str) -> Any:
    """Registers to the numbers that are multiplied: float64 for f64, else float32, which holds them exactly."""
    if element == "f64":
        return lambda words: words.view(np.float64)
    decode = ELEMENTS[element].decode
    if element in ELEMENT_TYPES and ELEMENT_TYPES[element].is_float:
        return decode
    return lambda words: decode(words).astype(np.float32)


def _floats(product: Array, c: Array, saturate: bool) -> Array:
    product += c
    settle(product)
    return product


def _halves(product: Array, c: Array, saturate: bool) -> Array:
    product += c
    rounded: Array = product.astype(np.float16)
    settle(rounded)
    return rounded


def _integers(product: Array, c: Array, saturate: bool) -> Array:
    """Products are exact: at most 32 terms below 2^16, or more that are smaller."""
    if saturate:
        wide: Array = np.clip(product.astype(np.int64) + c, _LIMITS.min, _LIMITS.max)
        return wide.astype(np.int32)
    total: Array = product.astype(np.int32)
    total += c
    return total


def _differences(a: Array, b: Array, c: Array, saturate: bool) -> Array:
    """The number of bits that differ: those set in either, minus those set in both."""
    ones = products(a, np.ones_like(b), "b1", "b1") + products(np.ones_like(a), b, "b1", "b1")
    total: Array = (ones - 2 * products(a, b, "b1", "b1")).astype(np.int32)
    total += c
    return total


def _doubles(a: Array, b: Array, c: Array, saturate: bool) -> Array:
    """One fused multiply-add after the other, from the first k on: an H200 does so, bit for bit."""
    fma = array_function("fma", {"type": "f64", "rnd": "rn"}, ("f64",) * 3)
    total = c.reshape(-1).view(np.uint64)
    for k in range(a.shape[2]):
        left, right = (
            np.broadcast_to(x, c.shape).reshape(-1).view(np.uint64) for x in (a[:, :, k, None], b[:, None, :, k])
        )
        total = fma(left, right, total)
    return total.view(np.float64).reshape(c.shape)


_ADD = {"f16": _halves, "f32": _floats, "s32": _integers}


def combined(op: Op) -> Callable[[Array, Array, Array, bool], Array]:
    """The function by which an instruction computes D from A, B and C."""
    if op["bits"] == "xor":
        return _differences
    if op["d_type"] == "f64":
        return _doubles
    add, a_type, b_type = _ADD[op["d_type"]], op["a_type"] or "f16", op["b_type"] or "f16"
    return lambda a, b, c, saturate: add(products(a, b, a_type, b_type), c, saturate)


def _read(op: Op) -> WarpShape:
    """The shape of an instruction, if it exists with its types."""
    a_type, b_type, c_type, d_type = op["a_type"], op["b_type"], op["c_type"], op["d_type"]
    wrong: list[str] = []
    if a_type != b_type and not any({a_type, b_type} <= mixed for mixed in WARP_MIXES):
        wrong.append(f"A of .{a_type} does not go with B of .{b_type}")
    if d_type not in WARP_D_TYPES[a_type]:
        wrong.append(
            f"A of .{a_type} goes with D of {' or '.join('.' + name for name in WARP_D_TYPES[a_type])}, not .{d_type}"
        )
    if c_type != d_type:
        wrong.append(f"C is .{c_type} and D is .{d_type}; they must be the same")
    fitting = [row for row in WARP_SHAPES if a_type in row.types]
    found = [row for row in fitting if f"m{row.m}n{row.n}k{row.k}" == op["shape"]]
    if not found:
        wrong.append(f".{a_type} has the shapes {', '.join(f'm{row.m}n{row.n}k{row.k}' for row in fitting)}")
    if wrong:
        raise Diag.BAD_SHAPE.error(_where(op), text=op.instruction.opcode, what="; ".join(wrong))
    return found[0]


def check_counts(op: Op, counts: dict[str, int]) -> None:
    wrong = []
    for name, count in counts.items():
        operand = op.operands[name]
        given = len(operand.items) if isinstance(operand, Vector) else 0
        if given != count:
            wrong.append(f"{name} has {given} registers and must have {count}")
    if wrong:
        raise Diag.BAD_OPERANDS.error(
            _where(op), text=op.instruction.text[:200], what="; ".join(wrong), takes=op.form.takes
        )


def _where(op: Op) -> Loc:
    return op.instruction.loc or Loc("<ptx>", op.instruction.line)
