"""Problems for the plain families: operands of small integers in any memory order, exact results, random configurations.

Integers are small enough for sums that float32 holds exactly: a kernel's result is rounded once, and compared bit for
bit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from warploom import TensorMap, launch
from warploom.ptx.syntax.printer import print_module
from warploom.structured.composition.operands import operand_layouts
from warploom.structured.config import MatmulConfig, Problem, validate, violations
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.writer_geometry import c_box
from warploom.structured.schedulers.tile_scheduler import launch_grid

NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "f32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
SCHEDULES = (("eager", 0), ("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2))
ROW = 16
"""Alignment of row strides for TMA, in bytes."""


def spaced(array):
    """The same elements, with rows a multiple of 16 bytes apart."""
    unit = ROW // array.itemsize
    held = np.zeros((*array.shape[:-1], -(-array.shape[-1] // unit) * unit), array.dtype)
    held[..., : array.shape[-1]] = array
    return held[..., : array.shape[-1]]


def integers(rng, shape, dtype, largest=3):
    return rng.integers(-largest, largest + 1, shape).astype(NUMPY[dtype])


def in_order(array, major):
    """An operand (…, rows, k) with the dimension that `major` names contiguous."""
    return spaced(array) if major == "k" else spaced(np.ascontiguousarray(array.mT)).mT


def poisoned(shape, dtype, *, tma):
    """An output of NaN: with aligned rows if TMA stores it, else without gaps."""
    made = np.full(shape, np.nan, NUMPY[dtype])
    return spaced(made) if tma else made


def product(a, b):
    """A·Bᵀ, exactly."""
    return np.matmul(a.astype(np.float64), b.astype(np.float64).mT).astype(np.float32)


def same(got, expected):
    """Every element, NaN where NaN is expected."""
    return np.array_equal(got.astype(np.float32), expected.astype(got.dtype).astype(np.float32), equal_nan=True)


@dataclass(frozen=True)
class Arrays:
    """The operands of a problem in the caller's terms, and where the result goes."""

    config: MatmulConfig
    problem: Problem
    a: np.ndarray
    b: np.ndarray
    d: np.ndarray

    @property
    def sums(self):
        return product(self.a, self.b)

    def bind(self, kernel, *arguments, epilogue=None, operands=None, sms=8, grid=None):
        """A launch of a kernel that takes A, B, `arguments`, and the operands."""
        config = self.config
        bound = kernel.bind(
            *self.maps,
            *arguments,
            operands or {},
            grid=grid or launch_grid(config, self.problem, sms),
            block=(config.threads, 1, 1),
            cluster=config.cluster_shape,
            config=config,
            epilogue=epilogue or Epilogue(),
        )
        assert bound.shared_bytes <= config.shared_bytes, "stages were chosen for less"
        return bound

    @property
    def maps(self):
        """A and B as the kernel sees them."""
        config = self.config
        given = zip((self.b, self.a) if config.AB_swapped else (self.a, self.b), operand_layouts(config), strict=True)
        held = [(array if layout.major == "k" else array.mT, layout) for array, layout in given]
        dtype = "tf32" if config.a_type == "tf32" else None
        return [mapped(array, layout.box, layout.swizzle, dtype=dtype) for array, layout in held]

    @property
    def result(self):
        """D as a tensor map, or itself where threads store it."""
        return mapped(self.d, c_box(self.config), self.config.c_swizzle) if self.config.use_tma_store else self.d


def mapped(array, box, swizzle, **options):
    return TensorMap(array, box=(*(1,) * (array.ndim - 2), *box), swizzle=swizzle, **options)


