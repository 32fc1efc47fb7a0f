"""Hopper kernels that may begin before the one in front of them has ended."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warploom
from warploom import launch
from warploom.structured.config.hopper import HopperConfig

CONFIGS = [{"pingpong": True}, {"tile": (128, 64), "num_split_k": 2}]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_role_waits_for_the_kernel_before_and_lets_the_next_one_come(config: dict[str, Any]) -> None:
    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((136, 328), (328, 72)))
    out = np.full((136, 72), np.nan, ml_dtypes.bfloat16)
    texts = []
    for dependent in (False, True):
        chosen = HopperConfig(**config, dependent=dependent)
        call = warploom.matmul.bind(a, b, config=chosen, out=out, target="sm_90a")
        assert call.dependent == dependent
        launch(call)
        assert (out == (a.astype(np.float32) @ b.astype(np.float32)).astype(out.dtype)).all()
        texts.append(warploom.ptx_of(warploom.matmul, a, b, config=chosen, out=out, target="sm_90a"))
    assert "griddepcontrol" not in texts[0]
    for role in texts[1].split("//!wl role ")[1:]:
        first = min(role.index(word) for word in ("mbarrier", "cp.async", "wgmma") if word in role)
        assert role.index("griddepcontrol.wait") < first
        assert "griddepcontrol.launch_dependents" in role
