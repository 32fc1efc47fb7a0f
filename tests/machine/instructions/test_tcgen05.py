"""tcgen05.mma: every kind, type, layout, shape and option, from shared memory and TMEM, by one CTA and by two."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.tensor_kernels import LANES, K, Product, located
from tests.machine.tensor_operands import DTYPES, row_bytes

KINDS = {
    "f16": ["f16", "bf16"],
    "tf32": ["tf32"],
    "f8f6f4": ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"],
    "i8": ["s8", "u8"],
}
TYPES = [(kind, element) for kind, elements in KINDS.items() for element in elements]
D_TYPE = {"i8": "s32"}
SCHEDULES = ("eager", "lazy", "reverse", "random")


@pytest.mark.parametrize(("kind", "element"), TYPES)
@pytest.mark.parametrize("group", [1, 2])
def test_every_type_multiplies_exactly(kind, element, group):
    other = KINDS[kind][-1 if element != KINDS[kind][-1] else 0]
    n = 32 * group
    Product(kind, element, other, m=128, n=n, group=group, d_type=D_TYPE.get(kind, "f32"), seed=group).check()


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize(("a_major", "b_major"), [("k", "k"), ("k", "mn"), ("mn", "k"), ("mn", "mn")])
@pytest.mark.parametrize(("kind", "element"), [("f16", "f16"), ("f8f6f4", "e4m3"), ("i8", "s8")])
def test_every_layout_of_operands(swizzle, a_major, b_major, kind, element):
    product = Product(
        kind, element, element, m=128, n=128, a_swizzle=swizzle, b_swizzle=swizzle, a_major=a_major, b_major=b_major,
        d_type=D_TYPE.get(kind, "f32"), seed=3,
    )  # fmt: skip
    product.check()


@pytest.mark.parametrize("major", [("mn", "k"), ("k", "mn"), ("mn", "mn")])
def test_32_bit_operands_along_m_or_n_have_atoms_of_32_bytes(major):
    swizzles = ["128B_32B_atom" if one == "mn" else "64B" for one in major]
    layouts = {"a_swizzle": swizzles[0], "b_swizzle": swizzles[1], "a_major": major[0], "b_major": major[1]}
    Product("tf32", "tf32", "tf32", n=64, **layouts).check()


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_both_ctas_of_a_pair_hold_half_of_b(swizzle):
    for m, b_major in ((128, "k"), (256, "mn")):
        Product(m=m, n=128, group=2, a_swizzle=swizzle, b_swizzle=swizzle, b_major=b_major, seed=m).check()


SHAPES = [
    *((1, 64, n) for n in (8, 24, 256)),
    *((1, 128, n) for n in (8, 16, 40, 256)),
    *((2, 128, n) for n in (16, 48, 256)),
    *((2, 256, n) for n in (16, 80, 256)),
]


@pytest.mark.parametrize(("group", "m", "n"), SHAPES)
def test_smallest_and_largest_shapes(group, m, n):
    Product(m=m, n=n, group=group, column=32 if n < 256 else 0, seed=n).check()


def test_an_accumulator_of_64_rows_may_begin_at_lane_16():
    product = Product(m=64, n=32, lane=16)
    tensor = product.bench().run()
    np.testing.assert_array_equal(product.result(tensor), product.expected)
    lanes = np.arange(LANES)
    assert not tensor[0, lanes % 32 < 16].any()


@pytest.mark.parametrize("issuer", [0, 1])
def test_either_cta_of_a_pair_may_issue(issuer):
    product = Product(m=256, n=32, group=2)
    bench = product.bench()
    bench.issuer = issuer
    np.testing.assert_array_equal(product.result(bench.run()), product.expected)


@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize(("kind", "element"), [("f16", "bf16"), ("i8", "u8")])
def test_weight_stationary(m, kind, element):
    product = Product(kind, element, element, m=m, n=64, ws=True, d_type=D_TYPE.get(kind, "f32"))
    bench = product.bench(head=".collector::b1::fill", tail=", %p0, 0")
    np.testing.assert_array_equal(product.result(bench.run()), product.expected)


def test_columns_of_a_weight_stationary_b_can_be_masked():
    # Example 4 below Table 45, without the shift: starts 0, 1, 2, 1 and first spans 1, 1, 0, 0 of sub-masks 0 to 3.
    product = Product(m=32, n=64, ws=True)
    value = 0 | 1 << 8 | 2 << 16 | 1 << 24 | 0b0011 << 32 | 1 << 39 | 2 << 40 | 3 << 48
    bench = product.bench(tail=f", %p0, {value}")
    text = ["1110000111000011", "1100001110000111", "0011100001110000", "0001110000111000"]
    zeroed = np.array([bit == "1" for bit in "".join(text)])
    expected = np.where(zeroed, 0, product.expected)
    np.testing.assert_array_equal(product.result(bench.run()), expected)


@pytest.mark.parametrize(("m", "group", "lane"), [(128, 1, 0), (64, 1, 0), (64, 1, 16), (256, 2, 0), (128, 2, 0)])
@pytest.mark.parametrize(("kind", "element"), [("f16", "bf16"), ("tf32", "tf32"), ("f8f6f4", "e5m2"), ("i8", "s8")])
def test_a_from_tmem(m, group, lane, kind, element):
    product = Product(kind, element, element, m, 32, group, D_TYPE.get(kind, "f32"), column=64, lane=lane, a_column=8)
    before = np.zeros((group, LANES, 128), np.uint32)
    tensor_a(before, product, product.a)
    np.testing.assert_array_equal(product.result(product.bench().run(before)), product.expected)


def tensor_a(before, product, values):
    """Put A into TMEM, into the lanes of the accumulator's rows; each half of the lanes needs a copy."""
    words = np.ascontiguousarray(row_bytes(values, product.a_type)).view(np.uint32)
    cta, lane, _ = located(product.m, product.n, product.group, ws=product.ws)
    for at in (0, -1):
        for row in range(product.m):
            where = before[cta[row, at], lane[row, at] + product.lane]
            where[product.a_column : product.a_column + words.shape[1]] = words[row]


