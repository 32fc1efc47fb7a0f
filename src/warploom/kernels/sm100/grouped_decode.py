"""The configuration of the grouped GEMM for a few rows per group, as in decoding.

Rows are along N of the MMA, whose tiles can be as narrow as eight, and weights along M: every weight is loaded once. A
stage holds several K tiles, because the MMAs of a narrow tile complete quickly.
"""

from __future__ import annotations

from typing import Any

from warploom.hardware.tensor_maps import STRIDE_ALIGNMENT
from warploom.hardware.tmem import SCALE_CHUNK_ROWS
from warploom.structured.config import BlockScaledMatmulConfig, MatmulConfig
from warploom.structured.config.output import MACHINE
from warploom.structured.config.shared_memory import align_up, ceil_div

WIDEST = 48
"""Maximum rows of a narrow tile."""
_ROWS_OF_A_STAGE = 64
_SCALED_ROWS = (8, 16, 32, 64)
"""Rows of a narrow tile whose scale factors can start anywhere in their chunk."""


def decode_config(
    rows: int,
    n: int,
    k: int,
    groups: int = 1,
    *,
    family: type[MatmulConfig] = MatmulConfig,
    sms: int = MACHINE.sms,
    **fields: Any,
) -> MatmulConfig:
    """Return the configuration of a grouped GEMM for `rows` rows per group; `fields` are in the caller's order."""
    fixed: dict[str, Any] = {"gemm_kind": "gmm", "cta_group": 1, "AB_swapped": True}
    config = family(**fields | fixed).swap_AB_type()
    mma_n = min(align_up(rows, 16 if config.c_bytes == 1 else 8), WIDEST)
    mma_m = 128 if groups * ceil_div(n, 128) >= sms else 64  # enough tiles that all SMs load
    tiles = config.k_tiles(k)
    k_group = next(size for size in (4, 2, 1) if tiles % size == 0 and size * mma_n <= _ROWS_OF_A_STAGE)
    if isinstance(config, BlockScaledMatmulConfig):
        mma_m, k_group = SCALE_CHUNK_ROWS, 1
        mma_n = max(next(size for size in _SCALED_ROWS if size >= rows), mma_n if config.c_bytes == 1 else 0)
    wanted: dict[str, Any] = {
        "mma_shape": (mma_m, mma_n, config.mma.k),
        "k_group_size": k_group,
        "use_tma_store": n * config.c_bytes % STRIDE_ALIGNMENT == 0,
    }
    return config.replace(**wanted | {name: fields[name] for name in wanted if name in fields})
