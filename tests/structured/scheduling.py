"""Kernels that do nothing but write down, role by role, which tiles they were given."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np
from tests.trace.harness import accepted

from warploom import launch
from warploom.structured import Cluster
from warploom.trace import Array, Variable, cta_index, f32, kernel, s32, special, warp_roles, when

SCHEDULES = (("eager", 0), ("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2))
WARPS = {"epilogue": 4, "scheduler": 1, "load": 1, "mma": 1}
NOTHING = -7
NO_ARRAYS = (np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32))


@dataclass(frozen=True)
class Recorder:
    """A kernel whose working roles log fields of the tiles of `make(roles, cluster, sizes, arrays)`."""

    make: object
    fields: tuple[str, ...]
    warps: tuple[tuple[str, int], ...] = tuple(WARPS.items())
    cluster: tuple[int, int] = (1, 1)
    cta_group: int = 1
    silent: tuple[str, ...] = ("scheduler",)

    @property
    def workers(self):
        return [name for name, _ in self.warps if name not in self.silent]

    @property
    def threads(self):
        return 32 * sum(count for _, count in self.warps)

    @functools.cached_property
    def kernel(self):
        fields, workers = self.fields, self.workers

        @kernel(target="sm_100a")
        def record(
            log: Array[s32], turns: Array[s32], ends: Array[s32], experts: Array[s32], scales: Array[f32],
            a: s32, b: s32, c: s32, k: s32,
        ):  # fmt: skip
            roles = warp_roles(**dict(self.warps))
            cluster = Cluster(self.cluster, self.cta_group)
            tiles = self.make(roles, cluster, (a, b, c, k), (ends, experts, scales))
            cta = (cta_index("z") * special("nctaid.y") + cta_index("y")) * special("nctaid.x") + cta_index("x")
            for number, name in enumerate(workers):
                role = getattr(roles, name)
                with role:
                    last, turn = role.thread == role.threads - 1, Variable(s32, 0)
                    for tile in tiles:
                        with when(last):
                            for place, field in enumerate(fields):
                                value = getattr(tile, field)
                                log[number, cta, turn, place] = value.bits(s32) if value.type == f32 else value.to(s32)
                        turn += 1
                    with when(last):
                        turns[number, cta] = turn

        return record

    def bind(self, grid, sizes, arrays=NO_ARRAYS, most=256):
        ctas, shape = int(np.prod(grid)), (len(self.workers), int(np.prod(grid)))
        log = np.full((*shape, most, len(self.fields)), NOTHING, np.int32)
        turns = np.full((len(self.workers), ctas), NOTHING, np.int32)
        block, cluster = (self.threads, 1, 1), (*self.cluster, 1)
        return self.kernel.bind(log, turns, *arrays, *sizes, grid=grid, block=block, cluster=cluster), log, turns

    def text(self, sizes=(1, 1, 1, 1)):
        """The kernel's PTX, which ptxas must assemble."""
        return accepted(self.bind((*self.cluster, 1), sizes)[0])

    def run(self, grid, sizes, arrays=NO_ARRAYS, most=256, **options):
        """Return what each started CTA saw; all of its roles must have seen the same."""
        bound, log, turns = self.bind(grid, sizes, arrays, most)
        launch(bound, **options)
        seen = {}
        for cta in range(turns.shape[1]):
            count = turns[0, cta]
            assert (turns[:, cta] == count).all(), f"roles of CTA {cta} end after {turns[:, cta]} tiles"
            assert (log[:, cta] == log[0, cta]).all(), f"roles of CTA {cta} saw different tiles"
            assert (log[0, cta, max(count, 0) :] == NOTHING).all()
            if count != NOTHING:
                seen[cta] = [tuple(map(int, row)) for row in log[0, cta, :count]]
        return seen


def everything(seen):
    """All that was seen, sorted."""
    return sorted(row for rows in seen.values() for row in rows)


def counts(text):
    """The arrivals that barriers are initialised with, in order."""
    return [int(count) for count in re.findall(r"mbarrier\.init\S* \[[^]]*\], (\d+);", text)]
