"""What the value of a field may be, taken by itself: all that must hold before anything can be derived."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from warploom.hardware.swizzles import SWIZZLES

INPUT_TYPES = ("bf16", "f16", "tf32", "f32", "e4m3", "e5m2")
SCALED_INPUT_TYPES = ("e4m3", "e5m2", "e2m1")
OUTPUT_TYPES = ("bf16", "f16", "f32", "e4m3", "e5m2")

_SWITCHES = (
    "AB_swapped",
    "dependent",
    "epilogue_is_1d",
    "paired",
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
    **dict.fromkeys(_SWITCHES, (False, True)),
}
LEAST: Mapping[str, int] = {
    "band": 0,
    "consumers": 1,
    "depth": 0,
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
EACH: Mapping[str, Collection[str]] = {"output_types": OUTPUT_TYPES}
"""What a field has any number of."""
DIMENSIONS: Mapping[str, int] = {"mma_shape": 3, "cluster_shape": 3, "output_tile_shape": 2, "tile": 2}


def said(field: str, value: object, reason: str) -> str:
    """A violation as it is told: which field, its value, why not."""
    return f"{field}={value!r}: {reason}"


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and value >= least


def _is_choice(value: object, choices: Collection[object]) -> bool:
    """Whether it is one of some values, all of one type: 1 is not True."""
    return value in choices and type(value) is type(next(iter(choices)))


def form_violations(
    fields: Mapping[str, object],
    choices: Mapping[str, Collection[object]] = CHOICES,
    least: Mapping[str, int] = LEAST,
) -> Iterator[str]:
    """The fields whose value no configuration could have."""
    for field, value in fields.items():
        if value is None:
            continue
        if field in choices and not _is_choice(value, choices[field]):
            yield said(field, value, f"must be one of {', '.join(map(str, choices[field]))}")
        elif field in EACH and not (isinstance(value, tuple) and all(each in EACH[field] for each in value)):
            yield said(field, value, f"must be a tuple of {', '.join(EACH[field])}")
        elif field in least and not _is_count(value, least[field]):
            yield said(field, value, f"must be an integer of at least {least[field]}")
        elif field in DIMENSIONS and not (
            isinstance(value, tuple) and len(value) == DIMENSIONS[field] and all(_is_count(size, 1) for size in value)
        ):
            yield said(field, value, f"must be a tuple of {DIMENSIONS[field]} positive integers")
