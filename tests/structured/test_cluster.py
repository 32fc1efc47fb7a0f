"""Masks and barrier counts of clusters, against the tables of the reference system."""

from __future__ import annotations

import pytest

from warploom.diagnostics import TraceError
from warploom.structured import Cluster, EveryThread, FirstLanes, OncePerWarp, TensorCoreCommit
from warploom.trace.builder import Builder, building
from warploom.trace.language.roles import warp_roles

SHAPES = [(1, 1, 1), (2, 1, 1), (2, 1, 2), (4, 2, 1), (4, 4, 1), (4, 4, 2), (8, 2, 1), (8, 2, 2), (2, 4, 2)]
COUNTS = {
    (1, 1, 1): (1, 128, 128, 5),
    (2, 1, 1): (2, 128, 128, 10),
    (2, 1, 2): (1, 256, 256, 9),
    (4, 2, 1): (5, 128, 128, 37),
    (4, 4, 1): (7, 128, 128, 71),
    (4, 4, 2): (5, 256, 256, 69),
    (8, 2, 1): (9, 128, 128, 73),
    (8, 2, 2): (5, 256, 256, 69),
    (2, 4, 2): (4, 256, 256, 36),
}
"""Arrivals by cluster and pair size: input empty, accumulator empty, deallocation, input empty of blockwise FP8."""


def made(x: int, y: int, cta_group: int) -> Cluster:
    with building(Builder("k", "sm_100a", 224)):
        return Cluster((x, y), cta_group)


@pytest.mark.parametrize("shape", SHAPES)
def test_counts_of_the_reference_come_out_of_roles_and_signals(shape: tuple[int, int, int]) -> None:
    x, y, cta_group = shape
    with building(Builder("k", "sm_100a", 224)):
        roles = warp_roles(epilogue=4, scheduler=1, load=1, mma=1)
        cluster = Cluster((x, y), cta_group)
        commits = TensorCoreCommit(roles.mma, cluster.sharing).arrivals(cluster)
        drained = EveryThread(roles.epilogue, "leader").arrivals(cluster)
        scales = FirstLanes(roles.epilogue, first=cluster.size).arrivals(cluster)
        assert OncePerWarp(roles.epilogue).arrivals(cluster) == roles.epilogue.count
        assert EveryThread(roles.load, "first").arrivals(cluster) == 32 * cluster.size
        assert (commits, drained, roles.epilogue.threads * cta_group, commits + scales) == COUNTS[shape]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_cta_gets_each_slice_once_and_every_reader_is_counted(shape: tuple[int, int, int]) -> None:
    x, y, cta_group = shape
    cluster = made(*shape)
    places = [(i, j) for j in range(y) for i in range(x)]
    for i, j in places:
        bit = 1 << (i + j * x)
        a_from = [p for p in places if int(cluster.sharing_a.of(*p)) & bit]
        b_from = [p for p in places if int(cluster.sharing_b.of(*p)) & bit]
        assert sorted(p[1] for p in a_from) == list(range(y))
        assert {p[0] for p in a_from} == {i}
        assert sorted(p[0] // cta_group for p in b_from) == list(range(x // cta_group))
        assert {(p[0] % cta_group, p[1]) for p in b_from} == {(i % cta_group, j)}
        pair = [p for p in places if p[1] == j and p[0] // cta_group == i // cta_group]
        readers = {p for p in places if p in pair or bit_of(cluster, cluster.sharing_a, (i, j), p)}
        assert bit & int(cluster.pair.of(i, j))
        heard_by = {p for p in cluster.leaders if int(cluster.sharing.of(*p)) & bit}
        assert {(p[0] - p[0] % cta_group, p[1]) for p in readers} <= heard_by


def bit_of(cluster: Cluster, mask: object, sender: tuple[int, int], to: tuple[int, int]) -> bool:
    return bool(int(mask.of(*sender)) >> cluster.rank_of(to) & 1)  # type: ignore[attr-defined]


def test_masks_of_one_cta_are_the_reference_s() -> None:
    cluster = made(4, 4, 2)
    assert [int(mask.of(1, 2)) for mask in (cluster.sharing_a, cluster.sharing_b, cluster.pair)] == [
        0x2222,
        0x0A00,
        0x0300,
    ]
    assert [int(mask.of(0, 2)) for mask in (cluster.sharing_a, cluster.sharing_b, cluster.pair)] == [
        0x1111,
        0x0500,
        0x0300,
    ]
    assert int(cluster.sharing.of(0, 2)) == 0x3F33


@pytest.mark.parametrize("shape", [(3, 1, 2), (0, 1, 1), (17, 1, 1), (2, 1, 3), (4, 8, 1)])
def test_a_cluster_that_no_gpu_has_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(TraceError, match=r"\d × \d"):
        made(*shape)
