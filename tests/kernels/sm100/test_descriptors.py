"""Descriptors of dense multiplications: the bits that Triton's and Gluon's kernels carry for the same shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.corpus.cases import CASES
from tests.corpus.compile import CompilerMissing
from tests.corpus.run import run

import warploom
from warploom import MatmulConfig, launch
from warploom.hardware.instruction_descriptors import decode_instruction_descriptor
from warploom.hardware.matrix_descriptors import decode_shared_descriptor
from warploom.launch_file import load
from warploom.machine.instructions.tcgen05 import mma as tcgen05

ADDRESS, LEADING = 0x3FFF, 0x3FFF << 16
"""The bits that may differ: the start address, and the unused leading offset of a swizzled K-major matrix."""
FILES = sorted((Path(__file__).parents[2] / "foreign").glob("*matmul*sm100.launch.json"))
NAMES = (
    "triton_descriptor_e4m3_sm100",
    "triton_descriptor_f16_sm100",
    "gluon_tcgen05_ring_sm100",
    "gluon_tcgen05_ring_m64_sm100",
    "gluon_two_cta_matmul_sm100",
    "cuda_tcgen05_pair_sm100",
)
COMPILED = [case for case in CASES if case.name in NAMES]
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[Any]]:
    """Every descriptor that the emulator sees: of MMAs, and of their operands with what they are of."""
    found: dict[str, set[Any]] = {"products": set(), "operands": set()}
    issued = tcgen05._Mma.issue

    def product(self: Any, core: Any, g: Any, lane: int, operands: tuple[Any, ...]) -> Any:
        _, a, b, i, _ = (value if isinstance(value, int) else int(value[lane]) for value in operands)
        found["products"].add((self.kind, i, self.group))
        found["operands"] |= {value & ~(ADDRESS | LEADING) for value in (a, b)}
        return issued(self, core, g, lane, operands)

    monkeypatch.setattr(tcgen05._Mma, "issue", product)
    return found


def taken(seen: dict[str, set[Any]]) -> dict[str, set[Any]]:
    theirs = {key: set(values) for key, values in seen.items()}
    for values in seen.values():
        values.clear()
    return theirs


def ours(kind: str, bits: int, group: int, swizzle: str) -> None:
    """Run our kernel with the shape and types of an instruction descriptor."""
    shape = decode_instruction_descriptor(bits, kind, group)
    rows = max(shape.m, 128)
    majors = {
        "a_major": "mn" if shape.transpose_a else "k",
        "b_major": "mn" if shape.transpose_b else "k",
    }
    config = MatmulConfig(
        a_type=shape.a_type, b_type=shape.b_type, c_type="f32", cta_group=group,
        mma_shape=(shape.m, shape.n, shape.k), a_swizzle=swizzle, b_swizzle=swizzle, **majors,
    )  # fmt: skip
    a, b = np.ones((rows, 128), TYPES[shape.a_type]), np.ones((shape.n, 128), TYPES[shape.b_type])
    left = a if majors["a_major"] == "k" else np.asfortranarray(a)
    right = b if majors["b_major"] == "k" else np.asfortranarray(b)
    assert (warploom.linear(left, right, config=config, out_dtype=np.float32) == 128).all()


def compare(seen: dict[str, set[Any]]) -> None:
    theirs = taken(seen)
    ((kind, bits, group),) = theirs["products"]
    (swizzle,) = {decode_shared_descriptor(value, "sm_100").swizzle.name for value in theirs["operands"]}
    ours(kind, bits, group, swizzle)
    assert seen["products"] == theirs["products"]
    assert seen["operands"] == theirs["operands"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_foreign_file_has_the_same_descriptors(path: Path, seen: dict[str, set[Any]]) -> None:
    file = load(path, seed=1)
    launch(file.launch(file.allocate()))
    compare(seen)


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
def test_a_compiled_kernel_has_the_same_descriptors(case: Any, seen: dict[str, set[Any]]) -> None:
    try:
        prepared = case.prepare(seed=1)
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    run(prepared, schedule="eager", seed=0)
    compare(seen)


def test_there_is_something_to_compare() -> None:
    assert FILES
    assert len(COMPILED) == len(NAMES)
