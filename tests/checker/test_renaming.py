"""Renamings of places, against permutations that are written out byte by byte."""

from __future__ import annotations

import numpy as np
import pytest

from warploom.checker.renaming import Renaming, Span, Unmovable

RNG = np.random.default_rng()
SHARED = ("shared", 0)
SIZE = 256


def blocks() -> tuple[list[tuple[int, int, int]], np.ndarray]:
    """Blocks of random sizes that change places with others of their size, and the permutation of all bytes."""
    size = int(RNG.choice([8, 16, 24]))
    places = size * np.arange(SIZE // size)
    chosen = RNG.permutation(places)[: RNG.integers(2, len(places))]
    target = RNG.permutation(chosen)
    whole = np.arange(SIZE)
    for low, to in zip(chosen, target, strict=True):
        whole[low : low + size] = np.arange(to, to + size)
    moves = zip(chosen, target, strict=True)
    return [(int(low), int(low) + size, int(to) - int(low)) for low, to in moves], whole


def renaming(parts: list[tuple[int, int, int]]) -> Renaming | None:
    spans = ((Span(SHARED, low, high, low), Span(SHARED, low + by, high + by, low + by)) for low, high, by in parts)
    return Renaming.of(spans)


def everywhere(made: Renaming) -> np.ndarray:
    return made.addresses(SHARED, np.arange(SIZE), 1)


def test_blocks_go_to_their_places():
    for _ in range(200):
        parts, whole = blocks()
        made = renaming(parts)
        assert made is not None
        assert (everywhere(made) == whole).all()


def test_inverses_compositions_and_powers_are_those_of_the_permutations():
    for _ in range(100):
        (one, first), (other, second) = blocks(), blocks()
        a, b = renaming(one), renaming(other)
        assert a is not None
        assert b is not None
        assert (everywhere(a.inverse())[first] == np.arange(SIZE)).all()
        assert (everywhere(b.after(a)) == second[first]).all()
        times = int(RNG.integers(0, 9))
        whole = np.arange(SIZE)
        for _ in range(times):
            whole = first[whole]
        assert (everywhere(a.power(times)) == whole).all()


def test_cells_move_with_their_bytes():
    for _ in range(100):
        parts, whole = blocks()
        made = renaming(parts)
        assert made is not None
        cells = RNG.integers(0, 99, SIZE // 8)
        moved = np.empty_like(cells)
        moved[whole[::8] // 8] = cells
        assert (made.cells(SHARED, cells, 3) == moved).all()


def test_cells_of_which_a_part_moves_have_no_place():
    for _ in range(100):
        parts, whole = blocks()
        made = renaming(parts)
        assert made is not None
        cells = RNG.integers(0, 99, SIZE // 16)
        places = whole.reshape(-1, 16)
        found = made.cells(SHARED, cells, 4)
        if not (places == places[:, :1] + np.arange(16)).all() or (places[:, 0] % 16).any():
            assert found is None
        elif found is not None:
            moved = np.empty_like(cells)
            moved[places[:, 0] // 16] = cells
            assert (found == moved).all()


@pytest.mark.parametrize("parts", [
    [(0, 8, 8)],  # two blocks in one place
    [(0, 8, 8), (8, 16, 8)],
    [(0, 8, 8), (4, 12, 0)],  # bytes that would go to two places
    [(0, 8, 8), (8, 16, -8), (0, 4, 0)],
    [(0, 16, 8), (8, 16, -8)],
])  # fmt: skip
def test_maps_that_are_no_bijections_are_refused(parts):
    assert renaming(parts) is None


def test_an_access_whose_bytes_part_is_refused():
    made = renaming([(0, 8, 16), (8, 16, 0), (16, 24, -16)])
    assert made is not None
    assert made.addresses(SHARED, np.array([2]), 4)[0] == 18
    with pytest.raises(Unmovable):
        made.addresses(SHARED, np.array([4]), 8)
    assert made.addresses(SHARED, np.array([0]), 24)[0] == 0  # all bytes of both: the same bytes in another order


def test_columns_of_tmem_move_in_all_lanes():
    space = ("tensor", 0)
    made = Renaming.of(
        [
            (Span(space, 0, 128, 0), Span(space, 128, 256, 128)),
            (Span(space, 128, 256, 128), Span(space, 0, 128, 0)),
        ]
    )
    assert made is not None
    assert made.addresses(space, np.array([5 << 16 | 3]), 4 * 8)[0] == 5 << 16 | 131
    assert made.keeps(space, 0, 256)
    assert not made.keeps(space, 0, 128)
    cells = RNG.integers(0, 9, 128 * 512)
    moved = made.cells(space, cells, 2)
    assert moved is not None
    table, wanted = moved.reshape(128, 512), cells.reshape(128, 512)
    assert (table[:, 128:256] == wanted[:, :128]).all()
    assert (table[:, :128] == wanted[:, 128:256]).all()
    assert (table[:, 256:] == wanted[:, 256:]).all()
