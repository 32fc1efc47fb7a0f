"""Arrays as planning sees them: descriptors, the checks every operation makes, overlap, and padded copies.

Planning reads shape, strides, dtype and address of an array, never its elements. NumPy arrays say so themselves; an
array of a GPU is planned by an `ArrayDescriptor`, which has the same attributes and no memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

import ml_dtypes
import numpy as np

from warploom.diagnostics import Diag
from warploom.hardware.tensor_maps import STRIDE_ALIGNMENT
from warploom.host.arrays import HOST, bounds_of, buffer_of, is_array, may_share, start_of
from warploom.structured.config.fields import OUTPUT_TYPES
from warploom.trace.language.types import OF_NUMPY

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

GEMM_TYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2")
"""The operand types of a GEMM; float32 is rounded to tf32."""
FP8_TYPES = ("float8_e4m3fn", "float8_e5m2")
RESULT_TYPES = tuple(name for name, type_ in OF_NUMPY.items() if type_ in OUTPUT_TYPES)
ANY_RANK = range(65)
_ELEMENTS = {"float32": "tf32"}
_RESULTS: dict[str, str] = dict.fromkeys((*FP8_TYPES, "float4_e2m1fn", "uint8"), "bfloat16")
"""Result types by the type of A, where they differ; a byte is two 4-bit elements."""
_OVERFLOW = 2.0**128 - 2.0**103
"""The smallest number that float32 rounds to infinity."""
OUT_OF_RANGE = "must be in the range of float32, the type it is computed in"
OVERLAPPING_STRIDES = "has overlapping strides (as `expand` and `broadcast_to` make them) and cannot be written"


class Violations:
    """The invalid arguments of one call, collected: one error reports them all, before anything is run or written."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._notes: dict[str, list[str]] = {}

    def add(self, argument: str, value: Any, rule: str) -> None:
        """Report an argument: the rule it breaks, as a verb phrase, and its value."""
        self._notes.setdefault(argument, []).append(f"`{argument}` {rule}, got {described(value)}")

    def __len__(self) -> int:
        return sum(map(len, self._notes.values()))

    @property
    def notes(self) -> list[str]:
        """The violations, argument by argument."""
        return [note for each in self._notes.values() for note in each]

    def check(self) -> None:
        """Raise one error with all violations, if there are any."""
        if self._notes:
            notes, names = self.notes, ", ".join(f"`{name}`" for name in self._notes)
            raise Diag.BAD_ARGUMENTS.error(notes=notes, function=self._function, count=len(notes), what=names)


def described(value: Any) -> str:
    """An argument in a few words: an array by dtype, shape, strides unless contiguous, and device unless the host."""
    if getattr(value, "is_nested", False):
        return f"{value.dtype} nested"  # a nested tensor refuses to tell its shape
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple) and not isinstance(value, np.generic):
        return f"{dtype} {tuple(shape)}{_strides_text(value)}{_device_text(value)}"
    if isinstance(value, type):
        return value.__name__
    if type(value).__name__ == "dtype":  # PyTorch's
        return str(value)
    return f"{value!r:.40}" if isinstance(value, int | float | str | tuple | None) else f"a {type(value).__name__}"


def _strides_text(value: Any) -> str:
    """The strides of an array that is not contiguous, in the units of its own library."""
    if isinstance(value, np.ndarray):
        return "" if value.flags.c_contiguous else f", strides {value.strides}"
    if hasattr(value, "is_contiguous") and str(value.layout) == "torch.strided":
        return "" if value.is_contiguous() else f", strides {tuple(value.stride())}"
    return ""


def _device_text(value: Any) -> str:
    device = str(getattr(value, "device", HOST))
    return "" if device == HOST else f" on {device}"


