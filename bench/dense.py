"""Single GEMMs against PyTorch's: arguments, checks and timing of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from compiled import compiled_peer, fused
from inputs import Maker
from measuring import Arguments, Options, Side, call_of, rotating, timed, wrong_bits
from shapes import Shape, flops_of
from tables import Row, one_line

import warploom
from warploom.heuristics import EMULATED, choose, key_of, shared
from warploom.structured.config.sm90 import USUAL_STAGES, HopperConfig

TOLERANCE = 2.0**-7
Majors = tuple[str, str]
K_MAJOR: Majors = ("k", "k")
N_MAJOR: Majors = ("k", "mn")
"""Contiguous dimension of A and of B: B as N × K, like weights, and as K × N."""
INPUTS = "A ~ N(0, 1), B ~ N(0, 1) / sqrt(K), bias and residual ~ N(0, 1), rounded to bfloat16; fresh in every run"


class WrongError(Exception):
    """A wrong result; the case is not timed."""


def plain_arguments(maker: Maker, shape: Shape, majors: Majors = K_MAJOR) -> Arguments:
    """Make the arguments, with B as N × K by default."""
    m, n, k = shape
    a, b = (
        maker.values(*((rows, k) if major == "k" else (k, rows)), dtype=torch.bfloat16)
        for rows, major in zip((m, n), majors, strict=True)
    )
    b = b if maker.exact else b * k**-0.5
    return {
        "a": a if majors[0] == "k" else a.t(),
        "b": b.t() if majors[1] == "k" else b,
        "out": maker.out(m, n),
    }


def fused_arguments(maker: Maker, shape: Shape) -> Arguments:
    m, n, _ = shape
    given = plain_arguments(maker, shape)
    out = given.pop("out")
    added = {
        "bias": maker.values(n, dtype=torch.bfloat16),
        "activation": "gelu_tanh",
        "residual": maker.values(m, n, dtype=torch.bfloat16),
    }
    return {**given, **added, "out": out}


def plain_peer(each: Arguments) -> torch.Tensor:
    return torch.mm(each["a"], each["b"], out=each["out"])


def fused_peer(each: Arguments) -> torch.Tensor:
    return fused(each["a"], each["b"], each["bias"], each["residual"])


def plain_reference(given: Arguments) -> torch.Tensor:
    """Check exact inputs bit for bit."""
    return (given["a"].float() @ given["b"].float()).to(torch.bfloat16)


def wrong_plain(shape: Shape, device: str, majors: Majors = K_MAJOR, **options: Any) -> str:
    given = plain_arguments(Maker(device, exact=True), shape, majors)
    run = call_of(warploom.matmul, given, **options)
    return wrong_bits(lambda: run(given), given["out"], plain_reference(given))


def wrong_fused(shape: Shape, device: str) -> str:
    given = fused_arguments(Maker(device), shape)
    names = ("a", "b", "bias", "residual")
    want = fused(*(given[name].float() for name in names))
    call_of(warploom.matmul, given)(given)
    error = ((given["out"].float() - want).abs() / (want.abs() + 1)).max().item()
    return "" if error <= TOLERANCE else f"off by {error:.3g}"


def wrong_mn_major(shape: Shape, device: str) -> str:
    return wrong_plain(shape, device, N_MAJOR)


def held(wrong: str) -> None:
    if wrong:
        raise WrongError(wrong)


def chosen(shape: Shape, **more: Any) -> HopperConfig:
    """Name the configuration that a call uses, plain or with `fused=True, residual=True`."""
    m, n, k = shape
    key = key_of("dense", m, n, k, a_type="bf16", c_type="bf16", use_tma_store=n % 8 == 0, **more)
    device = EMULATED["sm_90a"]
    return choose(shared(key, device), device)


def named(config: HopperConfig) -> str:
    parts = [
        f"{config.BM}x{config.BN}",
        "ping-pong" if config.pingpong else "cooperative" if config.consumers > 1 else "one consumer",
        *(["swapped"] if config.AB_swapped else []),
        *(["stream-K"] if config.stream_k else []),
        *([f"cluster {config.cluster_shape[:2]}"] if config.cluster_shape[:2] != (1, 1) else []),
    ]
    if config.num_split_k > 1:
        parts.append(f"{config.num_split_k} splits in {'cluster' if config.split_in_cluster else 'memory'}")
    if config.num_pipeline_stages > USUAL_STAGES:
        parts.append(f"{config.num_pipeline_stages} stages")
    return " ".join(parts)


@dataclass(frozen=True)
class _Timed:
    """Fields that every row of a plain GEMM has."""

    shape: Shape
    sets: list[Arguments]
    times: dict[str, float]
    itself: float

    def row(self, majors: Majors = K_MAJOR) -> Row:
        ours, (a_major, b_major) = self.times["ours"], majors
        return {
            "config": named(chosen(self.shape, a_major=a_major, b_major=b_major)),
            "ratio": self.times["cublas"] / ours,
            "us": ours,
            "cublas_us": self.times["cublas"],
            "cublas_against_itself": self.itself,
            "tflops": flops_of(self.shape) / ours / 1e6,
            "sets": len(self.sets),
        }


def _timed(shape: Shape, sets: list[Arguments], more: dict[str, Side], options: Options) -> _Timed:
    sides = {"cublas": plain_peer, "ours": call_of(warploom.matmul, sets[0]), **more}
    return _Timed(shape, sets, *timed(sides, sets, flops_of(shape), options))


def plain_row(shape: Shape, options: Options) -> Row:
    """Time ours against cuBLAS, and against a third kernel if there is one for the shape."""
    held(wrong_plain(shape, "cuda"))
    sets = rotating(lambda: plain_arguments(Maker("cuda"), shape))
    more: dict[str, Side] = {}
    refusal: Row = {}
    if options.third is not None:
        try:
            more = _third(shape, sets, options)
        except Exception as error:  # noqa: BLE001  (a baseline that fails is reported, and the others are measured)
            refusal = {"third_error": one_line(error)}
    found = _timed(shape, sets, more, options)
    row = found.row() | refusal
    if "third" in found.times:
        row |= {"third_us": found.times["third"], "ratio_to_third": found.times["third"] / found.times["ours"]}
    return row


def mn_major_row(shape: Shape, options: Options) -> Row:
    """Time ours against cuBLAS with B as K × N."""
    held(wrong_mn_major(shape, "cuda"))
    sets = rotating(lambda: plain_arguments(Maker("cuda"), shape, N_MAJOR))
    return _timed(shape, sets, {}, options).row(N_MAJOR)


def _third(shape: Shape, sets: list[Arguments], options: Options) -> dict[str, Side]:
    """Bind the third kernel, if it takes the shape, and check its bits."""
    assert options.third is not None
    exact = plain_arguments(Maker("cuda", exact=True), shape)
    first = options.third(exact["a"], exact["b"].t(), exact["out"])
    if first is None:
        return {}
    held(wrong_bits(first, exact["out"], plain_reference(exact)))
    bound = {id(each): options.third(each["a"], each["b"].t(), each["out"]) for each in sets}
    return {"third": lambda each: bound[id(each)]()}


def fused_row(shape: Shape, options: Options) -> Row:
    """Time bias, GELU and residual in one kernel, against PyTorch's sequence, its compiler, and the plain cuBLAS GEMM."""
    held(wrong_fused(shape, "cuda"))
    sets = rotating(lambda: fused_arguments(Maker("cuda"), shape))
    sides: dict[str, Side] = {
        "eager": fused_peer,
        "cublas": plain_peer,
        "ours": call_of(warploom.matmul, sets[0]),
    }
    refusal: Row = {}
    if options.compiled:
        try:
            sides["compiled"] = compiled_peer(sets[0], options.compiled)
        except Exception as error:  # noqa: BLE001  (a baseline that fails is reported, and the others are measured)
            refusal = {"compiled_error": one_line(error)}
    times, itself = timed(sides, sets, flops_of(shape), options)
    ours = times["ours"]
    row = {
        "ratio": times["eager"] / ours,
        "us": ours,
        "of_plain_cublas": ours / times["cublas"],
        "eager_us": times["eager"],
        "cublas_us": times["cublas"],
        "eager_against_itself": itself,
        "tflops": flops_of(shape) / ours / 1e6,
        "config": named(chosen(shape, fused=True, residual=True)),
    }
    if "compiled" in times:
        row |= {"compiled_us": times["compiled"], "ratio_to_compiled": times["compiled"] / ours}
    return row | refusal
