"""Dependent launches: the two instructions, where they were asked for."""

from __future__ import annotations

import numpy as np
from tests.trace.harness import run

from warploom.structured import launch_dependents, wait_for_dependencies
from warploom.trace import Array, kernel, s32, thread, warp_roles


def test_a_role_waits_before_it_reads_and_lets_the_next_grid_begin_after():
    @kernel(target="sm_100a")
    def copies(x: Array[s32], y: Array[s32]):
        roles = warp_roles(load=1, idle=1)
        with roles.load:
            wait_for_dependencies()
            y[thread()] = x[thread()]
            launch_dependents()

    x, y = np.random.default_rng().integers(0, 1000, 32).astype(np.int32), np.zeros(32, np.int32)
    text = run(copies, x, y, block=(64, 1, 1))
    assert (x == y).all()
    order = ["griddepcontrol.wait", "ld.global", "st.global", "griddepcontrol.launch_dependents"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
