"""A convolution as an implicit GEMM: `Window`, and the tensor maps of images and filters."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from warploom.hardware.tensor_maps import CORNER_LIMIT, ELEMENT_STRIDE_LIMIT, OFFSET_LIMIT

Pair = tuple[int, int]
"""A number for rows and one for columns."""
_RANK = 4


@dataclass(frozen=True)
class Window:
    """A filter that moves over images: its extents and positions, along rows and columns."""

    filter: Pair
    image: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    @property
    def taps(self) -> int:
        """The number of elements of the filter."""
        return prod(self.filter)

    @property
    def reach(self) -> Pair:
        """The distance from the first tap to the last."""
        down, along = (step * (extent - 1) for step, extent in zip(self.dilation, self.filter, strict=True))
        return down, along

    @property
    def output(self) -> Pair:
        """The extents of an output image, negative or zero where the filter does not fit."""
        sizes = zip(self.image, self.padding, self.reach, self.stride, strict=True)
        down, along = ((extent + 2 * pad - reach - 1) // step + 1 for extent, pad, reach, step in sizes)
        return down, along

    @property
    def corners(self) -> tuple[Pair, Pair]:
        """The corners of the pixel box: the first position of the first tap, and the last, from the image's end."""
        (top, left), (down, along) = self.padding, self.reach
        return (-top, -left), (top - down, left - along)

    def arguments(self, channel_tiles: int) -> dict[str, int]:
        """Return the sizes that a kernel takes, by name."""
        (height, width), (top, left), (down, along) = self.output, self.padding, self.dilation
        return {
            "height": height,
            "width": width,
            "top": top,
            "left": left,
            "dilation_h": down,
            "dilation_w": along,
            "taps": self.filter[1],
            "channel_tiles": channel_tiles,
        }

    def problems(self) -> list[tuple[str, Any, str]]:
        """Return everything that an im2col map cannot express: an argument, its value, and the rule."""
        found: list[tuple[str, Any, str]] = []
        if max(self.stride) > ELEMENT_STRIDE_LIMIT:
            found.append(("stride", self.stride, f"must be at most {ELEMENT_STRIDE_LIMIT}, the limit of im2col maps"))
        limit = CORNER_LIMIT[_RANK]
        if max(self.padding) > limit or max(self.corners[1]) >= limit:
            found.append(("padding", self.padding, f"must be below {limit}, the limit of im2col maps"))
        most = min(OFFSET_LIMIT[_RANK] - 1, limit + min(self.padding))
        if max(self.reach) >= OFFSET_LIMIT[_RANK] or min(self.corners[1]) < -limit:
            rule = f"must reach at most {most} pixels from the first tap of the filter to the last, not {self.reach}"
            found.append(("dilation", self.dilation, rule))
        return found
