"""Products on Blackwell: which configuration a request gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from warploom.kernels.calls import major_of, row_stride
from warploom.kernels.sm100.binding import FAMILIES, family_of
from warploom.kernels.sm100.grouped_decode import WIDEST, decode_config
from warploom.ops.arrays import ROUNDED, element_of, staged
from warploom.ops.determinism import CHOICE, SPLIT_REFUSED
from warploom.ops.faults import Faults
from warploom.ops.request import Chosen, Majors, Product, Request
from warploom.structured.config import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    MatmulConfig,
    Problem,
    choose_config,
    violations,
)
from warploom.trace.types import OF_NUMPY

CONFIGS: Mapping[str, type[MatmulConfig]] = {
    "dense": MatmulConfig,
    "grouped": MatmulConfig,
    "blockwise": BlockwiseFP8MatmulConfig,
    "block_scaled": BlockScaledMatmulConfig,
}
"""The configurations of each kind of product."""
_KINDS = ("gemm", "bmm")


def configured(request: Request, faults: Faults) -> Chosen[MatmulConfig] | None:
    """The configuration, the caller's or one that suits the sizes; None where nothing is to be computed."""
    product, to, given = request.product, request.to, request.options.config
    if product.is_empty:
        return None
    majors = (major_of(product.a), _common_major(product))
    fields = _fields(request, majors)
    if given is not None and given.gemm_kind not in (*_KINDS, fields["gemm_kind"]):
        faults.add("config", given, f"gemm_kind={given.gemm_kind!r}: that is another operation")
        return None
    config = _chosen(product, fields) if given is None else _completed(given, fields)
    loaded = ("bias" if config.epilogue_is_1d else "residual") if config.use_tma_epilogue_load else ""
    if loaded and to is not None:
        problem = request.load_problem(loaded)
        if problem:
            faults.add("config", config, f"use_tma_epilogue_load=True: {problem}")
    c_stride = row_stride(to.matrix) if to is not None and config.use_tma_store else None
    a_stride, b_stride = _row_strides(product, majors)
    sizes = Problem(*product.sizes, a_stride, b_stride, c_stride)
    for broken in violations(config) or violations(config, sizes):
        faults.add("config", config, broken)
    if CHOICE.batch_invariant and config.num_split_k > 1:
        faults.add("config", config, f"num_split_k={config.num_split_k}: {SPLIT_REFUSED}")
    if family_of(config) not in FAMILIES:
        faults.add("config", config, f"there is no kernel for {family_of(config)}")
    return Chosen(config, sizes, majors, loaded)


def _fields(request: Request, majors: Majors) -> dict[str, Any]:
    """What follows from the arrays."""
    product = request.product
    fields: dict[str, Any] = {
        "a_type": element_of(product.a),
        "b_type": element_of(product.b),
        "c_type": OF_NUMPY[request.dtype.name],
        "a_major": majors[0] or "k",
        "b_major": majors[1] or "k",
        "use_tma_store": request.is_storable,
        **({"output_types": request.output_types} if request.output_types else {}),
        **({} if product.up is None else {"paired": True, "AB_swapped": False, "use_tma_epilogue_load": False}),
        "gemm_kind": "gmm" if product.kind == "grouped" else "bmm" if product.result.batches else "gemm",
        **product.fields,
    }
    if "starts" in product.extra:
        fields |= {"prefetch_tiles_n": 0, "k_group_size": 1}  # depths are counted in K tiles
    if product.kind == "dense" and product.up is None:
        fields["use_tma_epilogue_load"] = not request.load_problem("residual")
    return fields


def _common_major(product: Product) -> str | None:
    """The major of B, or of both of a pair if it is the same."""
    major = major_of(product.b)
    return major if product.up is None or major_of(product.up) == major else None


def _row_strides(product: Product, majors: Majors) -> list[int]:
    """Elements from row to row of both factors, as the kernel gets them."""
    pairs = zip((product.a, product.b), majors, strict=True)
    held = [(each if major else staged(each[..., :1, :]), major or "k") for each, major in pairs]
    return [row_stride(*each) * product.packing for each in held]


def _chosen(product: Product, fields: dict[str, Any]) -> MatmulConfig:
    """The configuration that suits the sizes; without a load for the epilogue where there is no room for one."""
    (m, n, k, batch), family = product.sizes, CONFIGS[product.kind]
    if product.kind == "grouped":
        rows = -(-m // product.groups)
        if rows <= WIDEST:
            return decode_config(rows, n, k, product.groups, **fields)
        return choose_config(rows, n, k, product.groups, family=family, **fields)
    n = n if product.up is None else 2 * n
    config = choose_config(m, n, k, batch, family=family, **fields)
    if violations(config) and fields.get("use_tma_epilogue_load"):
        return choose_config(m, n, k, batch, family=family, **{**fields, "use_tma_epilogue_load": False})
    return config


def _completed(given: MatmulConfig, fields: dict[str, Any]) -> MatmulConfig:
    """The caller's configuration with the types and majors that the arrays have."""
    names = {"a": "b", "b": "a"} if given.AB_swapped else {"a": "a", "b": "b"}
    stores = given.use_tma_store and fields["use_tma_store"]
    of_pairs = {"paired": False, "output_types": ()}
    changes = {**of_pairs, **fields, "use_tma_store": stores, **({} if stores else {"output_types": ()})}
    for name in ("AB_swapped", "use_tma_epilogue_load"):
        changes.pop(name, None)
    for own, theirs in names.items():
        changes[f"{own}_major"] = fields[f"{theirs}_major"]
        element, asked = fields[f"{theirs}_type"], getattr(given, f"{own}_type")
        changes[f"{own}_type"] = asked if {element, asked} == ROUNDED else element
    config = replace(given, **changes)
    return config if config.stages_outputs else config.replace(output_types=())
