"""Variants: the launches that differ from a given one in the numbers of K steps and of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from warploom.checker.recurrence.loops import Counted, Expression, Loops, evaluate, params_of
from warploom.host.launch import Launch, Triple, entry_of
from warploom.launcher import prepare
from warploom.machine.core.schedule import Eager

_LARGEST = 1 << 30
_MOST_BYTES = 1 << 28
"""Bytes up to which the arrays of a launch are made larger."""


class Refused(Exception):
    """A generalisation that cannot be made, with the reason."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A parameter that bounds loops, and the loop whose passes are counted as steps."""

    name: str
    primary: Counted


@dataclass(frozen=True, slots=True)
class Tiles:
    """The parameters whose product is the number of tiles, the largest first; none where the kernel asks for work."""

    names: tuple[str, ...]
    axis: int = 0
    """The axis of the grid along which the clusters of tiles are, where the kernel asks for work."""


class Variants:
    """The launches that differ from a given one in its sizes only."""

    def __init__(self, launch: Launch, limit: int | None) -> None:
        self.launch = launch
        program = prepare(launch, Eager(), None, limit, (), None).program
        self.flow, self.loops = program.flow, Loops(program.flow)
        self.steering = self.loops.steering()
        names = [param.name for param in entry_of(program.module, launch.entry).params]
        self.params = {name: at for at, name in enumerate(names)}
        self.scalars = {
            name: int(launch.args[at])
            for name, at in self.params.items()
            if at < len(launch.args) and isinstance(launch.args[at], (int, np.integer))
        }
        self.values: dict[str, int] = dict(self.scalars)
        """The values of parameters, and of special registers where one CTA stands for all."""
        self.room = 1
        """The factor by which the arrays of launches are made longer."""
        self._known: dict[int, int] = {}
        """The values of the parameter of K steps."""

    def k_dimension(self) -> Dimension:
        """The parameter that decides how often the innermost loops run."""
        found: dict[str, list[Counted]] = {}
        for counted in self.steering.counted.values():
            for name in params_of(counted.bound) & self.scalars.keys() if counted.leaves else ():
                few, many = (self.trips(counted, name, value) for value in (1, 1 << 20))
                if few is not None and many is not None and few < many:
                    found.setdefault(name, []).append(counted)
        if not found:
            raise Refused("no loop is bounded by a scalar parameter alone")
        bodies = {name: [self.loops.bodies[each.head] for each in loops] for name, loops in found.items()}
        outer = {
            name
            for name, own in bodies.items()
            for other, theirs in bodies.items()
            if name != other and any(inner < body for body in own for inner in theirs)
        }
        found = {name: loops for name, loops in found.items() if name not in outer} or found
        if len(found) > 1:
            raise Refused(f"loops are bounded by several parameters: {', '.join(sorted(found))}")
        ((name, loops),) = found.items()
        return Dimension(name, max(loops, key=lambda each: self.trips(each, name, 1 << 20) or 0))

    def trips(self, counted: Counted, name: str, value: int) -> int | None:
        """The passes of a loop for a value of a parameter."""
        values = {**self.values, name: value}
        bound, first, step = (evaluate(each, values) for each in (counted.bound, counted.first, counted.step))
        if bound is None or first is None or not step or step < 0:
            return None
        return max(-(-(bound - first) // step), 0)

    def launched(self, k: Dimension) -> int:
        """The K steps of the launch itself."""
        return self.trips(k.primary, k.name, self.scalars[k.name]) or 0

    def value_for(self, dimension: Dimension, steps: int) -> int:
        """The largest value of a parameter for which the loop has so many steps."""
        if steps not in self._known:
            self._known[steps] = self._value_for(dimension, steps)
        return self._known[steps]

    def _value_for(self, dimension: Dimension, steps: int) -> int:
        low, high = 0, 1
        while (self.trips(dimension.primary, dimension.name, high) or 0) <= steps:
            high *= 2
            if high > _LARGEST:
                raise Refused(f"{dimension.name} cannot be found for {steps} steps")
        while high - low > 1:
            middle = (low + high) // 2
            if (self.trips(dimension.primary, dimension.name, middle) or 0) <= steps:
                low = middle
            else:
                high = middle
        if self.trips(dimension.primary, dimension.name, low) != steps:
            raise Refused(f"no value of {dimension.name} gives {steps} steps")
        return low

    def at(self, k: Dimension, steps: int) -> Mapping[str, int]:
        """The values of all parameters for a number of K steps, in a launch of one cluster."""
        return self.with_size(k, self.value_for(k, steps))

    def with_size(self, k: Dimension, size: int) -> Mapping[str, int]:
        """The values of all parameters for a value of the one that decides on the K steps."""
        return {**self.own_cluster(), **self.values, k.name: size}

    def own_cluster(self) -> Mapping[str, int]:
        """The special registers of the only cluster of a launch."""
        shape = zip("xyz", self.launch.cluster, strict=True)
        return {f"%ctaid.{axis}": 0 for axis in "xyz"} | {f"%nctaid.{axis}": size for axis, size in shape}

    def tile_dimension(self, k: Dimension) -> Tiles | None:
        """The way to give a cluster more tiles: parameters, or the answers of cluster launch control."""
        if self.steering.oracles:
            clusters = [size // one for size, one in zip(self.launch.grid, self.launch.cluster, strict=True)]
            return Tiles((), clusters.index(max(clusters)))
        outer = [
            each
            for each in self.steering.counted.values()
            if each.leaves and params_of(each.bound) and k.name not in params_of(each.bound)
        ]
        if not outer:
            return None
        names = {name for each in outer for name in params_of(each.bound)}
        if any(name not in self.scalars for name in names):
            raise Refused(f"loops are bounded by {', '.join(sorted(names))}")
        return Tiles(tuple(sorted(names, key=lambda name: (-self.scalars[name], name))))

    def most_tiles(self, tiles: Tiles) -> int:
        """The tiles that the arrays of the launch have room for: stores outside an array would touch less."""
        if tiles.names:
            return self.scalars[tiles.names[0]]
        return self.launch.grid[tiles.axis] // self.launch.cluster[tiles.axis]

    def variant(self, k: Dimension, steps: int, tiles: Tiles | None, count: int) -> Launch:
        """The launch of one cluster with so many K steps and tiles."""
        args = list(self.launch.args)
        args[self.params[k.name]] = self.value_for(k, steps)
        shape: Triple = self.launch.cluster
        if tiles is not None:
            for at, name in enumerate(tiles.names):
                args[self.params[name]] = count if at == 0 else 1
            if not tiles.names:
                x, y, z = (size * count if axis == tiles.axis else size for axis, size in enumerate(shape))
                shape = (x, y, z)
        return replace(self.launch, args=tuple(args), grid=shape)

    def roomy(self, launch: Launch) -> Launch:
        """A launch with arrays that are as much longer as `grow` has made them: their bytes are repeated."""
        if self.room == 1:
            return launch
        return replace(launch, args=tuple(_longer(each, self.room) for each in launch.args))

    def grow(self) -> bool:
        """Make the arrays of all further launches longer; False if they are long already."""
        arrays = [each for each in self.launch.args if _may_grow(each)]
        if not arrays or sum(each.nbytes for each in arrays) * self.room * 4 > _MOST_BYTES:
            return False
        self.room *= 4
        return True

    def arrays_of(self, expressions: list[Expression]) -> list[str]:
        """The parameters in some expressions that are arrays of integers, by name."""
        names = {name for each in expressions for name in params_of(each)}
        args = {name: self.launch.args[self.params[name]] for name in names if name in self.params}
        found = [name for name, arg in args.items() if isinstance(arg, np.ndarray) and arg.dtype.kind in "iu"]
        return sorted(found)

    @property
    def clusters(self) -> int:
        """The clusters of the launch."""
        return prod(self.launch.grid) // prod(self.launch.cluster)


def _may_grow(arg: Any) -> bool:
    return isinstance(arg, np.ndarray) and arg.flags.c_contiguous and arg.size > 0


def _longer(arg: Any, times: int) -> Any:
    return np.resize(arg, arg.size * times) if _may_grow(arg) else arg
