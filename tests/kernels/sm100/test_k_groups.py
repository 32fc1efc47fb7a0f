"""Groups of K tiles of which the last is not whole: what is beyond K counts as zeros."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warploom
from warploom import MatmulConfig, launch

CONFIGS = [
    {"cta_group": 1, "mma_shape": (128, 64, 16), "k_group_size": 4},
    {"cta_group": 2, "mma_shape": (256, 64, 16), "k_group_size": 2},
    {"cta_group": 1, "mma_shape": (64, 16, 16), "AB_swapped": True, "k_group_size": 4},
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("k", [8, 136, 328])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_last_group_need_not_be_whole(config: dict[str, Any], k: int, transposed: bool) -> None:
    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((136, k), (k, 72)))
    if transposed:
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    out = np.full((136, 72), np.nan, np.float32)
    call = warploom.matmul.bind(a, b, config=MatmulConfig(**config, c_type="f32"), out_dtype=np.float32, out=out)
    for schedule in ("eager", "lazy", "random"):
        out[...] = np.nan
        launch(call, schedule=schedule)
        assert (out == a.astype(np.float32) @ b.astype(np.float32)).all()