@dataclass(frozen=True, eq=False, slots=True)
class ArrayDescriptor:
    """An array of a GPU: shape, strides in bytes, dtype, address and device, with the views that planning takes.

    `base` is the descriptor of the caller's array, of which this is a view; None for that one itself, and for a copy
    that must be made before the launch.
    """

    name: str
    shape: Shape
    strides: Shape
    dtype: np.dtype[Any]
    address: int
    device: str
    base: ArrayDescriptor | None = None
    is_transposed: bool = False
    """True if the last two axes are exchanged against the caller's."""
    is_copy: bool = False

    @staticmethod
    def of(name: str, array: Any) -> ArrayDescriptor:
        """Describe an array of any library; its elements are not read."""
        buffer = buffer_of(array)
        try:
            dtype = np.dtype(getattr(ml_dtypes, buffer.dtype, buffer.dtype))
        except TypeError:
            raise Diag.BAD_PLAN.error(count=1, what=f"there is no kernel for arrays of {buffer.dtype}") from None
        return ArrayDescriptor(name, buffer.shape, buffer.strides, dtype, buffer.address, buffer.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The protocol by which a launch reads it as an array."""
        place = {"data": (self.address, False), "strides": self.strides}
        return {"shape": self.shape, "typestr": f"|V{self.dtype.itemsize}", "version": 3, **place}

    @property
    def root(self) -> ArrayDescriptor:
        """The descriptor of the caller's array."""
        return self if self.base is None else self.base

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def mT(self) -> ArrayDescriptor:  # noqa: N802  as NumPy and PyTorch name it
        """The transposed view."""
        shape, strides = (*self.shape[:-2], *self.shape[:-3:-1]), (*self.strides[:-2], *self.strides[:-3:-1])
        return self._view(shape, strides, is_transposed=not self.is_transposed)

    def reshape(self, *shape: int) -> ArrayDescriptor:
        """A view of another shape; a contiguous copy where the strides allow none."""
        strides = _reshaped_strides(self.shape, self.strides, shape, self.itemsize)
        return self.copied(*shape) if strides is None else self._view(shape, strides)

    def broadcast_to(self, shape: Shape) -> ArrayDescriptor:
        """A view in which axes of extent 1 repeat."""
        front = len(shape) - self.ndim
        own = (1,) * front + self.shape, (0,) * front + self.strides
        strides = tuple(0 if e == 1 != wanted else s for e, s, wanted in zip(*own, shape, strict=True))
        return self._view(shape, strides)

    def padded(self) -> ArrayDescriptor:
        """A copy with K contiguous, in rows of whole 16 bytes, that TMA can read."""
        *front, last = (max(extent, 1) for extent in self.shape)
        unit = STRIDE_ALIGNMENT // self.itemsize
        strides = _dense_strides((*front, -(-last // unit) * unit), self.itemsize)
        return self._copy((*front, last), strides)

    def as_contiguous(self, dtype: Any) -> ArrayDescriptor:
        """Itself if it is contiguous and of a dtype, else a copy that is."""
        wanted = np.dtype(dtype)
        dense = _dense_strides(self.shape, wanted.itemsize)
        if (self.dtype, self.strides) == (wanted, dense):
            return self
        return replace(self._copy(self.shape, dense), dtype=wanted)

    def view(self, dtype: Any) -> ArrayDescriptor:
        """The same bytes as elements of another size; the last axis must be contiguous."""
        wanted = np.dtype(dtype)
        last = self.shape[-1] * self.itemsize // wanted.itemsize
        view = self._view((*self.shape[:-1], last), (*self.strides[:-1], wanted.itemsize))
        return replace(view, dtype=wanted)

    def copied(self, *shape: int) -> ArrayDescriptor:
        """A contiguous copy of some shape."""
        return self._copy(shape, _dense_strides(shape, self.itemsize))

    def _view(self, shape: Shape, strides: Shape, *, is_transposed: bool | None = None) -> ArrayDescriptor:
        turned = self.is_transposed if is_transposed is None else is_transposed
        return replace(self, shape=shape, strides=strides, base=self.root, is_transposed=turned)

    def _copy(self, shape: Shape, strides: Shape) -> ArrayDescriptor:
        """A copy is launched in the place of the caller's array: it is described by the same base."""
        return replace(self, shape=shape, strides=strides, address=0, base=self.root, is_copy=True)


def _dense_strides(shape: Shape, item: int) -> Shape:
    return tuple(item * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _reshaped_strides(shape: Shape, strides: Shape, wanted: Shape, item: int) -> Shape | None:
    """The strides of a view of another shape; None where elements are not at regular steps.

    Axes of the array that follow each other without a gap form a run; every axis that is wanted must lie in one run.
    """
    if not prod(shape):
        return _dense_strides(wanted, item)
    runs: list[list[int]] = []  # elements and innermost stride of each run
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = [runs[-1][0] * extent, stride]
        else:
            runs.append([extent, stride])
    found: list[int] = []
    for extent in reversed(wanted):
        while runs and runs[-1][0] == 1:
            runs.pop()
        if extent == 1 or not runs:
            found.append(found[-1] if found else item)
            continue
        elements, stride = runs[-1]
        if elements % extent:
            return None
        found.append(stride)
        runs[-1] = [elements // extent, stride * extent]
    return tuple(reversed(found))


def broadcast_to(array: Any, shape: Shape) -> Any:
    """A view of an array of any kind in which axes of extent 1 repeat."""
    return np.broadcast_to(array, shape) if isinstance(array, np.ndarray) else array.broadcast_to(shape)


def padded(array: Any) -> Any:
    """A copy (…, rows, k) that TMA can read: K contiguous, in rows of whole 16 bytes; of a descriptor, its layout."""
    if isinstance(array, ArrayDescriptor):
        return array.padded()
    *front, last = array.shape
    unit = STRIDE_ALIGNMENT // array.itemsize
    made = np.zeros((*front, max(-(-last // unit), 1) * unit), array.dtype)
    made[..., :last] = array
    return made[..., : max(last, 1)]


def aligned(array: Any, alignment: int) -> Any:
    """An array at an address that is a multiple of a number of bytes: itself, or a contiguous copy."""
    if buffer_of(array).address % alignment == 0:
        return array
    return array.copied(*array.shape) if isinstance(array, ArrayDescriptor) else array.copy()


def is_planned(value: Any) -> bool:
    """Return whether a value is an array that can be planned with: a NumPy array or a descriptor."""
    return isinstance(value, np.ndarray | ArrayDescriptor)


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, the same for NumPy and PyTorch."""
    return str(array.dtype).rpartition(".")[2]


def element_type(array: Any) -> str:
    """The element type as a configuration names it."""
    name = dtype_name(array)
    return _ELEMENTS.get(name) or OF_NUMPY[name]


def default_result_type(first: str) -> str:
    """The result's dtype by that of the first operand: the same, bfloat16 for 8 and 4 bits."""
    return _RESULTS.get(first, first)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch, whose own front door checks what is particular to tensors."""
    return not isinstance(value, np.ndarray) and hasattr(value, "untyped_storage")


def check_array(argument: str, value: Any, violations: Violations, *, types: Collection[str], ranks: range) -> bool:
    """Check that an argument is an array of one of the types and ranks that a kernel can address."""
    if not (is_planned(value) or is_tensor(value)):
        violations.add(argument, value, "must be a NumPy array")
        return False
    found = len(violations)
    if dtype_name(value) not in types:
        violations.add(argument, value, f"must have elements of type {', '.join(types)}")
    if value.ndim not in ranks:
        allowed = f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
        violations.add(argument, value, f"must have {allowed} axes, not {value.ndim}")
    if isinstance(value, np.ndarray):
        _check_elements(argument, value, violations)
    return len(violations) == found


def _check_elements(argument: str, value: Array, violations: Violations) -> None:
    """Check that a kernel may read every element in place."""
    if any(stride % value.itemsize for stride in value.strides):
        violations.add(argument, value, "must have strides that are multiples of its element size")
    if not value.dtype.isnative:
        violations.add(argument, value, "must have the byte order of this computer")
    masked = sys.modules.get("numpy.ma")  # not loaded for the question: without it there is no masked array
    if masked is not None and isinstance(value, masked.MaskedArray):
        violations.add(argument, value, "must not be masked: a kernel reads all elements")


def check_arrays(arrays: Mapping[str, Any], violations: Violations, *, types: Collection[str], ranks: range) -> bool:
    """Check several arrays; the violations of each are reported."""
    fine = [check_array(name, each, violations, types=types, ranks=ranks) for name, each in arrays.items()]
    return all(fine)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number of Python or NumPy."""
    if isinstance(value, np.generic):
        return isinstance(value, np.floating) or value.dtype.name in OF_NUMPY
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_in_range(number: Any) -> bool:
    """Return whether float32 holds a number, rounded; it holds infinities and NaN."""
    try:
        wide = float(number)
    except OverflowError:
        return False
    return not isfinite(wide) or abs(wide) < _OVERFLOW


def leaves(arguments: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays among arguments by path: `bias`, and `operands.scale` for one in a mapping."""
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{within}{name}.")
        elif is_array(value):
            yield f"{within}{name}", value


def mapped(arguments: Mapping[str, Any], change: Callable[[str, Any], Any], within: str = "") -> dict[str, Any]:
    """The arguments with every array replaced by `change(path, array)`."""
    return {
        name: mapped(value, change, f"{within}{name}.")
        if isinstance(value, Mapping)
        else change(f"{within}{name}", value)
        if is_array(value)
        else value
        for name, value in arguments.items()
    }


def overlap(one: Any, other: Any) -> bool:
    """Return whether two arrays may share memory; False for other values, and for arrays without memory."""
    if not is_array(one) or not is_array(other) or _has_no_memory(one) or _has_no_memory(other):
        return False
    return may_share(buffer_of(one), start_of(one), buffer_of(other), start_of(other))


def _has_no_memory(array: Any) -> bool:
    """Return whether it is a descriptor of a host array, a tensor on PyTorch's device `meta`, or a fake tensor."""
    if isinstance(array, ArrayDescriptor):
        return array.root.address == 0
    return hasattr(array, "untyped_storage") and array.untyped_storage().device.type == "meta"


def has_overlapping_strides(shape: Iterable[int], strides: Iterable[int]) -> bool:
    """Return whether several elements of an array may share memory: an axis steps no further than those below it
    reach.
    """
    steps = sorted((abs(step), extent) for step, extent in zip(strides, shape, strict=True) if extent > 1)
    span = 0
    for step, extent in steps:
        if step <= span:
            return True
        span += (extent - 1) * step
    return False


def clashes(out: Any, operands: Iterable[Any], epilogue_inputs: Iterable[Any], *, stores_anywhere: bool) -> bool:
    """Return whether writing an array would change an input before it is read for the last time.

    A and B are read for many elements of D. An epilogue input is read at the element that is then written, so that it
    may be the very array that is written; but not where the caller's function stores anywhere.
    """
    return any(clash(out, each, in_place=False) for each in operands) or any(
        clash(out, each, in_place=not stores_anywhere) for each in epilogue_inputs
    )


def clash(out: Any, read: Any, *, in_place: bool) -> bool:
    """Return whether writing an array would change another; one that is read in place may be the very array."""
    return overlap(out, read) and not (in_place and have_same_layout(out, read) and bounds_of(out) == bounds_of(read))


def have_same_layout(one: Any, other: Any) -> bool:
    """Return whether two arrays have the same shape, strides and dtype."""
    mine, theirs = buffer_of(one), buffer_of(other)
    return (mine.shape, mine.strides, mine.dtype) == (theirs.shape, theirs.strides, theirs.dtype)


def as_matrix(array: Any, core: Shape, *, are_known: bool = True) -> bool:
    """Return whether an array like the result has the kernel's shape without a copy."""
    if is_tensor(array):
        if tuple(array.shape) == tuple(core) or array.is_contiguous():
            return True
        return are_known and _is_viewable(array, core)
    if 0 in array.shape:
        return True
    made = array.reshape(*core)
    return np.may_share_memory(made, array) if isinstance(array, np.ndarray) else not made.is_copy


def _is_viewable(tensor: Any, core: Shape) -> bool:
    try:
        tensor.view(core)
    except RuntimeError:
        return False
    return True


def type_name(dtype: Any) -> str | None:
    """The name of a dtype of NumPy or PyTorch, or of anything that NumPy takes for one; None for anything else."""
    if type(dtype).__module__ == "torch":
        return str(dtype).rpartition(".")[2]
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return None


def broadcasts(shape: Iterable[int], to: Iterable[int]) -> bool:
    """Return whether a shape of at most as many axes broadcasts to another."""
    # Extents may be symbols of PyTorch's compiler, of which equality is known first.
    pairs = zip(reversed(tuple(shape)), reversed(tuple(to)), strict=False)
    return all(own == other or own == 1 for own, other in pairs)  # noqa: PLR1714


def plain_array(array: Any) -> Any:
    """An array without its subclass of NumPy."""
    return np.asarray(array) if isinstance(array, np.ndarray) else array
