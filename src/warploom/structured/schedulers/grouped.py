"""The scheduler of grouped GEMMs: the tiles of many groups of rows, one group after another, each with its own expert.

The rows of all groups are in one array; the ends of the groups are in global memory and known on the device only. Tiles
are numbered as by the static scheduler. Either every role searches for its tiles itself, or one warp searches and
publishes them in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from warploom.structured.cluster import Cluster
from warploom.structured.dependent_launch import wait_for_dependencies
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.signals import OncePerWarp
from warploom.structured.schedulers.base import Scheduler
from warploom.structured.schedulers.raster import ceil_divide, linear_raster
from warploom.structured.schedulers.static import linear_cluster
from warploom.trace.builder import current, here
from warploom.trace.language.control import While, when
from warploom.trace.language.roles import Role, Roles
from warploom.trace.language.values import Value, literal, select, valued
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import Index, View, shared

_WORDS = 8
"""Words of a published tile: two vectors of four."""
_NOBODY = -1
"""The expert of a disabled group, and of the sentinel that is published after the last tile."""


@dataclass(frozen=True)
class GroupedTile:
    """One output tile of a cluster: rows from `m_abs` up to `m_end`, and columns from `n_abs`.

    Rows are counted over all groups; `group` has the rows from `m_start` to `m_end`, and `expert` selects its weights.
    """

    m_abs: Value
    n_abs: Value
    group: Value
    expert: Value
    m_start: Value
    m_end: Value
    scale: Value
    k_start: Value
    k_tiles: Value

    @property
    def batch(self) -> Value:
        """The index of the weight matrix."""
        return self.expert


class GroupedScheduler(Scheduler[GroupedTile]):
    """Tiles of `tile_shape` rows and columns, for groups that end at `ends` and have `columns` columns each.

    `experts` is the expert of each group, by default its own index; a negative value disables the group. `scales` has a
    factor for each expert. `swizzle_size` is the height of a supergroup: rows of tiles visited together, for L2
    reuse. With `roles`, only their `scheduler` reads these arrays and publishes the tiles to `workers`, by default all
    other roles. `dependent` waits for the previous grid before the arrays are read.
    """

    def __init__(
        self,
        ends: View,
        *,
        cluster: Cluster,
        columns: Index,
        tile_shape: tuple[int, int],
        k_tiles: Index,
        experts: View | None = None,
        scales: View | None = None,
        swizzle_size: int = 0,
        roles: Roles | None = None,
        workers: Sequence[Role] | None = None,
        num_slots: int = 2,
        dependent: bool = False,
    ) -> None:
        super().__init__()
        self._ends, self._experts, self._scales = ends, experts, scales
        self._shape, self._swizzle_size, self._dependent = tile_shape, swizzle_size, dependent
        self._columns = valued(ceil_divide(valued(columns, "s32"), tile_shape[1]), "s32")
        self._k_tiles = valued(k_tiles, "s32")
        self._place = linear_cluster(cluster)
        self._ring: _Ring | None = None
        if roles is not None:
            others = [role for role in roles if role is not roles.scheduler] if workers is None else workers
            self._ring = _Ring(self, roles.scheduler, tuple(others), cluster, num_slots)
            self.all_threads = True

    def _iterate(self) -> Iterator[GroupedTile]:
        if self._ring is None:
            yield from self.search()
            return
        yield from self._ring.received()

    def every(self, number: Value, of: int) -> Iterator[GroupedTile]:
        """Iterate over every `of`-th tile of this CTA from its `number`-th, for ping-pong warpgroups."""
        self._check()
        return self.search(number, of)

    def search(self, number: Value | None = None, of: int = 1) -> Iterator[GroupedTile]:
        """Iterate over the tiles, group by group, skipping empty groups."""
        if self._dependent:
            wait_for_dependencies()
        first, step = (value.to("s32") for value in self._place)
        if number is not None:
            first, step = first + number.to("s32") * step, step * of
        index, group, expert = Variable("s32", first), Variable("s32", -1), Variable("s32", _NOBODY)
        start, end = Variable("s32", 0), Variable("s32", 0)
        before, through = Variable("s32", 0), Variable("s32", 0)

        def seek() -> Value:
            """Advance to the group that contains tile `index`; return whether there is one."""
            for _ in While(lambda: (through <= index) & (group < self._ends.shape[0] - 1)):
                group.set(group + 1)
                start.set(end)
                end.set(self._ends[group].to("s32"))
                expert.set(group if self._experts is None else self._experts[group].to("s32"))
                before.set(through)
                tiles = self._rows(start, end) * self._columns
                through.set(through + select(expert >= 0, tiles, literal(0, "s32")))
            return index < through

        for _ in While(seek):
            row, column = linear_raster(index - before, (self._rows(start, end), self._columns), self._swizzle_size)
            yield GroupedTile(
                start + row * self._shape[0],
                valued(column * self._shape[1], "s32"),
                group.get(),
                expert.get(),
                start.get(),
                end.get(),
                literal(1.0, "f32") if self._scales is None else self._scales[expert],
                literal(0, "s32"),
                self._k_tiles,
            )
            index.set(index + step)

    def _rows(self, start: Value, end: Value) -> Value:
        """Return the number of tile rows of a group."""
        return valued(ceil_divide(end - start, self._shape[0]), "s32")

    def published(self, tile: GroupedTile) -> list[Value]:
        """Return the words that are published for a tile."""
        places = [tile.m_abs, tile.n_abs, tile.group, tile.expert, tile.m_start, tile.m_end]
        return [*places, tile.scale.bits("s32"), literal(0, "s32")]

    def received(self, words: Sequence[Value]) -> GroupedTile:
        """Rebuild a tile from its published words."""
        m_abs, n_abs, group, expert, m_start, m_end, scale_bits, _ = words
        scale = literal(1.0, "f32") if self._scales is None else scale_bits.bits("f32")
        return GroupedTile(m_abs, n_abs, group, expert, m_start, m_end, scale, literal(0, "s32"), self._k_tiles)


class _Ring:
    """The ring of published tiles, from the scheduler warp to the roles that work on them."""

    def __init__(
        self,
        tiles: GroupedScheduler,
        scheduler: Role,
        workers: tuple[Role, ...],
        cluster: Cluster,
        num_slots: int,
    ) -> None:
        self._tiles, self._scheduler = tiles, scheduler
        self._slots = shared("s32", (num_slots, _WORDS), name="grouped_tile")
        self._pipeline = ProducerConsumerPipeline(
            num_slots,
            producer=OncePerWarp(scheduler),
            consumer=tuple(OncePerWarp(role) for role in workers),
            cluster=cluster,
            name="grouped",
        )
        self._loc = here()
        current().before_roles.append(self._run)

    def received(self) -> Iterator[GroupedTile]:
        """Emit the loop of a worker role."""
        words: list[Value] = []

        def fetch() -> Value:
            with self._pipeline.consume() as stage:
                words[:] = [word for at in (0, 4) for word in self._slots.load(stage.index(), at, count=4)]
            return words[3] != _NOBODY

        for _ in While(fetch):
            yield self._tiles.received(words)

    def _run(self) -> None:
        """Emit the scheduler role: publish all tiles, then the sentinel."""
        builder = current()
        builder.place_all_at(self._loc)
        with self._scheduler:
            for tile in self._tiles.search():
                self._publish(self._tiles.published(tile))
            self._publish([literal(_NOBODY, "s32")] * _WORDS)
        builder.place_all_at(None)

    def _publish(self, words: Sequence[Value]) -> None:
        with self._pipeline.produce() as stage, when(self._scheduler.elected):
            for at in (0, 4):
                self._slots.store(words[at : at + 4], stage.index(), at)
