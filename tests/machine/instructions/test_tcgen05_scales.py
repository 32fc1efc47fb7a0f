"""tcgen05.cp, and MMAs with block scaling, whose scale factors it copies."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.machine.engine.mutants import engine
from tests.machine.tensor_kernels import LANES, Bench, K, Product
from tests.machine.tensor_operands import DTYPES, numbers, pack_bits, row_bytes

from warploom.diagnostics import Fault
from warploom.machine.tensor import tensor_core

SCALES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}
FACTORS = {"ue8m0": [0.25, 0.5, 1, 2, 4], "ue4m3": [0.5, 0.75, 1, 1.5, 2, 3]}
CHUNK = 512


def chunks(codes: np.ndarray) -> np.ndarray:
    """Factor codes [128, 4 c] as `c` chunks of 512 bytes: 32 rows of 16 bytes, four factors for each of four rows."""
    parts = [codes[:, 4 * i : 4 * i + 4].reshape(4, 32, 4).transpose(1, 0, 2) for i in range(codes.shape[1] // 4)]
    return np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts])


class Scaled:
    """A GEMM with block scaling: its scale factors in shared memory, and the copies to TMEM."""

    def __init__(
        self,
        kind,
        modifier,
        scale_type,
        vectors,
        *,
        m=128,
        n=64,
        group=1,
        types=("e2m1", "e2m1"),
        seed=0,
        a_column=None,
    ):
        self.product = Product(kind, *types, m, n, group, seed=seed, a_column=a_column)
        self.kind, self.modifier, self.vectors, self.scale_type = kind, modifier, vectors, scale_type
        rng = np.random.default_rng(seed + 1)
        self.per_row = vectors * self.product.steps
        self.scale_a = rng.choice(FACTORS[scale_type], (m, self.per_row))
        self.scale_b = rng.choice(FACTORS[scale_type], (n, self.per_row))
        self.chunks = -(-self.per_row // 4)

    def codes(self, factors: np.ndarray) -> np.ndarray:
        """Codes of up to 128 rows, padded to whole chunks."""
        raw = np.zeros((128, 4 * self.chunks), np.uint8)
        raw[: len(factors), : self.per_row] = factors.astype(SCALES[self.scale_type]).view(np.uint8)
        return raw

    def bench(self) -> Bench:
        product, group = self.product, self.product.group
        bench = Bench(group=group, columns=512)
        at = product.place(bench)
        of_a = bench.place(*(chunks(self.codes(part)) for part in np.split(self.scale_a, group)))
        column = self.copy(bench, of_a, 256, self.chunks, "32x128b.warpx4")
        if group == 2 and product.m == 128:
            # Lanes 0-63 hold the columns of the first half of D, lanes 64-127 those of the second.
            shape, wide = "64x128b.warpx2::01_23", 4
            parts = np.split(self.scale_b, 2)
        else:
            shape, wide = "32x128b.warpx4", 4 * -(-product.n // 128)
            parts = [self.scale_b[i : i + 128] for i in range(0, product.n, 128)]
        whole = np.concatenate([chunks(self.codes(part)).reshape(-1, CHUNK) for part in parts], axis=1)
        of_b = bench.place(*[whole.reshape(-1)] * group)
        self.copy(bench, of_b, column, self.chunks * wide // 4, shape)
        for step in range(product.steps):
            chunk, identifier = divmod(step * self.vectors, 4)
            product.issue(
                bench,
                at,
                step,
                accumulate=step > 0,
                head=f".block_scale{self.modifier}",
                tail=f", [%taddr+{256 + 4 * chunk}], [%taddr+{column + wide * chunk}], %p0",
                scale_type=self.scale_type,
                scale_a_id=identifier,
                scale_b_id=identifier,
            )
        return bench

    def copy(self, bench: Bench, offset: int, column: int, count: int, shape: str) -> int:
        """Copy this many chunks at an offset; return the first column after them."""
        size = CHUNK * (2 if shape.startswith("64") else 1)
        for number in range(count):
            bench.descriptor("%d2", offset + number * size, 16, 128, "none")
            bench.add(f"tcgen05.cp.cta_group::{bench.group}.{shape} [%taddr+{column + 4 * number}], %d2;")
        return column + 4 * count

    @property
    def expected(self) -> np.ndarray:
        product = self.product
        wide = K[self.kind] // self.vectors
        a = product.a * self.scale_a.repeat(wide, axis=1)
        b = product.b * self.scale_b.repeat(wide, axis=1)
        return (a @ b.T).astype(np.float32)


FORMS = [
    ("mxf8f6f4", "", "ue8m0", 1, ("e4m3", "e5m2")),
    ("mxf8f6f4", ".scale_vec::1X", "ue8m0", 1, ("e2m3", "e2m1")),
    ("mxf8f6f4", ".block32", "ue8m0", 1, ("e3m2", "e4m3")),
    ("mxf4", "", "ue8m0", 2, ("e2m1", "e2m1")),
    ("mxf4", ".scale_vec::2X", "ue8m0", 2, ("e2m1", "e2m1")),
    ("mxf4nvf4", ".block32", "ue8m0", 2, ("e2m1", "e2m1")),
    ("mxf4nvf4", ".scale_vec::4X", "ue8m0", 4, ("e2m1", "e2m1")),
    ("mxf4nvf4", ".block16", "ue4m3", 4, ("e2m1", "e2m1")),
]


@pytest.mark.parametrize(("kind", "modifier", "scale_type", "vectors", "types"), FORMS)
@pytest.mark.parametrize(("group", "m", "n"), [(1, 128, 64), (2, 256, 256), (2, 128, 64)])
def test_block_scaling(kind, modifier, scale_type, vectors, types, group, m, n):
    scaled = Scaled(kind, modifier, scale_type, vectors, m=m, n=n, group=group, types=types, seed=n)
    np.testing.assert_array_equal(scaled.product.result(scaled.bench().run()), scaled.expected)


@pytest.mark.parametrize(
    ("kind", "modifier", "vectors", "types"),
    [("mxf8f6f4", "", 1, ("e5m2", "e4m3")), ("mxf4nvf4", ".block32", 2, ("e2m1", "e2m1"))],
)
@pytest.mark.parametrize(("group", "m"), [(1, 128), (2, 256)])
def test_block_scaling_with_a_in_tmem(kind, modifier, vectors, types, group, m):
    scaled = Scaled(kind, modifier, "ue8m0", vectors, m=m, group=group, types=types, a_column=128)
    rows = row_bytes(scaled.product.a, types[0], packed=kind != "mxf8f6f4")
    before = np.zeros((group, LANES, 512), np.uint32)
    words = np.ascontiguousarray(rows).view(np.uint32)
    before[:, :, 128 : 128 + words.shape[1]] = words.reshape(group, LANES, -1)
    np.testing.assert_array_equal(scaled.product.result(scaled.bench().run(before)), scaled.expected)


@pytest.mark.parametrize(("kind", "modifier", "scale_type", "vectors", "types"), [FORMS[at] for at in (0, 1, 2, 3, 7)])
@pytest.mark.parametrize(("schedule", "group", "m"), [("eager", 1, 128), ("lazy", 2, 128)])
def test_both_engines_multiply_any_bits_alike(
    kind, modifier, scale_type, vectors, types, schedule, group, m, monkeypatch
):
    pytest.importorskip("llvmlite")
    rng = np.random.default_rng()
    scaled = Scaled(kind, modifier, scale_type, vectors, types=types, group=group, m=m)
    for tile in (*scaled.product.a_tiles, *scaled.product.b_tiles):
        tile.image[...] = rng.integers(0, 256, tile.image.shape, np.uint8)
    middle = 127 if scale_type == "ue8m0" else 64
    raw = rng.integers(middle - 40, middle + 40, (128, 4 * scaled.chunks)).astype(np.uint8)
    few = rng.random(raw.shape) < 0.01  # NaNs and the largest and smallest factors
    raw[few] = rng.choice(np.array([0, 1, 0x7F, 0xFE, 0xFF], np.uint8), np.count_nonzero(few))
    monkeypatch.setattr(scaled, "codes", lambda factors: raw)
    with engine("numpy"):
        wanted = scaled.bench().run(schedule=schedule)

    def fail(*_):
        raise AssertionError("the reference multiplies")

    monkeypatch.setattr(tensor_core, "multiply_scaled", fail)
    with engine("native"):
        np.testing.assert_array_equal(scaled.bench().run(schedule=schedule), wanted)


@pytest.mark.parametrize("schedule", ["lazy", "reverse", "random"])
def test_a_copy_runs_before_later_mmas(schedule):
    scaled = Scaled("mxf4nvf4", ".block16", "ue4m3", 4)
    np.testing.assert_array_equal(scaled.product.result(scaled.bench().run(schedule=schedule)), scaled.expected)


def copied(shape: str, rows: int, length: int, *, lane: int = 0, group: int = 1):
    """Copy random rows to TMEM; return its contents and the rows."""
    rng = np.random.default_rng(rows + length)
    data = [rng.integers(0, 256, (rows, length), dtype=np.uint8) for _ in range(group)]
    bench = Bench(group=group, columns=64)
    padded = [np.pad(one, ((0, -rows % 8), (0, 0))) for one in data]
    # Without a swizzle: groups of eight rows of 16 bytes, the columns of 16 bytes one after the other.
    images = [one.reshape(-1, 8, length // 16, 16).transpose(0, 2, 1, 3).reshape(-1) for one in padded]
    at = bench.place(*images)
    bench.descriptor("%d0", at, 128, 8 * length, "none")
    bench.add(f"tcgen05.cp.cta_group::{group}.{shape} [%taddr+{(lane << 16) + 32}], %d0;")
    return bench.run(), [one.view(np.uint32) for one in data]


PLACES = {
    "128x256b": (128, 32, [(range(128), range(128))]),
    "128x128b": (128, 16, [(range(128), range(128))]),
    "64x128b.warpx2::02_13": (64, 16, [(range(64), range(64)), (range(64), range(64, 128))]),
    "64x128b.warpx2::01_23": (
        64,
        16,
        [(range(32 * (i // 2), 32 * (i // 2) + 32), range(32 * i, 32 * i + 32)) for i in range(4)],
    ),
    "32x128b.warpx4": (32, 16, [(range(32), range(32 * i, 32 * i + 32)) for i in range(4)]),
    "4x256b": (4, 32, [(range(4), range(5, 128, 32))]),
}


@pytest.mark.parametrize("shape", PLACES)
@pytest.mark.parametrize("group", [1, 2])
def test_copies_have_the_layout_of_their_shape(shape, group):
    rows, length, places = PLACES[shape]
    tensor, data = copied(shape, rows, length, lane=5 if shape == "4x256b" else 0, group=group)
    for cta in range(group):
        expected = np.zeros((LANES, 64), np.uint32)
        for source, lanes in places:
            expected[np.array(lanes), 32 : 32 + length // 4] = data[cta][np.array(source)]
        np.testing.assert_array_equal(tensor[cta], expected)


def test_the_multicast_may_precede_the_shape():
    first, _ = copied("32x128b.warpx4", 32, 16)
    second, _ = copied("warpx4.32x128b", 32, 16)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(("element", "source"), [("e2m1", "b4x16_p64"), ("e2m3", "b6x16_p32"), ("e3m2", "b6x16_p32")])
def test_copies_decompress_for_the_mma(element, source):
    product = Product("f8f6f4", element, "e4m3", n=32, column=64, a_column=8)
    bench = product.bench()
    bench.lines.clear()
    at = 0, 0
    rows = row_bytes(product.a, element)
    for half in range(0, rows.shape[1], 32):
        image = rows[:, half : half + 32].reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).reshape(-1)
        bench.descriptor("%d2", bench.place(np.ascontiguousarray(image)), 128, 256, "none")
        bench.add(f"tcgen05.cp.cta_group::1.128x256b.b8x16.{source} [%taddr+{8 + half // 4}], %d2;")
    for step in range(product.steps):
        product.issue(bench, at, step, accumulate=step > 0)
    np.testing.assert_array_equal(product.result(bench.run()), product.expected)


def test_scale_factors_must_be_the_same_in_all_quadrants():
    scaled = Scaled("mxf8f6f4", "", "ue8m0", 1, types=("e4m3", "e4m3"))
    bench = scaled.bench()
    bench.place(np.zeros(4096, np.uint8))
    bench.lines = [line.replace("32x128b.warpx4", "128x128b") for line in bench.lines]
    with pytest.raises(Fault, match="not the same in all groups of lanes") as caught:
        bench.run()
    assert any("tcgen05.mma" in note for note in caught.value.notes)


def test_the_top_bits_of_scale_addresses_are_not_lanes():
    scaled = Scaled("mxf8f6f4", "", "ue8m0", 1, types=("e4m3", "e4m3"))
    bench = scaled.bench()
    bench.lines = [line.replace("[%taddr+256]", "[%r9]") for line in bench.lines]
    bench.lines.insert(0, f"add.u32 %r9, %taddr, {0xC0000000 + 256};")
    np.testing.assert_array_equal(scaled.product.result(bench.run()), scaled.expected)


def test_packed_rows_hold_two_elements_to_a_byte():
    values = numbers(np.random.default_rng(0), (3, 32), "e2m1")
    codes = values.astype(DTYPES["e2m1"]).view(np.uint8)
    np.testing.assert_array_equal(pack_bits(codes, 4), codes[:, ::2] | codes[:, 1::2] << 4)
