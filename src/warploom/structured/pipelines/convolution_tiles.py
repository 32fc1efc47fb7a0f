"""Operands of a convolution as an implicit GEMM: pixels of images, and taps of filters, as tiles of A and B.

A row of A is an output pixel, a row of B an output channel. K runs through the taps of the filter, row by row, and
through the tiles of channels of each tap: a K tile never crosses a tap, and TMA fills the channels beyond the last one
with zeros in both operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warploom.structured.cluster import Cluster
from warploom.structured.pipelines.operand_tiles import OperandLayout, OperandTiles, copy_box
from warploom.trace.isa.emit import At
from warploom.trace.language.values import Value, valued
from warploom.trace.language.views import View
from warploom.trace.parameters import TensorMapArgument

Window = Mapping[str, Value]
"""The sizes of a convolution as a kernel gets them: `height` and `width` of an output image, `top` and `left` of the
padding, `dilation_h` and `dilation_w`, `taps`, the number of filter columns, and `channel_tiles`."""


class _TapTiles(OperandTiles):
    """An operand whose K tiles are tiles of channels of a tap."""

    def __init__(self, name: str, source: TensorMapArgument, *rest: Any, window: Window, **how: Any) -> None:
        super().__init__(name, source, *rest, **how)
        self._window = window

    def _copy(
        self,
        source: TensorMapArgument,
        layout: OperandLayout,
        storage: View,
        tile: Any,
        k: Value,
        barrier: At,
        cluster: Cluster,
    ) -> None:
        step, share = layout.rows // layout.slices, valued(self.share, "u32")
        row = valued(self.row(tile), "s32") + share.to("s32") * step
        tap, block = _divided(k, self._window["channel_tiles"])
        tap_row, tap_column = _divided(tap, self._window["taps"])
        place = storage.window((share * layout.slice_bytes,), (1,)).place
        for column in range(layout.columns):
            channel = block * layout.k_extent + column * layout.span
            self._copy_box(place + column * layout.column_bytes, row, tap_row, tap_column, channel, barrier, cluster)

    def _copy_box(
        self, to: At, row: Value, tap_row: Value, tap_column: Value, channel: Value, barrier: At, cluster: Cluster
    ) -> None:
        raise NotImplementedError


class PixelTiles(_TapTiles):
    """Tiles of images (N, H, W, C): the input pixels that a tap multiplies, for consecutive output pixels."""

    def _copy_box(
        self, to: At, row: Value, tap_row: Value, tap_column: Value, channel: Value, barrier: At, cluster: Cluster
    ) -> None:
        window, strides = self._window, self.source.geometry.element_strides
        image, pixel = _divided(row, window["height"] * window["width"])
        down, along = _divided(pixel, window["width"])
        first = (down * strides[1] - window["top"], along * strides[2] - window["left"])
        offsets = (tap_column * window["dilation_w"]).to("u16"), (tap_row * window["dilation_h"]).to("u16")
        copy_box(to, self.source.at(image, *first, channel), barrier, cluster, self.peers, offsets)


class FilterTiles(_TapTiles):
    """Tiles of filters (K, R, S, C): one tap of consecutive output channels."""

    def _copy_box(
        self, to: At, row: Value, tap_row: Value, tap_column: Value, channel: Value, barrier: At, cluster: Cluster
    ) -> None:
        copy_box(to, self.source.at(row, tap_row, tap_column, channel), barrier, cluster, self.peers)


def convolution_tiles(name: str, source: TensorMapArgument, *rest: Any, **how: Any) -> OperandTiles:
    """Create the tiles of an operand of a convolution: pixels if its map is an im2col map, else taps."""
    kind = PixelTiles if source.geometry.mode == "im2col" else FilterTiles
    return kind(name, source, *rest, **how)


def _divided(number: Value, by: Value) -> tuple[Value, Value]:
    """Divide numbers that are not negative, and return the quotient and the remainder."""
    quotient = (number.to("u32") // by.to("u32")).to("s32")
    return quotient, number - quotient * by
