"""Products on Blackwell: which configuration a request gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warploom.heuristics.sm100 import choose_config
from warploom.kernels.call import major_of, row_stride
from warploom.kernels.sm100.binding import FAMILIES, family_of
from warploom.kernels.sm100.grouped_decode import WIDEST, decode_config
from warploom.ops.determinism import CHOICE, SPLIT_REFUSED
from warploom.ops.planning.arrays import staged
from warploom.ops.planning.config_fields import common_fields, completed, majors_of
from warploom.ops.planning.request import GPU, Chosen, Majors, Product, Request
from warploom.ops.planning.violations import Faults
from warploom.structured.config import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    MatmulConfig,
    Problem,
    violations,
)
from warploom.structured.config.output import MACHINE

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
    majors = majors_of(product, major_of)
    fields = _fields(request, majors)
    if given is not None and given.gemm_kind not in (*_KINDS, fields["gemm_kind"]):
        faults.add("config", given, f"gemm_kind={given.gemm_kind!r}: that is another operation")
        return None
    config = _chosen(product, fields) if given is None else completed(given, _demanded(fields))
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
    """What follows from the arrays, and what a choice is not free in."""
    product = request.product
    kind = "gmm" if product.kind == "grouped" else "bmm" if product.result.batches else "gemm"
    fields = {"gemm_kind": kind, **common_fields(request, majors)}
    if product.up is not None:
        fields |= {"AB_swapped": False, "use_tma_epilogue_load": False}
    if "starts" in product.extra:
        fields |= {"prefetch_tiles_n": 0, "k_group_size": 1}  # depths are counted in K tiles
    if product.kind == "dense" and product.up is None:
        fields["use_tma_epilogue_load"] = request.is_storable and not request.load_problem("residual")
    return fields


def _demanded(fields: dict[str, Any]) -> dict[str, Any]:
    """Those of the fields that a caller's configuration must have."""
    return {name: value for name, value in fields.items() if name not in ("AB_swapped", "use_tma_epilogue_load")}


def _row_strides(product: Product, majors: Majors) -> list[int]:
    """Elements from row to row of both factors, as the kernel gets them."""
    pairs = zip((product.a, product.b), majors, strict=True)
    held = [(each if major else staged(each[..., :1, :]), major or "k") for each, major in pairs]
    return [row_stride(*each) * product.packing for each in held]


def _chosen(product: Product, fields: dict[str, Any]) -> MatmulConfig:
    """The configuration that suits the sizes; without a load for the epilogue where there is no room for one."""
    (m, n, k, batch), family, gpu = product.sizes, CONFIGS[product.kind], GPU.get()
    fields = {**fields, "sms": gpu.sms if gpu else MACHINE.sms}
    n = n if product.up is None else 2 * n
    if product.kind == "grouped":
        rows = -(-m // product.groups)
        if rows <= WIDEST and product.up is None:  # pairs are not swapped
            return decode_config(rows, n, k, product.groups, **fields)
        return choose_config(rows, n, k, product.groups, family=family, **fields)
    config = choose_config(m, n, k, batch, family=family, **fields)
    if violations(config) and fields.get("use_tma_epilogue_load"):
        return choose_config(m, n, k, batch, family=family, **{**fields, "use_tma_epilogue_load": False})
    return config