@pytest.mark.parametrize(("element", "shift"), [("e2m1", 2), ("e2m3", 0), ("e3m2", 0)])
def test_narrow_elements_take_a_byte_each_in_tmem(element, shift):
    product = Product("f8f6f4", element, "e4m3", n=32, column=64, a_column=0)
    codes = product.a.astype(DTYPES[element]).view(np.uint8) << shift
    before = np.zeros((1, LANES, 128), np.uint32)
    before[0, :, : codes.shape[1] // 4] = codes.view(np.uint32)
    np.testing.assert_array_equal(product.result(product.bench().run(before)), product.expected)


def test_accumulation_starts_from_the_previous_contents():
    product = Product(n=64)
    before = np.arange(64, dtype=np.float32).view(np.uint32)
    got = product.result(product.bench(accumulate=True).run(before))
    np.testing.assert_array_equal(got, product.expected + np.arange(64))


@pytest.mark.parametrize(("kind", "element"), [("f16", "f16"), ("tf32", "tf32")])
@pytest.mark.parametrize("scale", [0, 1, 15])
def test_scale_input_d(kind, element, scale):
    product = Product(kind, element, element, n=32)
    bench = product.bench()
    bench.lines.clear()
    product.issue(bench, (0, len(product.a_tiles[0].image)), 0, accumulate=True, tail=f", %p0, {scale}")
    before = np.full((1, LANES, 32), np.float32(1 << 16)).view(np.uint32)
    k = product.a.shape[1] // product.steps
    expected = product.a[:, :k] @ product.b[:, :k].T + np.float32(2.0 ** (16 - scale))
    np.testing.assert_array_equal(product.result(bench.run(before)), expected)


@pytest.mark.parametrize(("negate_a", "negate_b"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ["f16", "tf32", "f8f6f4"])
def test_operands_can_be_negated(negate_a, negate_b, kind):
    element = KINDS[kind][0]
    product = Product(kind, element, element, options={"negate_a": negate_a, "negate_b": negate_b})
    sign = -1 if negate_a != negate_b else 1
    np.testing.assert_array_equal(product.result(product.bench().run()), sign * product.expected)


@pytest.mark.parametrize(("kind", "element"), [("f16", "f16"), ("f8f6f4", "e4m3")])
def test_an_accumulator_in_f16_rounds_after_every_mma(kind, element):
    # 2048 + 1 ties to 2048 in f16; four MMAs that each add 1 leave 2048, one product that adds 4 would leave 2052.
    depth = K[kind]

    def ones(_rng, shape, _element):
        return np.tile((np.arange(shape[1]) % depth == 0).astype(np.float32), (shape[0], 1))

    product = Product(kind, element, element, n=16, d_type="f16", fill=ones)
    assert product.steps == 4
    before = np.full((1, LANES, 32), int(np.float16(2048).view(np.uint16)), np.uint32)
    for schedule in ("eager", "lazy"):
        got = product.result(product.bench(accumulate=True).run(before, schedule))
        np.testing.assert_array_equal(got, np.full((128, 16), 2048, np.float32))


def test_integers_wrap_or_saturate():
    for saturate in (False, True):
        product = Product("i8", "s8", "s8", d_type="s32", options={"saturate": saturate})
        before = np.full((1, LANES, 32), 2**31 - 5, np.uint32)
        got = product.result(product.bench(accumulate=True).run(before)).astype(np.int64)
        total = product.expected.astype(np.int64) + 2**31 - 5
        if saturate:
            # Each of the MMAs saturates: replay them.
            total = np.full(got.shape, 2**31 - 5, np.int64)
            for at in range(0, product.a.shape[1], K["i8"]):
                part = product.a[:, at : at + K["i8"]] @ product.b[:, at : at + K["i8"]].T
                total = np.clip(total + part.astype(np.int64), -(2**31), 2**31 - 1)
        else:
            total = (total + 2**31) % 2**32 - 2**31
        np.testing.assert_array_equal(got, total)


@pytest.mark.parametrize(("m", "group"), [(128, 1), (64, 1), (256, 2), (128, 2)])
def test_disabled_lanes_keep_their_contents(m, group):
    rng = np.random.default_rng(7)
    words = rng.integers(0, 1 << 32, 4 * group, dtype=np.uint64)
    product = Product(m=m, n=32, group=group)
    registers = ", ".join(f"%r{1 + i}" for i in range(4 * group))
    bench = product.bench(tail=f", {{{registers}}}, %p0")
    bench.lines[:0] = [f"mov.b32 %r{1 + i}, {int(word):#x};" for i, word in enumerate(words)]
    before = np.full((group, LANES, bench.columns), 0x40E00000, np.uint32)
    tensor = bench.run(before)
    kept = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little").reshape(group, LANES).astype(bool)
    assert (tensor[kept] == 0x40E00000).all()
    bare = Product(m=m, n=32, group=group).bench().run(before)
    np.testing.assert_array_equal(tensor[~kept], bare[~kept])


def test_zeros_as_disabled_lanes_change_nothing():
    product = Product()
    bench = product.bench(tail=", {%r1, %r1, %r1, %r1}, %p0", head=".collector::a::discard")
    bench.lines.insert(0, "mov.b32 %r1, 0;")
    np.testing.assert_array_equal(product.result(bench.run()), product.expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("group", [1, 2])
def test_any_schedule_gives_the_same(schedule, group):
    Product(m=128, n=64, group=group).check(schedule, seed=5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_accumulators_in_turn(schedule):
    one, two = Product(n=32, seed=1), Product(n=32, column=32, seed=2)
    bench = one.bench()
    bench.lines.clear()
    bench.columns = 64
    places = (0, len(one.a_tiles[0].image)), two.place(bench)
    for step in range(one.steps):
        for product, at in zip((one, two), places, strict=True):
            product.issue(bench, at, step, accumulate=step > 0)
    tensor = bench.run(schedule=schedule)
    for product in (one, two):
        np.testing.assert_array_equal(product.result(tensor), product.expected)


def test_an_mma_that_does_not_accumulate_ends_a_run():
    product = Product()
    bench = product.bench()
    bench.lines.clear()
    for step in range(product.steps):
        product.issue(bench, (0, len(product.a_tiles[0].image)), step, accumulate=step != 2)
    expected = product.a[:, 32:] @ product.b[:, 32:].T
    np.testing.assert_array_equal(product.result(bench.run()), expected)