def arrays(config, m, n, k, batch=1, *, seed=0, shapes=None):
    """A problem that a configuration takes, with fresh operands; `shapes` of A and B, if not plain ones."""
    rng = np.random.default_rng(seed)
    largest = 1 if config.c_bytes == 1 else 3  # sums that an 8-bit type holds without overflow
    a_type, b_type = (config.b_type, config.a_type) if config.AB_swapped else (config.a_type, config.b_type)
    a_major, b_major = (config.b_major, config.a_major) if config.AB_swapped else (config.a_major, config.b_major)
    batches = (batch,) if batch > 1 else ()
    a_shape, b_shape = shapes or ((*batches, m, k), (*batches, n, k))
    a = in_order(integers(rng, a_shape, a_type, largest), a_major)
    b = in_order(integers(rng, b_shape, b_type, largest), b_major)
    d = poisoned((*batches, m, n), config.c_type, tma=config.use_tma_store)
    strides = {f"{name}_stride": -(-extent // ROW) * ROW for name, extent in (("a", k), ("b", k), ("c", n))}
    strides |= {"a_stride": -(-m // ROW) * ROW} if a_major == "mn" else {}
    strides |= {"b_stride": -(-n // ROW) * ROW} if b_major == "mn" else {}
    problem = Problem(m, n, k, batch, **strides)
    validate(config, problem)
    return Arrays(config, problem, a, b, d)


def run(bound, schedule=("eager", 0), sms=8):
    return launch(bound, schedule=schedule[0], seed=schedule[1], sms=sms, limit=20_000_000)


SIZES = ("one", "less", "tile", "more", "prime")


def size_of(name, tile):
    """An awkward extent for tiles of a size."""
    prime = next(p for p in range(tile + tile // 2 + 1, 4 * tile + 8) if all(p % q for q in range(2, int(p**0.5) + 1)))
    return {"one": 1, "less": max(tile - 1, 1), "tile": tile, "more": tile + 1, "prime": prime}[name]


OPTIONS = {
    "shape": [(1, 64), (1, 128), (2, 128), (2, 256)],
    "mma_n": [8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 136, 160, 192, 200, 224, 240, 248, 256],
    "types": [
        ("bf16", "bf16"), ("bf16", "f32"), ("bf16", "e4m3"), ("bf16", "e5m2"), ("f16", "f16"), ("e4m3", "bf16"),
        ("e5m2", "e5m2"), ("e4m3", "f16"), ("tf32", "f32"), ("f32", "f32"), ("f32", "bf16"), ("e4m3", "e4m3"),
    ],
    "majors": [("k", "k"), ("mn", "k"), ("k", "mn"), ("mn", "mn")],
    "cluster": [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4), (4, 4)],
    "swapped": [False, True],
    "scheduler": ["clc", "static"],
    "clc_stages": [0, 1, 2, 3],
    "stages": ["one", "two", "some", "most"],
    "k_group_size": [1, 2, 4],
    "k_groups": ["one", "two", "stages", "twice"],
    "m": SIZES,
    "n": SIZES,
    "batch": [1, 1, 3],
    "accumulators": [1, 2],
    "buffers": [1, 2, 3],
    "order": [("along_m", 0), ("along_n", 0), ("along_m", 2), ("along_n", 4)],
    "tma": [True, True, False],
    "exchange": [False, False, True],
    "schedule": SCHEDULES,
}  # fmt: skip
"""The random choices of a case."""
MOST_WORK = 1 << 24


@dataclass(frozen=True)
class Case:
    """A configuration, a problem for it, and a schedule."""

    config: MatmulConfig
    m: int
    n: int
    k: int
    batch: int
    schedule: tuple[str, int]
    drawn: dict = field(compare=False, repr=False)

    @property
    def sms(self):
        """Few enough that CTAs take over tiles."""
        x, y, _ = self.config.cluster_shape
        return 2 * x * y

    def __str__(self):
        c = self.config
        mode = f"{c.cta_group}sm-{c.MMA_M}x{c.MMA_N}-{c.a_type}-{c.c_type}-{c.a_major}{c.b_major}"
        swapped = "-swapped" if c.AB_swapped else ""
        return f"{mode}{swapped}-{self.m}x{self.n}x{self.k}x{self.batch}-{self.schedule[0]}"


def case_of(drawn, **fixed):
    """The case that drawn options make, or None where they do not go together."""
    group, mma_m = drawn["shape"]
    a_type, c_type = drawn["types"]
    kind_k = {"bf16": 16, "f16": 16, "tf32": 8, "f32": 8}.get(a_type, 32)
    x, y = drawn["cluster"]
    options = {
        "cta_group": group,
        "mma_shape": (mma_m, drawn["mma_n"], kind_k),
        "a_type": a_type,
        "c_type": c_type,
        "a_major": drawn["majors"][0],
        "b_major": drawn["majors"][1],
        "cluster_shape": (x * group if x < 4 else x, y, 1),
        "AB_swapped": drawn["swapped"],
        "scheduler": drawn["scheduler"],
        "num_clc_pipeline_stages": drawn["clc_stages"] if drawn["scheduler"] == "clc" else 0,
        "k_group_size": drawn["k_group_size"],
        "num_accum_pipeline_stages": drawn["accumulators"],
        "num_output_stages": drawn["buffers"],
        "raster_order": drawn["order"][0],
        "block_swizzle_size": drawn["order"][1],
        "register_based_epilogue": not drawn["exchange"],
        "use_tma_store": drawn["tma"],
    } | fixed
    if options.get("gemm_kind") == "gmm":
        options |= {"cluster_shape": (group, 1, 1), "scheduler": "static", "num_clc_pipeline_stages": 0}
    most = MatmulConfig(**options)
    if violations(most):
        return None
    groups = most.num_group_stages
    stages = {"one": 1, "two": min(2, groups), "some": max(groups // 2, 1), "most": groups}[drawn["stages"]]
    config = most.replace(num_pipeline_stages=stages * most.k_group_size)
    depth = {"one": 1, "two": 2, "stages": stages, "twice": 2 * stages + 1}[drawn["k_groups"]]
    depth = max(depth, config.num_split_k) * config.k_group_size
    k = depth * config.BK - (5 if drawn["m"] != "tile" else 0)
    rows, columns = size_of(drawn["m"], config.MMA_M), size_of(drawn["n"], config.MMA_N)
    m, n = (columns, rows) if config.AB_swapped else (rows, columns)
    batch = 1 if config.is_grouped or config.num_split_k > 1 else drawn["batch"]
    work = np.prod(config.grid(Problem(m, n, k, batch))) * config.BM * config.MMA_N * k
    return None if work > MOST_WORK else Case(config, m, n, k, batch, drawn["schedule"], drawn)


def cases(count, seed, **fixed):
    """Cases in which every option comes up about equally often, the same every time."""
    rng = random.Random(seed)
    decks = {name: [] for name in OPTIONS}

    def deal(name):
        if not decks[name]:
            decks[name] = rng.sample(OPTIONS[name], len(OPTIONS[name]))
        return decks[name].pop()

    found = []
    while len(found) < count:
        drawn = {name: deal(name) for name in OPTIONS}
        made = case_of(drawn, **fixed)
        for name in rng.sample(list(OPTIONS), len(OPTIONS)) * 8:  # put back what does not fit, one by one
            if made is not None:
                break
            decks[name].append(drawn[name])
            rng.shuffle(decks[name])
            drawn[name] = deal(name)
            made = case_of(drawn, **fixed)
        if made is not None:
            found.append(made)
    return found


def role_texts(bound):
    """The text of each role."""
    _, *parts = print_module(bound.program).split("//!wl role ")
    return {part.split()[0]: part for part in parts}


def waits_before_it_reads(bound, readers):
    """These roles, and no others, read global memory, each behind its wait for the grid that came before."""
    for name, text in role_texts(bound).items():
        wait, read = text.find("griddepcontrol.wait"), text.find(".global")
        assert (name in readers) == (wait >= 0), name
        assert wait < read if name in readers else read < 0, name
