"""Allowed values of each field on its own: checked before anything is derived from the fields."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from warploom.hardware.swizzles import SWIZZLES

INPUT_TYPES = ("bf16", "f16", "tf32", "f32", "e4m3", "e5m2")
SCALED_INPUT_TYPES = ("e4m3", "e5m2", "e2m1")
BLOCKWISE_INPUT_TYPES = ("e4m3", "e5m2")
OUTPUT_TYPES = ("bf16", "f16", "f32", "e4m3", "e5m2")

_FLAGS = (
    "AB_swapped",
    "dependent",
    "epilogue_is_1d",
    "gated",
    "pingpong",
    "register_based_epilogue",
    "residual_in_place",
    "split_in_cluster",
    "stream_k",
    "use_tma_epilogue_load",
    "use_tma_store",
)
CHOICES: Mapping[str, Collection[object]] = {
    "a_type": (*INPUT_TYPES, "e2m1"),
    "b_type": (*INPUT_TYPES, "e2m1"),
    "c_type": OUTPUT_TYPES,
    "precision": ("tf32", "tf32x3"),
    "epilogue_dtype": ("f32", "bf16", "f16"),
    "a_major": ("k", "mn"),
    "b_major": ("k", "mn"),
    "cta_group": (1, 2),
    "gemm_kind": ("gemm", "bmm", "gmm", "block_scaled_1d2d_fp8"),
    "scheduler": ("clc", "static"),
    "raster_order": ("along_m", "along_n"),
    "block_swizzle_size": (0, 1, 2, 4, 8),
    "a_swizzle": tuple(SWIZZLES),
    "b_swizzle": tuple(SWIZZLES),
    "c_swizzle": ("none", "32B", "64B", "128B"),
    "epi_load_swizzle": ("none", "32B", "64B", "128B"),
    "scaling_kind": ("mxf8f6f4", "mxf4", "mxf4nvf4"),
    "scale_type": ("ue8m0", "ue4m3", "f32", "bf16"),
    **dict.fromkeys(_FLAGS, (False, True)),
}
"""Fields with a fixed set of values."""
MINIMUMS: Mapping[str, int] = {
    "swizzle_size": 0,
    "consumers": 1,
    "mmas_in_flight": 0,
    "num_split_k": 1,
    "k_group_size": 1,
    "prefetch_tiles_n": 0,
    "num_accum_pipeline_stages": 1,
    "num_clc_pipeline_stages": 0,
    "num_output_stages": 1,
    "num_tma_epilogue_pipeline_stages": 1,
    "num_pipeline_stages": 1,
    "stage_columns": 1,
    "tensor_memory_columns": 1,
    "reserved_shared_bytes": 0,
    "vec_sf_size": 1,
    "scale_granularity": 1,
}
"""Integer fields and their smallest value."""
LISTS: Mapping[str, Collection[str]] = {"output_types": OUTPUT_TYPES}
"""Fields that are tuples of any length, and the allowed elements."""
SHAPES: Mapping[str, int] = {"mma_shape": 3, "cluster_shape": 3, "output_tile_shape": 2, "tile": 2}
"""Fields that are tuples of positive integers, and their length."""


def violation(field: str, value: object, reason: str) -> str:
    """Return the sentence for a broken rule, such as `tile (192, 256) needs 384 accumulator registers …`."""
    subject = f"{field} {value}" if isinstance(value, tuple) else f"{field}={value!r}"
    return f"{subject} {reason}"


def _is_count(value: object, minimum: int) -> bool:
    return type(value) is int and value >= minimum


def _is_choice(value: object, choices: Collection[object]) -> bool:
    """Compare the type too: 1 is not an allowed value of a flag."""
    return value in choices and type(value) is type(next(iter(choices)))


def field_violations(
    fields: Mapping[str, object],
    choices: Mapping[str, Collection[object]] = CHOICES,
    minimums: Mapping[str, int] = MINIMUMS,
) -> Iterator[str]:
    """Yield a sentence for each field whose value no configuration may have; None is left to be derived."""
    for field, value in fields.items():
        if value is None:
            continue
        if field in choices and not _is_choice(value, choices[field]):
            yield violation(field, value, f"must be one of {', '.join(map(str, choices[field]))}")
        elif field in LISTS and not (isinstance(value, tuple) and all(each in LISTS[field] for each in value)):
            yield violation(field, value, f"must be a tuple of {', '.join(LISTS[field])}")
        elif field in minimums and not _is_count(value, minimums[field]):
            yield violation(field, value, f"must be an integer of at least {minimums[field]}")
        elif field in SHAPES and not (
            isinstance(value, tuple) and len(value) == SHAPES[field] and all(_is_count(size, 1) for size in value)
        ):
            yield violation(field, value, f"must be a tuple of {SHAPES[field]} positive integers")
