"""The stream-K schedule: every K tile once, even shares, one writer for each tile, and waits that cannot be a circle."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.structured.scheduling import Recorder

from warploom.structured import StreamScheduler, stream_grid

FIELDS = ("m", "n", "batch", "k_tiles", "k_before", "is_partial", "partial_ctas", "_k_start")


def stream(roles, cluster, sizes, arrays):
    return StreamScheduler(sizes[:3], cluster=cluster, k_tiles=sizes[3], swizzle_size=2)


RECORDERS = {
    cluster: Recorder(stream, FIELDS, warps=(("load", 1), ("consume", 1)), cluster=cluster, silent=())
    for cluster in ((1, 1), (2, 1), (1, 2))
}


def seen_by(tiles, k_tiles, sms, cluster=(1, 1)):
    """Return the work items of each CTA in order, with their K tiles."""
    grid = stream_grid(tiles, cluster, k_tiles, sms)
    seen = RECORDERS[cluster].run(grid, (*tiles, k_tiles))
    rows = {cta: [dict(zip(FIELDS, row, strict=True)) for row in found] for cta, found in seen.items()}
    for row in itertools.chain(*rows.values()):
        row["k"] = [(row["_k_start"] + number) % k_tiles for number in range(row["k_tiles"])]
        row["tile"] = (row["m"], row["n"], row["batch"])
    return rows


def check(tiles, k_tiles, sms, cluster=(1, 1)):
    seen = seen_by(tiles, k_tiles, sms, cluster)
    covered, writers, partial = defaultdict(list), {}, defaultdict(list)
    for cta, rows in seen.items():
        for place, row in enumerate(rows):
            assert row["k_tiles"] >= 1
            assert row["k_before"] == (rows[place - 1]["k_tiles"] if place else 0)
            covered[row["tile"]] += row["k"]
            if row["is_partial"]:
                assert place == 0  # a CTA stores its partial tile before it waits
                partial[row["tile"]].append(cta)
            else:
                assert row["tile"] not in writers
                writers[row["tile"]] = (cta, row["partial_ctas"])
    x, y = cluster
    whole = itertools.product(range(-(-tiles[0] // x) * x), range(-(-tiles[1] // y) * y), range(tiles[2]))
    assert set(covered) == set(writers) == set(whole)
    assert all(sorted(each) == list(range(k_tiles)) for each in covered.values())
    for tile, (cta, others) in writers.items():
        assert partial[tile] == [cta - x * back for back in range(others, 0, -1)]  # all launched before
    shares = {sum(row["k_tiles"] for row in rows) for rows in seen.values()}
    assert max(shares) - min(shares) <= 1
    return seen


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(1, 2)), st.integers(1, 9), st.integers(1, 12),
    st.sampled_from(sorted(RECORDERS)),
)  # fmt: skip
def test_any_problem(tiles, k_tiles, sms, cluster):
    check(tiles, k_tiles, sms, cluster)


@pytest.mark.parametrize("k_tiles", [1, 4])
def test_full_waves_are_not_shared(k_tiles):
    seen = check((4, 6, 1), k_tiles, 8)
    assert all(row["k_tiles"] == k_tiles and not row["partial_ctas"] for row in itertools.chain(*seen.values()))


def test_one_tile_is_shared_by_all():
    seen = check((1, 1, 1), 7, 3)
    assert [rows[0]["k"] for _, rows in sorted(seen.items())] == [[0, 1, 2], [3, 4], [5, 6]]


def test_with_a_full_wave_a_tile_has_at_most_two_ctas():
    """Nine tiles on eight CTAs: the one too many is not cut into eight, but all are shared by neighbours."""
    seen = check((9, 1, 1), 16, 8)
    assert max(row["partial_ctas"] for row in itertools.chain(*seen.values())) == 1


def test_the_same_k_tiles_are_read_at_the_same_time():
    """Of 13 tiles on 8 CTAs: at every step the CTAs are at no more than two K tiles, which then are in L2."""
    seen = check((13, 1, 1), 16, 8)
    order = [list(itertools.chain(*(row["k"] for row in rows))) for rows in seen.values()]
    assert all(len(set(step)) <= 2 for step in zip(*order, strict=True))
