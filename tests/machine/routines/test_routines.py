"""Native routines: matrix products against their definition, for every element type and awkward values, and copies."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from warploom.host.tensor_map import TensorMap
from warploom.machine.copy.boxes import collect_box, copy_box, place_box, read_box, write_box
from warploom.machine.engine.context import Regions
from warploom.machine.engine.native import Engine
from warploom.machine.memory.byte_memory import FlatMemory, GlobalMemory, padded
from warploom.machine.numerics.products import Factor, product
from warploom.machine.routines.call_lists import Sequence, base_of
from warploom.machine.routines.granule_kernels import PAIRED, PER_GRANULE, Gather
from warploom.machine.tensor.elements import ELEMENTS, settle
from warploom.machine.tensor.wgmma_registers import ACCUMULATORS

NAMES = {
    "this processor": ("", "", 0, 0), "quick": ("", ""), "no AVX": ("x86-64", "", 0, 0), "no FMA": ("x86-64", "+avx2"),
    "vectors of 16": ("", "", 16),
}  # fmt: skip
TYPES = ("bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "u8", "e2m1", "e2m3", "e3m2", "e2m1_packed")


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(*NAMES[request.param])


def in_order(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One instruction's product by its definition: rows of A by rows of B, in float64, ascending k, rounded once."""
    total = np.zeros((len(a), len(b)))
    with np.errstate(all="ignore"):
        for k in range(a.shape[1]):
            total = total + a[:, k, None].astype(np.float64) * b[None, :, k].astype(np.float64)
        return total.astype(np.float32) + np.float32(0)


def expected(a: np.ndarray, b: np.ndarray, steps: int, d: np.ndarray, accumulate: bool, negative: bool) -> np.ndarray:
    """D of float32 or float16, which is rounded once for each instruction."""
    total, k = d.copy(), a.shape[1] // steps
    for step in range(steps):
        each = in_order(a[:, step * k : (step + 1) * k], b[:, step * k : (step + 1) * k])
        with np.errstate(all="ignore"):
            signed = -each if negative else each
            total = (total.astype(np.float32) + signed if accumulate or step else signed).astype(d.dtype)
    with np.errstate(all="ignore"):
        settle(total)
    return total


def awkward(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> np.ndarray:
    values = rng.standard_normal(shape)
    if kind == "wide":
        values *= 2.0 ** rng.integers(-60, 61, shape)
    elif kind == "small":
        values *= 2.0 ** rng.integers(-14, 9, shape)
    elif kind == "cancelling":
        values = np.concatenate([values[:, ::2], -values[:, ::2]], axis=1)[:, : shape[1]]
        values[:, 1] = 2.0**-50
    elif kind == "special":
        flat = values.reshape(-1)
        some = rng.choice(flat.size, flat.size // 16, replace=False)
        flat[some] = rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, 3e38], len(some))
    return values.astype(np.float32)


