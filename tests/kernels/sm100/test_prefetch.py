"""Weights that are loaded before the rest: the result is the same, and they do not wait for the previous grid."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warploom
from warploom import MatmulConfig, launch

CONFIGS = [
    {"cta_group": 1, "mma_shape": (128, 64, 16), "prefetch_tiles_n": 3},
    {"cta_group": 2, "mma_shape": (256, 64, 16), "prefetch_tiles_n": 4},
    {"cta_group": 1, "mma_shape": (64, 16, 16), "AB_swapped": True, "prefetch_tiles_n": 2},
    {"cta_group": 1, "mma_shape": (128, 64, 16), "prefetch_tiles_n": 2, "num_pipeline_stages": 2},
]


def bound(config: dict[str, Any], k: int) -> tuple[warploom.Launch, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((131, k), (k, 200)))
    out = np.full((131, 200), np.nan, np.float32)
    made = MatmulConfig(**config, c_type="f32")
    call = warploom.matmul.bind(a, b, config=made, out_dtype=np.float32, out=out)
    return call, out, a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("k", [8, 136, 712])
def test_results_are_right_in_any_order_of_loads(config: dict[str, Any], k: int) -> None:
    call, out, expected = bound(config, k)
    for schedule in ("eager", "lazy", "random"):
        out[...] = np.nan
        launch(call, schedule=schedule)
        assert (out == expected).all()


def test_weights_are_loaded_before_the_wait_and_the_rest_after_it() -> None:
    call, _, _ = bound(CONFIGS[0], 712)
    text = warploom.ptx_of(
        warploom.matmul,
        *(np.zeros(s, ml_dtypes.bfloat16) for s in ((131, 712), (712, 200))),
        config=MatmulConfig(**CONFIGS[0]),
    )
    load = text[text.index("role load") : text.index("role mma")]
    wait, copies = load.index("griddepcontrol.wait"), load.count("cp.async.bulk.tensor")
    assert load[:wait].count("cp.async.bulk.tensor") == 1
    assert copies == 4
    assert call.entry == "matmul"
