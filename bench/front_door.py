"""Kernel families through the public operations, against PyTorch's."""

from __future__ import annotations

from typing import Any

import torch
from dense import held
from families import ALPHA, FAMILIES
from inputs import Maker
from measuring import Arguments, Options, call_of, rotating, timed, wrong_bits
from tables import Row

import warploom


def family_arguments(name: str, tensors: dict[str, torch.Tensor]) -> tuple[Any, Arguments]:
    """Select the operation of a family, and its arguments."""
    if name in ("fp8", "batched"):
        scaled = {"alpha": ALPHA} if name == "fp8" else {}
        return warploom.matmul, {"a": tensors["a"], "b": tensors["b"].mT, **scaled, "out": tensors["out"]}
    if name == "grouped":
        return warploom.grouped_matmul, {**tensors, "b": tensors["b"].mT}
    return warploom.blockwise_matmul, tensors


def wrong_family(name: str, shape: tuple[Any, ...], device: str) -> str:
    tensors = FAMILIES[name].make(Maker(device, exact=True), *shape)
    operation, given = family_arguments(name, tensors)
    run = call_of(operation, given)
    return wrong_bits(lambda: run(given), tensors["out"], FAMILIES[name].reference(tensors).to(torch.bfloat16))


def family_row(name: str, shape: tuple[Any, ...], options: Options) -> Row:
    family = FAMILIES[name]
    held(wrong_family(name, shape, "cuda"))
    tensors = rotating(lambda: family.make(Maker("cuda"), *shape))
    operation, first = family_arguments(name, tensors[0])
    call = call_of(operation, first)
    sides = {"peer": family.peer, "ours": lambda each: call(family_arguments(name, each)[1])}
    times, itself = timed(sides, tensors, family.flops(tensors[0]), options)
    return {
        "ratio": times["peer"] / times["ours"],
        "us": times["ours"],
        "peer_us": times["peer"],
        "peer_against_itself": itself,
        "tflops": family.flops(tensors[0]) / times["ours"] / 1e6,
        "sets": len(tensors),
    }