@pytest.mark.parametrize("kind", ["random", "wide", "cancelling", "special"])
@pytest.mark.parametrize("shape", [(64, 128, 16, 4), (64, 8, 8, 1), (128, 64, 32, 3), (8, 40, 16, 2), (12, 24, 64, 1)])
def test_products_are_added_in_the_fixed_order(engine: Engine, kind: str, shape: tuple[int, int, int, int]) -> None:
    rng = np.random.default_rng()
    rows, columns, k, steps = shape
    for accumulate in (False, True):
        for negative in (False, True):
            a, b = awkward(rng, (rows, k * steps), kind), awkward(rng, (columns, k * steps), kind)
            d = awkward(rng, (rows, columns), "special" if accumulate else "random")
            wanted = expected(a, b, steps, d, accumulate, negative)
            left, right = Factor(a, k), Factor(b, k)
            engine.routines.products.add(left.wide(), right.right(), steps, d, accumulate=accumulate, negative=negative)
            assert np.array_equal(d.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("kind", ["random", "wide", "cancelling", "special", "small"])
@pytest.mark.parametrize("columns", [8, 40, 128])
def test_accumulators_of_f16_are_rounded_after_each_instruction(engine: Engine, kind: str, columns: int) -> None:
    """In the low halves of words and in the registers of a warpgroup; D is any bits."""
    rng, steps = np.random.default_rng(), 3
    accumulator = ACCUMULATORS["f16"](columns)
    for accumulate in (False, True):
        for negative in (False, True):
            a, b = awkward(rng, (64, 8 * steps), kind), awkward(rng, (columns, 8 * steps), kind)
            before = rng.integers(0, 1 << 16, (64, columns), np.uint16).view(np.float16)
            wanted = expected(a, b, steps, before, accumulate, negative)
            words = rng.integers(0, 1 << 16, (64, columns), np.uint32) << np.uint32(16) | before.view(np.uint16)
            left, right = Factor(a, 8), Factor(b, 8)
            engine.routines.products.add(
                left.wide(), right.right(), steps, words, accumulate=accumulate, negative=negative, d_type="f16"
            )
            assert np.array_equal(words, wanted.view(np.uint16))
            registers, found = np.zeros((columns // 4, 128), np.uint32), np.zeros((columns // 4, 128), np.uint32)
            for place, matrix in ((registers, before.copy()), (found, wanted)):
                eights = matrix.view(np.complex128).reshape(2, 32, columns // 8, 1)
                place.view(np.complex128).reshape(accumulator.split)[...] = eights.transpose(2, 0, 3, 1)
            sequence, arrays = Sequence(bases=3), (left.wide(), right.right(), registers)
            for number, array in enumerate(arrays, 1):
                sequence.needs(number, array.nbytes)
            engine.routines.products.multiply_fragments(
                sequence, ((0, 1), 8 * steps), ((0, 2), columns), (columns, 8, steps), ((0, 3), 128),
                accumulate=accumulate, negative=negative, d_type="f16",
            )  # fmt: skip
            assert engine.routines.calls.run(sequence.prepared(), *map(base_of, arrays))
            assert np.array_equal(registers, found)


@pytest.mark.parametrize("element", TYPES)
def test_every_element_type_gives_the_bits_of_the_reference(engine: Engine, element: str) -> None:
    rng = np.random.default_rng()
    raw = rng.integers(0, 256, (2, 64, 64), np.uint8)
    matrices = [ELEMENTS[element].decode(each).astype(np.float32) for each in raw]
    k = matrices[0].shape[1]
    a, b = (Factor(each, k, element) for each in matrices)
    d = np.full((64, 64), np.nan, np.float32)
    with np.errstate(all="ignore"):
        engine.routines.products.add(a.wide(), b.right(), 1, d, accumulate=False)
        wanted = product(a, b)
        settle(wanted)
    assert np.array_equal(d.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("columns", [8, 48, 128, 256])
def test_registers_of_a_warpgroup_hold_the_accumulator(engine: Engine, columns: int) -> None:
    rng = np.random.default_rng()
    accumulator = ACCUMULATORS["f32"](columns)
    file = rng.integers(0, 1 << 32, (columns // 2 + 6, 128), np.uint32)
    words = file[3 : 3 + columns // 2]
    a, b = awkward(rng, (64, 32), "special"), awkward(rng, (columns, 32), "wide")
    for accumulate in (False, True):
        before, d = file.copy(), accumulator.load(words)
        wanted = np.empty_like(words)
        with np.errstate(all="ignore"):
            accumulator.store(wanted, expected(a, b, 2, d, accumulate, False))
        left, right = Factor(a, 16), Factor(b, 16)
        engine.routines.products.add_fragments(left.wide(), right.right(), 2, words, accumulate=accumulate)
        assert np.array_equal(words, wanted)
        file[3 : 3 + columns // 2] = before[3 : 3 + columns // 2]
        assert np.array_equal(file, before)


def test_matrices_of_another_layout_are_refused(engine: Engine) -> None:
    a, b, d = np.zeros((64, 16)), np.zeros((16, 64)), np.zeros((64, 64), np.float32)
    for wrong in ((a[:62], b, d[:62]), (a, b[:8], d), (a.T.copy().T, b, d), (a, b, d.T), (a, b.astype(np.float32), d)):
        with pytest.raises(ValueError, match="another shape"):
            engine.routines.products.add(wrong[0], wrong[1], 1, wrong[2], accumulate=True)


@pytest.mark.parametrize("element", PER_GRANULE)
@pytest.mark.parametrize("transposed", [False, True])
def test_operands_are_read_from_scattered_granules(engine: Engine, element: str, transposed: bool) -> None:
    rng = np.random.default_rng()
    if element == "tf32":
        granules = rng.integers(0, 1 << 32, 1 << 17, np.uint32).view(np.complex128)
    else:  # every 16-bit pattern
        granules = rng.permuted(np.arange(1 << 16, dtype=np.uint16)).view(np.complex128)
    places = rng.permutation(len(granules) - 8).reshape(-1, 8)[: len(granules) // 64 * 8].astype(np.int64)
    places = places[: len(places) // 8 * 8]
    with np.errstate(all="ignore"):
        wanted = ELEMENTS[element].decode(granules[5:].take(places)).astype(np.float64)
    if transposed:
        wanted = wanted.T
    found = engine.routines.granules.gather(granules, 5, places, Gather(element, transposed))
    assert found is not None
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    known = ~np.isnan(wanted)
    assert np.array_equal(found[known], wanted[known])
    assert np.array_equal(np.signbit(found[known]), np.signbit(wanted[known]))
    paired = None
    if not transposed:
        paired = engine.routines.granules.gather(granules, 5, places, Gather(element, transposed, PAIRED))
    assert (paired is None) == (transposed or PER_GRANULE[element] != len(PAIRED))
    if paired is not None:
        order = np.arange(found.shape[1]).reshape(-1, 8)[:, list(PAIRED)].reshape(-1)
        assert np.array_equal(paired, found[:, order], equal_nan=True)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("stores", [False, True])
def test_boxes_are_copied_to_their_granules_and_nowhere_else(engine: Engine, swizzle: str, stores: bool) -> None:
    rng = np.random.default_rng()
    width = {"none": 64, "32B": 16, "64B": 32, "128B": 64}[swizzle]
    tensor = rng.integers(0, 1 << 16, (3, 40, 200), np.uint16)
    geometry = TensorMap(tensor, box=(2, 8, width), dtype="u16", swizzle=swizzle).geometry
    memory = np.concatenate([rng.integers(0, 256, 32, np.uint8), tensor.reshape(-1).view(np.uint8)])
    shared, routines = padded(1 << 14), engine.routines
    shared[...] = rng.integers(0, 256, len(shared), np.uint8)
    for _ in range(10):
        coords = (int(rng.integers(0, 200 - width)) // 8 * 8, int(rng.integers(0, 33)), int(rng.integers(0, 2)))
        address = 128 * int(rng.integers(0, 64))
        wanted_memory, wanted_shared = memory.copy(), shared.copy()
        if stores:
            write_box(wanted_memory, geometry, coords, collect_box(shared, address, geometry), 32)
        else:
            place_box(wanted_shared, address, geometry, read_box(memory, geometry, coords, 32))
        assert copy_box(routines, memory, geometry, coords, 32, shared, address, stores=stores)
        assert np.array_equal(memory, wanted_memory)
        assert np.array_equal(shared, wanted_shared)
    last = (200 - width, 32, 1)
    assert copy_box(routines, memory, geometry, last, 32, shared, 0)
    before = memory.copy(), shared.copy()
    for part, address, coords in (
        (memory[:-2], 0, last),  # the tensor is larger than its memory
        (memory, len(shared) - 128, last),
        (memory, 64, last),
        (memory, 0, (208 - width, 32, 1)),
        (memory, 0, (-8, 0, 0)),
    ):
        storing = stores and min(coords) >= 0
        assert not copy_box(routines, part, geometry, coords, 32, shared, address, stores=storing)
    assert np.array_equal(memory, before[0])
    assert np.array_equal(shared, before[1])


@pytest.mark.parametrize("element", PER_GRANULE)
def test_a_list_of_calls_does_what_they_do_one_by_one(engine: Engine, element: str) -> None:
    rng, per = np.random.default_rng(), PER_GRANULE[element]
    routines, n, steps = engine.routines, 24, 3
    shared = padded(1 << 16)
    shared[...] = rng.standard_normal(len(shared) // 2).astype(np.float16).view(np.uint8)
    granules, inner = shared.view(np.complex128), 2 * steps
    a_places, b_places = (rng.permutation(900)[: rows * inner].reshape(rows, inner) for rows in (64, n))
    registers = rng.standard_normal((40, 128)).astype(np.float32).view(np.uint32)
    wanted = registers.copy()
    a = routines.granules.gather(granules, 7, a_places, Gather(element, False))
    b = routines.granules.gather(granules, 9, b_places, Gather(element, True))
    assert a is not None
    assert b is not None
    routines.products.add_fragments(a, b, steps, wanted[5 : 5 + n // 2], accumulate=True, negative=True)
    sequence = Sequence(bases=2)
    left = routines.granules.convert(sequence, 1, 7, a_places, Gather(element, False))
    right = routines.granules.convert(sequence, 1, 9, b_places, Gather(element, True))
    assert left is not None
    assert right is not None
    sequence.needs(2, (5 + n // 2) * 512)
    routines.products.multiply_fragments(
        sequence, left, right, (n, 2 * per, steps), ((5 * 512, 2), 128), accumulate=True, negative=True
    )
    prepared, end = sequence.prepared(), 16 * max(8 + int(a_places.max()), 10 + int(b_places.max()))
    before = registers.copy()
    assert not routines.calls.run(prepared, base_of(shared[: end - 16]), base_of(registers))
    assert not routines.calls.run(prepared, base_of(shared), base_of(registers[: 4 + n // 2]))
    assert np.array_equal(registers, before)
    assert routines.calls.run(prepared, base_of(shared[:end]), base_of(registers[: 5 + n // 2]))
    assert np.array_equal(registers, wanted)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_lanes_copy_to_shared_memory(engine: Engine, size: int) -> None:
    rng, memory = np.random.default_rng(), GlobalMemory()
    data = rng.integers(0, 256, 1 << 12, np.uint8)
    base = memory.add(data, "data").base
    regions, shared = Regions(memory), FlatMemory(np.zeros(2048, np.uint8), 1024, 2048, "shared")
    copy = engine.routines.granules.copy_lanes
    for _ in range(20):
        sources = base + size * rng.integers(0, len(data) // size, 128).astype(np.uint64)
        targets = (1024 + size * rng.integers(0, 2048 // size, 128)).astype(np.uint32)
        mask = rng.random(128) < 0.8 if rng.random() < 0.5 else None
        counts = (size * rng.integers(0, 2, 128)).astype(np.uint32) if rng.random() < 0.5 else None
        if counts is not None:
            sources[counts == 0] = 12345  # nothing is read there
        wanted, written = shared.data.copy(), 0
        for lane in range(128):
            if mask is not None and not mask[lane]:
                continue
            at, start = int(targets[lane]) - 1024, int(sources[lane]) - base
            zero = counts is not None and not counts[lane]
            wanted[at : at + size] = 0 if zero else data[start : start + size]
            written += size
        assert copy(size, targets, sources, mask, counts, regions, shared) == written
        assert np.array_equal(shared.data, wanted)
    sources, targets = np.full(128, base, np.uint64), np.full(128, 1024, np.uint32)
    for place, wrong in ((sources, base + len(data)), (sources, base + 1), (targets, 1024 + 2048), (targets, 1026)):
        broken = place.copy()
        broken[77] = wrong
        given = (targets, broken) if place is sources else (broken, sources)
        assert copy(size, *given, None, None, regions, shared) == -1
    assert copy(size, targets, sources, None, np.full(128, size - 1, np.uint32), regions, shared) == -1
    assert np.array_equal(shared.data, wanted)


@pytest.mark.parametrize("element", ["s8", "u8"])
def test_integers_are_added_to_matrices_and_registers_and_wrap(engine: Engine, element: str) -> None:
    rng, n, steps = np.random.default_rng(), 24, 2
    shared = padded(1 << 14)
    shared[...] = rng.integers(0, 256, len(shared), np.uint8)
    places = [rng.permutation(900)[: rows * 2 * steps].reshape(rows, 2 * steps) for rows in (64, n)]
    values = [ELEMENTS[element].decode(shared.view(np.complex128).take(each)).astype(np.int64) for each in places]
    accumulator = ACCUMULATORS["s32"](n)
    for accumulate in (True, False):
        matrix = rng.integers(-(1 << 31), 1 << 31, (64, n), np.int64).astype(np.int32)
        registers = np.zeros((n // 2, 128), np.uint32)
        accumulator.store(registers, matrix.copy())
        before = accumulator.load(registers).astype(np.int64)
        routines, sequence = engine.routines, Sequence(bases=3)
        left = routines.granules.convert(sequence, 1, 0, places[0], Gather(element, False))
        right = routines.granules.convert(sequence, 1, 0, places[1], Gather(element, True))
        assert left is not None
        assert right is not None
        for base, array in ((2, matrix), (3, registers)):
            sequence.needs(base, array.nbytes)
        routines.products.multiply(
            sequence, left, right, (64, n, 32, steps), ((0, 2), n), accumulate=accumulate, negative=False, d_type="s32"
        )
        routines.products.multiply_fragments(
            sequence, left, right, (n, 32, steps), ((0, 3), 128), accumulate=accumulate, negative=False, d_type="s32"
        )
        product = values[0] @ values[1].T
        wanted = (product + accumulate * matrix.astype(np.int64)).astype(np.int32)
        assert routines.calls.run(sequence.prepared(), *map(base_of, (shared, matrix, registers)))
        assert np.array_equal(matrix, wanted)
        assert np.array_equal(accumulator.load(registers), (product + accumulate * before).astype(np.int32))
