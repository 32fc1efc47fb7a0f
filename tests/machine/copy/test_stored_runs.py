"""The bytes of shared memory that a store of a box reads are those that reach the tensor, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from warploom import TensorMap
from warploom.machine.copy.boxes import collect_box, stored_runs, write_box

CASES = [
    ((5, 40), (4, 16), "none", np.float32),
    ((33, 104), (8, 64), "128B", np.float16),
    ((7, 24), (8, 32), "64B", np.float16),
    ((3, 9, 64), (2, 4, 72), "none", np.float16),
    ((2, 6, 48), (1, 8, 32), "32B", np.uint8),
]


@pytest.mark.parametrize(("shape", "box", "swizzle", "dtype"), CASES)
def test_a_store_depends_on_its_runs_and_on_nothing_else(shape, box, swizzle, dtype):
    generator = np.random.default_rng()
    array = np.zeros(shape, dtype)
    geometry = TensorMap(array, box=box, swizzle=swizzle).geometry
    address = 1024
    for _ in range(8):
        coords = [int(generator.integers(0, extent)) for extent in reversed(shape)]
        coords[0] -= coords[0] % geometry.element.coordinate_unit
        shared = generator.integers(0, 255, 1 << 15, dtype=np.uint8)
        addresses, width = stored_runs(geometry, coords, address)
        taken = np.zeros(len(shared), np.bool_)
        taken[(addresses[:, None] + np.arange(width)).reshape(-1)] = True

        def stored(contents, coords=coords):
            memory = np.full(array.nbytes, 255, np.uint8)
            write_box(memory, geometry, coords, collect_box(contents, address, geometry))
            return memory

        expected = stored(shared)
        assert np.count_nonzero(expected != 255) == np.count_nonzero(taken)
        np.testing.assert_array_equal(stored(np.where(taken, shared, 255)), expected)
        assert (stored(np.where(taken, 255, shared)) == 255).all()
