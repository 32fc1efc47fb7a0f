"""The cluster as a kernel sees it: ranks, pair leaders, and which CTAs share operands.

Masks are arithmetic on a CTA's coordinates that works on Python numbers and on device values: the kernel computes its
own mask, and barrier counts are derived from the masks of all CTAs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from warploom.diagnostics import Diag
from warploom.hardware.targets import machine
from warploom.trace import isa
from warploom.trace.builder import current, here
from warploom.trace.isa.emit import At
from warploom.trace.language.barriers import sync_threads
from warploom.trace.language.values import Value, literal, special, valued

Place = Value | int


@dataclass(frozen=True)
class Mask:
    """A set of CTAs of the cluster, as a function of the coordinates (x, y) of the CTA that uses it."""

    name: str
    of: Callable[[Place, Place], Place]


SELF = Mask("the CTA itself", lambda _x, _y: 1)
"""The mask of a cluster of one CTA."""


class Cluster:
    """The x × y CTAs that are launched together; with `cta_group` 2, neighbours in x are pairs.

    The leader of a pair has the even rank: it issues the MMAs and owns the barriers that both CTAs wait for.
    """

    def __init__(
        self,
        shape: tuple[int, int] | tuple[int, int, int] = (1, 1),
        cta_group: int = 1,
        *,
        sync_at_exit: bool = True,
    ) -> None:
        """`sync_at_exit=False` is for kernels in which no CTA is accessed by another one after it has exited."""
        self.shape, self.cta_group = (shape[0], shape[1]), cta_group
        x, y = self.shape
        most = machine(current("A cluster").target).cluster_size_nonportable
        if cta_group not in (1, 2) or x % cta_group or not 1 <= x * y <= most:
            raise Diag.BAD_KERNEL.error(here(), what=f"a cluster of {x} × {y} CTAs in groups of {cta_group}")
        column = sum(1 << (i * x) for i in range(y))
        row = (1 << x) - 1
        stride = sum(1 << i for i in range(0, x, cta_group))
        self.alone = Mask("the CTA itself", lambda at_x, at_y: 1 << (at_x + at_y * x))
        self.sharing_a = Mask("CTAs that share A", lambda at_x, _: column << at_x)
        self.sharing_b = Mask("CTAs that share B", lambda at_x, at_y: stride << (at_x % cta_group + at_y * x))
        self.pair = Mask("the pair", lambda at_x, at_y: ((1 << cta_group) - 1) << (_even(at_x, cta_group) + at_y * x))
        self.sharing = Mask(
            "CTAs that share A or B with the pair",
            lambda at_x, at_y: row << (at_y * x) | ((column * ((1 << cta_group) - 1)) << _even(at_x, cta_group)),
        )
        if self.size > 1 and sync_at_exit:
            current().at_end.append(self.sync)  # no CTA may exit while another can still access its shared memory

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def places(self) -> list[tuple[int, int]]:
        """The coordinates of each rank."""
        return [(rank % self.shape[0], rank // self.shape[0]) for rank in range(self.size)]

    @property
    def leaders(self) -> list[tuple[int, int]]:
        """The coordinates of the pair leaders; of all CTAs if there are no pairs."""
        return [place for place in self.places if place[0] % self.cta_group == 0]

    def rank_of(self, place: tuple[int, int]) -> int:
        """Return the rank of the CTA at a position of the cluster."""
        return place[0] + place[1] * self.shape[0]

    @cached_property
    def rank(self) -> Value:
        return special("cluster_ctarank") if self.size > 1 else literal(0, "u32")

    @cached_property
    def rank_m(self) -> Value:
        """The coordinate along x, which selects rows."""
        return special("cluster_ctaid.x") if self.shape[0] > 1 else literal(0, "u32")

    @cached_property
    def rank_n(self) -> Value:
        """The coordinate along y, which selects columns."""
        return special("cluster_ctaid.y") if self.shape[1] > 1 else literal(0, "u32")

    @property
    def pair_rank(self) -> Value:
        """0 for the leader of a pair, 1 for its peer."""
        return self.rank_m % self.cta_group

    @property
    def leader(self) -> Value:
        """True in the leader of a pair, and in every CTA if there are no pairs."""
        return self.pair_rank == 0

    @property
    def is_first(self) -> Value:
        return self.rank == 0

    @property
    def leader_rank(self) -> Value:
        return self.rank - self.pair_rank

    @property
    def peer_rank(self) -> Value:
        return self.rank ^ 1

    def mask(self, mask: Mask) -> Value:
        """Compute this CTA's mask, 16 bits wide."""
        return valued(mask.of(self.rank_m, self.rank_n), "u32").to("u16")

    def reached(self, mask: Mask, *, leaders: bool) -> int:
        """Count the CTAs whose mask contains a given CTA; the count must be the same for every CTA."""
        senders = self.leaders if leaders else self.places
        masks = [mask.of(*place) for place in senders]
        counts = {sum(int(each) >> self.rank_of(place) & 1 for each in masks) for place in self.places}
        if len(counts) != 1:
            raise Diag.BAD_KERNEL.error(
                here(), what=f"{mask.name} send different numbers of arrivals to the CTAs: {sorted(counts)}"
            )
        return counts.pop()

    def remote(self, place: At, rank: Value) -> At:
        """Map an address of shared memory to the same address in another CTA of the cluster."""
        return At(isa.mapa(place.address, rank, space="shared::cluster", type="u32"))

    def arrive(self) -> None:
        """Arrive at the cluster barrier without releasing memory: only mbarriers that were fenced become visible."""
        isa.barrier.cluster_arrive(sem="relaxed", aligned=True)

    def wait(self) -> None:
        """Wait until all threads of the cluster have arrived."""
        isa.barrier.cluster_wait(sem="acquire", aligned=True)

    def sync(self) -> None:
        """Synchronise all threads of the cluster."""
        if self.size == 1:
            sync_threads()
            return
        isa.barrier.cluster_arrive(sem="release", aligned=True)
        self.wait()


def _even(place: Place, cta_group: int) -> Place:
    return place - place % cta_group
