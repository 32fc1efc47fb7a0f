"""Tensor maps that a kernel makes itself, for groups whose weights are allocated separately.

A map is copied to shared memory, gets the address of a group's weights (`tensormap.replace`) and is published in global
memory, where TMA reads it, with the fence of the tensor-map proxy. Every CTA has a place for each group, so that no map
changes while copies that use it may be in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.structured.pipelines.operand_tiles import OperandTiles
from warploom.trace import isa
from warploom.trace.isa.emit import At
from warploom.trace.language.control import when
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, select, special, valued
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import Index, View, shared
from warploom.trace.language.warps import lane

_WORD = 4


class GroupMaps:
    """The tensor maps of an operand's groups: those of one array, with other addresses."""

    def __init__(
        self, tiles: OperandTiles, weights: Mapping[str, View], places: View, groups: Index, role: Role
    ) -> None:
        """The operand's tiles load what `select` chooses, in the load role; `places` has a map per CTA and group."""
        self._template, self._role = tiles.source, role
        self._weights, self._places, self._groups = list(weights.values()), places, valued(groups, "s32")
        self._stage = shared("u32", MAP_BYTES // _WORD, name="group_map", align=MAP_BYTES)
        self._address = Variable("u64", tiles.source.address)
        self._group = Variable("s32", -1)
        tiles.source = replace(tiles.source, address=self._address)

    def select(self, tile: Any) -> None:
        """Use the weights of a tile's group; the first tile of a group makes its map, with the whole warp."""
        cta = special("ctaid.y") * special("nctaid.x") + special("ctaid.x")
        place = self._places.at(cta.to("s32") * self._groups + tile.group, 0)
        with when(tile.group != self._group):
            self._stage[lane()] = isa.ld(At(self._template.address + (lane() * _WORD).to("u64")), type="u32")
            isa.bar.warp_sync(-1)
            with when(self._role.elected):
                isa.tensormap.replace.global_address(self._stage.place, self._pointer(tile), space="shared::cta")
            isa.bar.warp_sync(-1)
            isa.tensormap.cp_fenceproxy(place, self._stage.place, MAP_BYTES, scope="gpu")
            isa.fence.proxy_tensormap_generic(place, MAP_BYTES, sem="acquire", scope="gpu")
            self._address.set(place.address)
            self._group.set(tile.group)

    def _pointer(self, tile: Any) -> Value:
        """Return the address of a tile's weights."""
        first, *others = [each.place.address for each in self._weights]
        for number, each in enumerate(others, 1):
            first = select(tile.expert == number, each, first)
        return first
