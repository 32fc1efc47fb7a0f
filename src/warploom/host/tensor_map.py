"""Tensor maps: an array, a box and a swizzle, checked against every rule of the driver's encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.hardware import tensor_maps as facts
from warploom.hardware.swizzles import SWIZZLES, Swizzle
from warploom.hardware.tensor_maps import MapType
from warploom.host.arrays import Buffer, buffer_of

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class BoxGeometry:
    """A tensor map without its array, as the emulated TMA uses it. Axes in NumPy order, sizes in elements, strides in
    bytes.
    """

    element: MapType
    shape: Sizes
    strides: Sizes
    """Byte strides of all axes but the innermost."""
    box: Sizes
    """Elements that a box holds along each axis: what the element strides leave of the map's box. Pixels and channels
    in the im2col modes.
    """
    element_strides: Sizes
    swizzle: Swizzle
    fill: str
    interleave: str
    mode: str = "tile"
    lower_corner: Sizes = ()
    """In the im2col modes, the first position of a pixel along each spatial axis (in the wide modes: W only)."""
    upper_corner: Sizes = ()
    """The last position of a pixel along these axes, counted from the end of the tensor: 0 is its last element."""
    halo: int = 0
    """In the wide modes, the pixels of a halo, which are among those of the box."""

    def with_halo(self, halo: int) -> BoxGeometry:
        """The geometry of a copy in a wide mode with a halo: more pixels."""
        if halo not in self._halos:
            halos = facts.WIDE_PIXELS // facts.HALO_PIXELS if self.mode == "im2col::w::128" else 1
            self._halos[halo] = replace(self, box=(self.box[0] + halos * halo, self.box[1]), halo=halo)
        return self._halos[halo]

    @cached_property
    def _halos(self) -> dict[int, BoxGeometry]:
        return {}

    @cached_property
    def windows(self) -> dict[Sizes, Any]:
        """The parts of boxes inside the tensor, by coordinates: a kernel loads the same boxes many times."""
        return {}

    @cached_property
    def places(self) -> dict[int, Any]:
        """The places of boxes in shared memory, by address."""
        return {}

    @cached_property
    def rank(self) -> int:
        """Axes of the tensor; a box has two in the im2col modes."""
        return len(self.element_strides)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one innermost row in shared memory."""
        return self.element.row_bytes(self.box[-1])

    @cached_property
    def pitch(self) -> int:
        """Bytes from one row to the next in shared memory: a row narrower than the swizzle still takes its whole
        span.
        """
        return max(self.row_bytes, self.swizzle.span)

    @cached_property
    def box_bytes(self) -> int:
        """Bytes that one box moves, which is also what it counts towards an mbarrier, filled elements included.

        Padding does not count: a padded type counts what it takes in global memory.
        """
        return prod(self.box[:-1]) * self.element.global_row_bytes(self.box[-1])

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of one box in shared memory, without what a row narrower than the swizzle leaves free."""
        return prod(self.box[:-1]) * self.row_bytes


def _type_of(dtype: Any, array_dtype: str) -> tuple[str, MapType | None]:
    """The name that was requested, and the map type of that name."""
    if dtype is None:
        name = array_dtype
    elif isinstance(dtype, str) and dtype in facts.MAP_TYPES:
        return dtype, facts.MAP_TYPES[dtype]
    else:
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return name, facts.DTYPE_DEFAULTS.get(name)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class TensorMap:
    """A tensor in global memory and the box of it that TMA moves.

    `box`, `shape`, `strides` and `element_strides` are in NumPy axis order, innermost last. `shape` counts elements
    (of a packed type: single values), `strides` are the bytes of every axis, `offset` is the byte of the array where
    the tensor begins; what is left out comes from the array. `dtype` is a NumPy or ml_dtypes type, or a name of
    `hardware.tensor_maps.MAP_TYPES`. A map that violates rules raises one BAD_TENSOR_MAP error with a note for each.

    With `beyond`, the tensor may reach beyond the array, as the driver allows: only what a copy moves must be in the
    array, at addresses modulo 2^64. Triton's ragged descriptors are such maps.

    `mode` is "tile", "im2col", "im2col::w" or "im2col::w::128". In the im2col modes the tensor is NWC, NHWC or NDHWC,
    `box` is (pixels, channels), and the pixels of a copy run through positions from `lower_corner` to `upper_corner`
    (of D, H, W; in the wide modes of W alone), the latter counted from the last element of its axis, `element_strides`
    apart. For a convolution they are -padding and padding - dilation * (filter - 1).
    """

    array: Any
    dtype: str
    offset: int
    l2_promotion: str
    geometry: BoxGeometry

    def __init__(
        self,
        array: Any,
        *,
        box: Sequence[int],
        swizzle: str = "none",
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        dtype: Any = None,
        element_strides: Sequence[int] | None = None,
        interleave: str = "none",
        fill: str = "zero",
        l2_promotion: str = "none",
        offset: int = 0,
        mode: str = "tile",
        lower_corner: Sequence[int] = (),
        upper_corner: Sequence[int] = (),
        beyond: bool = False,
    ) -> None:
        buffer = buffer_of(array)
        name, element = _type_of(dtype, buffer.dtype)
        if element is None:
            known = ", ".join((*facts.DTYPE_DEFAULTS, *facts.MAP_TYPES))
            raise _error([("dtype", f"{name} is not a tensor-map type; the types are {known}")])
        extents = tuple(map(int, shape)) if shape is not None else _default_shape(buffer, element)
        rank = len(box) if mode == "tile" else len(extents)
        request = _Request(
            buffer=buffer,
            element=element,
            shape=extents,
            strides=tuple(map(int, strides)) if strides is not None else _default_strides(buffer, element, shape),
            box=tuple(map(int, box)),
            element_strides=(1,) * rank if element_strides is None else tuple(map(int, element_strides)),
            swizzle=swizzle,
            interleave=interleave,
            fill=fill,
            l2_promotion=l2_promotion,
            offset=int(offset),
            mode=mode,
            lower_corner=tuple(map(int, lower_corner)),
            upper_corner=tuple(map(int, upper_corner)),
            beyond=beyond,
        )
        broken = list(request.violations())
        if broken:
            raise _error(broken)
        for field, value in (
            ("array", array),
            ("dtype", element.name),
            ("offset", request.offset),
            ("l2_promotion", l2_promotion),
            ("geometry", request.geometry()),
        ):
            object.__setattr__(self, field, value)

    @property
    def box(self) -> Sizes:
        """Elements that one copy moves along each axis."""
        return self.geometry.box

    @property
    def box_bytes(self) -> int:
        return self.geometry.box_bytes

    def at(self, *coordinates: Any) -> Any:
        """The box that begins at coordinates; only inside a kernel, which gets its own object for a tensor map."""
        raise Diag.OUTSIDE_KERNEL.error(what="`TensorMap.at`")


def extent_bytes(element: MapType, shape: Sizes, strides: Sizes) -> int:
    """The bytes from the beginning of a tensor to its end; `strides` are those of all axes but the innermost."""
    steps = zip(shape[:-1], strides, strict=True)
    return element.global_row_bytes(shape[-1]) + sum((extent - 1) * stride for extent, stride in steps)


def _error(broken: Sequence[tuple[str, str]]) -> Exception:
    subjects = ", ".join(dict.fromkeys(subject for subject, _ in broken))
    notes = [f"{subject}: {sentence}" for subject, sentence in broken]
    return Diag.BAD_TENSOR_MAP.error(notes=notes, count=len(broken), what=subjects)


def _default_shape(buffer: Buffer, element: MapType) -> Sizes:
    """The array's shape in the map's elements: a packed type has more of them to a row than the array has bytes."""
    if not buffer.shape:
        return ()
    row = buffer.shape[-1] * buffer.item
    return (*buffer.shape[:-1], row * element.group // element.global_bytes)


def _default_strides(buffer: Buffer, element: MapType, shape: Sequence[int] | None) -> Sizes:
    """The array's strides, or dense ones if the caller gave a shape; the innermost is the size of one element."""
    if shape is None:
        return buffer.strides
    strides = [max(element.global_bytes // element.group, 1)]
    row = element.global_row_bytes(int(shape[-1])) if len(shape) else 0
    for extent in reversed(shape[1:]):
        strides.append(row if len(strides) == 1 else strides[-1] * int(extent))
    return tuple(reversed(strides[: len(shape)]))


@dataclass(frozen=True, slots=True)
class _Request:
    """A map as requested by the caller, before it is checked."""

    buffer: Buffer
    element: MapType
    shape: Sizes
    strides: Sizes
    box: Sizes
    element_strides: Sizes
    swizzle: str
    interleave: str
    fill: str
    l2_promotion: str
    offset: int
    mode: str
    lower_corner: Sizes
    upper_corner: Sizes
    beyond: bool

    def geometry(self) -> BoxGeometry:
        """The driver ignores the innermost element stride of a tensor without interleave; so does the emulator.

        The im2col modes stride along the spatial axes only (PTX ISA 5.5.4.3); a copy has all pixels of the map's box.
        """
        steps = (*self.element_strides[:-1], self.element_strides[-1] if self.interleave != "none" else 1)
        if self.mode == "tile":
            loaded = tuple(-(-extent // step) for extent, step in zip(self.box, steps, strict=True))
        else:
            steps, loaded = (1, *steps[1:-1], 1), self.box
        if self.mode == "im2col::w::128":
            loaded = (facts.WIDE_PIXELS, self.box[1])
        return BoxGeometry(
            self.element,
            self.shape,
            self.strides[:-1],
            loaded,
            steps,
            SWIZZLES[self.swizzle],
            self.fill,
            self.interleave,
            self.mode,
            self.lower_corner,
            self.upper_corner,
        )

    def violations(self) -> Iterator[tuple[str, str]]:
        """Every violated rule as (subject, sentence with the values)."""
        yield from self._names()
        rank = len(self.shape)
        yield from self._ranks(rank)
        axes = rank if self.mode == "tile" else 2
        if rank >= 1 and axes == len(self.box) and rank == len(self.element_strides) == len(self.strides):
            yield from self._shapes()
            yield from self._strides()
            yield from self._boxes()
            yield from self._extent()
            yield from self._corners()
        yield from self._combinations()

    def _names(self) -> Iterator[tuple[str, str]]:
        for subject, value, legal in (
            ("swizzle", self.swizzle, SWIZZLES),
            ("interleave", self.interleave, facts.INTERLEAVES),
            ("fill", self.fill, facts.FILLS),
            ("l2_promotion", self.l2_promotion, facts.L2_PROMOTIONS),
            ("mode", self.mode, facts.MODES),
        ):
            if value not in legal:
                yield subject, f"{value!r} is not one of {', '.join(legal)}"

    def _ranks(self, rank: int) -> Iterator[tuple[str, str]]:
        lowest = 1 if self.mode == "tile" else min(facts.SPATIAL_AXES)
        if not lowest <= rank <= facts.RANK_LIMIT:
            yield "rank", f"{rank} is not {lowest} to {facts.RANK_LIMIT}"
        if self.interleave != "none" and rank < facts.INTERLEAVE_RANK:
            yield "rank", f"{rank} is less than {facts.INTERLEAVE_RANK}, which interleave {self.interleave} needs"
        for subject, value in (("box", self.box), ("element_strides", self.element_strides), ("strides", self.strides)):
            if subject == "box" and self.mode != "tile":
                if len(value) != 2:
                    yield subject, f"{value} has {len(value)} numbers; mode {self.mode} has pixels and channels"
            elif len(value) != rank:
                yield subject, f"{value} has {len(value)} axes, the tensor has {rank}"

    def _shapes(self) -> Iterator[tuple[str, str]]:
        for axis, extent in enumerate(self.shape):
            if not 1 <= extent <= facts.DIMENSION_LIMIT:
                yield "shape", f"axis {axis} has {extent} elements, not 1 to 2^32"
        unit = self.element.inner_unit
        if self.shape[-1] % unit:
            yield (
                "shape",
                f"the innermost axis of {self.element.name} has {self.shape[-1]} values, not a multiple of {unit}",
            )

    def _strides(self) -> Iterator[tuple[str, str]]:
        item = self.element.global_bytes if not self.element.packed else self.buffer.item
        if self.strides[-1] != item and self.shape[-1] > 1 and not self.element.packed:
            yield "strides", f"the innermost axis has stride {self.strides[-1]}, not the {item} bytes of one element"
        unit = facts.WIDE_ALIGNMENT if self._wide else facts.STRIDE_ALIGNMENT
        for axis, stride in enumerate(self.strides[:-1]):
            if stride % unit:
                yield "strides", f"axis {axis} has stride {stride} bytes, not a multiple of {unit}"
            if not 0 <= stride < facts.STRIDE_LIMIT:
                yield "strides", f"axis {axis} has stride {stride} bytes, not 0 to 2^40 - 1"
        unit = facts.WIDE_ALIGNMENT if self._wide else facts.ADDRESS_ALIGNMENT
        if (self.buffer.address + self.offset) % unit:
            where = self.buffer.address + self.offset
            yield "address", f"the tensor begins at byte {where:#x} of its memory, not on a multiple of {unit}"

    def _boxes(self) -> Iterator[tuple[str, str]]:
        limits = [facts.BOX_LIMIT] * len(self.box)
        if self.mode != "tile":
            limits[0] = facts.PIXELS_LIMIT
        for axis, (extent, limit) in enumerate(zip(self.box, limits, strict=True)):
            if not 1 <= extent <= limit:
                yield "box", f"axis {axis} has {extent} elements, not 1 to {limit}"
        for axis, step in enumerate(self.element_strides):
            if not 1 <= step <= facts.ELEMENT_STRIDE_LIMIT:
                yield "element_strides", f"axis {axis} has {step}, not 1 to {facts.ELEMENT_STRIDE_LIMIT}"
        row = self.element.global_row_bytes(self.box[-1])
        if self.element.padded:
            if self.box[-1] != facts.PADDED_BOX:
                yield (
                    "box",
                    f"the innermost axis of {self.element.name} has {self.box[-1]} values, not {facts.PADDED_BOX}",
                )
        elif row % facts.BOX_ROW_ALIGNMENT:
            yield "box", f"the innermost axis takes {row} bytes, not a multiple of {facts.BOX_ROW_ALIGNMENT}"
        yield from self._box_sizes()

    def _box_sizes(self) -> Iterator[tuple[str, str]]:
        swizzle = SWIZZLES.get(self.swizzle)
        row = self.element.row_bytes(self.box[-1])
        if swizzle and swizzle.span and self.interleave == "none" and row > swizzle.span:
            yield "box", f"the innermost axis takes {row} bytes; swizzle {swizzle.name} allows {swizzle.span}"
        steps = (max(step, 1) if self.mode == "tile" else 1 for step in self.element_strides[-len(self.box) :])
        loaded = prod(-(-extent // step) for extent, step in zip(self.box, steps, strict=True))
        if self.element.row_bytes(loaded) > facts.BOX_BYTES_LIMIT:
            size = self.element.row_bytes(loaded)
            yield "box", f"it takes {size} bytes of shared memory, more than {facts.BOX_BYTES_LIMIT}"

    def _extent(self) -> Iterator[tuple[str, str]]:
        end = self.offset + extent_bytes(self.element, self.shape, self.strides[:-1])
        if self.beyond and self.mode == "tile":
            if not 0 <= self.offset < max(self.buffer.span, 1):
                yield "array", f"the tensor begins at byte {self.offset} of an array of {self.buffer.span} bytes"
        elif self.offset < 0 or end > self.buffer.span:
            yield "array", f"the tensor takes bytes {self.offset} to {end} of an array of {self.buffer.span} bytes"

    def _corners(self) -> Iterator[tuple[str, str]]:
        rank = len(self.shape)
        if self.mode not in facts.MODES or rank not in facts.SPATIAL_AXES:
            return
        wide = self.mode in facts.WIDE_MODES
        axes = 0 if self.mode == "tile" else 1 if wide else facts.SPATIAL_AXES[rank]
        limit = facts.CORNER_LIMIT[min(facts.CORNER_LIMIT) if wide else rank]
        corners = {"lower_corner": self.lower_corner, "upper_corner": self.upper_corner}
        for subject, corner in corners.items():
            if len(corner) != axes:
                yield subject, f"{corner} has {len(corner)} axes; mode {self.mode} of rank {rank} has {axes}"
            yield from (
                (subject, f"{value} is not {-limit} to {limit - 1}") for value in corner if not -limit <= value < limit
            )
        if len(self.lower_corner) == len(self.upper_corner) == axes:
            spatial = self.shape[rank - 1 - axes : rank - 1]
            for low, high, extent in zip(self.lower_corner, self.upper_corner, spatial, strict=True):
                if extent + high - low < 1:
                    yield "upper_corner", f"no position lies between {low} and {high} of an axis of {extent} elements"

    def _combinations(self) -> Iterator[tuple[str, str]]:
        if self.interleave == "32B" and self.swizzle != "32B":
            yield "swizzle", f"interleave 32B needs swizzle 32B, not {self.swizzle}"
        if self.element.padded and self.interleave != "none":
            yield "interleave", f"{self.element.name} has none, not {self.interleave}"
        if self.element.swizzles and self.swizzle in SWIZZLES and self.swizzle not in self.element.swizzles:
            yield "swizzle", f"{self.element.name} has {', '.join(self.element.swizzles)}, not {self.swizzle}"
        if self.mode in facts.WIDE_MODES and self.swizzle == "none":
            yield "swizzle", f"mode {self.mode} needs one (PTX ISA 5.5.5)"
        if self.fill == "nan" and not self.element.floating:
            yield "fill", f"nan needs a floating-point type, and the map's is {self.element.name}"

    @property
    def _wide(self) -> bool:
        return self.interleave == "32B" or self.element.padded
