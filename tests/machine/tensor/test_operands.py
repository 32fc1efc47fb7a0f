"""Operands and accumulators: a descriptor reads what TMA writes, for every type, major and swizzle."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warploom.diagnostics import Diag, Fault, WarploomError
from warploom.hardware.matrix_descriptors import decode_shared_descriptor, encode_shared_descriptor
from warploom.hardware.swizzles import SWIZZLES
from warploom.host.tensor_map import TensorMap
from warploom.machine.copy.boxes import place_box, read_box
from warploom.machine.tensor.elements import ELEMENTS, decode_scales
from warploom.machine.tensor.operands import OperandReader, footprint, multiply_scaled

SHARED = 1 << 17

DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}
NARROW = {
    "e2m1": (ml_dtypes.float4_e2m1fn, 4),
    "e2m3": (ml_dtypes.float6_e2m3fn, 6),
    "e3m2": (ml_dtypes.float6_e3m2fn, 6),
}


def values(rng, element, shape):
    """Random values that the type represents exactly, and their bytes along the last axis."""
    dtype = np.dtype(DTYPES[element])
    if element in ("s8", "u8"):
        matrix = rng.integers(0, 256, shape).astype(np.uint8).view(dtype)
    else:
        matrix = rng.integers(-8, 9, shape).astype(dtype)
    return matrix


def descriptor(family, start, leading, stride, swizzle, base=0):
    return decode_shared_descriptor(encode_shared_descriptor(family, start, leading, stride, swizzle, base), family)


def empty():
    raw = np.empty(SHARED + 64, np.uint8)
    start = -raw.ctypes.data % 64
    shared = raw[start : start + SHARED]
    shared[:] = np.random.default_rng(0).integers(0, 256, SHARED)
    return shared


@pytest.mark.parametrize("element", sorted(DTYPES))
@pytest.mark.parametrize("swizzle", ["32B", "64B", "128B"])
@pytest.mark.parametrize("family", ["sm_90", "sm_100"])
def test_k_major_tiles_from_tma(element, swizzle, family):
    """One box of a swizzle span, several K steps inside it: each step alone and the run at once."""
    rng = np.random.default_rng(1)
    item = np.dtype(DTYPES[element]).itemsize
    span = SWIZZLES[swizzle].span
    rows, width = 72, span // item
    matrix = values(rng, element, (rows, 3 * width))
    tensor_map = TensorMap(matrix, box=(rows, width), swizzle=swizzle)
    shared, address = empty(), 5 * 1024
    place_box(
        shared,
        address,
        tensor_map.geometry,
        read_box(matrix.reshape(-1).view(np.uint8), tensor_map.geometry, (width, 0)),
    )
    tile = matrix[:, width : 2 * width]
    expected = tile if element in ("s8", "u8") else tile.astype(np.float32)
    k = 32 // item
    for step in range(span // 32):
        read = OperandReader(shared).read(
            descriptor(family, address + 32 * step, 16, 8 * span, swizzle), rows, k, element
        )
        assert (read == expected[:, step * k : (step + 1) * k]).all()
    run = OperandReader(shared).read(
        descriptor(family, address, 0, 8 * span, swizzle), rows, k, element, steps=span // 32, advance=32
    )
    assert run.shape == (rows, width)
    assert (run == expected).all()
    granules = footprint(descriptor(family, address, 0, 8 * span, swizzle), rows, width, element)
    assert (granules == np.arange(address, address + rows * span, 16)).all()


@pytest.mark.parametrize(
    ("element", "swizzle", "family"),
    [
        *((e, s, f) for e in ("bf16", "f16") for s in ("32B", "64B", "128B") for f in ("sm_90", "sm_100")),
        *((e, s, "sm_100") for e in ("e4m3", "e5m2", "s8", "u8") for s in ("32B", "64B", "128B")),
        ("tf32", "128B_32B_atom", "sm_100"),
    ],
)
def test_mn_major_tiles_from_tma(element, swizzle, family):
    """A [k, mn] tensor, one box per swizzle span of mn: the leading offset joins the boxes."""
    rng = np.random.default_rng(2)
    item = np.dtype(DTYPES[element]).itemsize
    width = SWIZZLES[swizzle].span // item
    boxes, depth, k = 2, 64, 32 // item
    matrix = values(rng, element, (depth, boxes * width))
    geometry = TensorMap(matrix, box=(depth, width), swizzle=swizzle).geometry
    shared, address = empty(), 3 * 1024
    flat = matrix.reshape(-1).view(np.uint8)
    for box in range(boxes):
        place_box(shared, address + box * geometry.box_bytes, geometry, read_box(flat, geometry, (box * width, 0)))
    lines = 4 if swizzle == "128B_32B_atom" else 8
    layout = (geometry.box_bytes, lines * SWIZZLES[swizzle].span, swizzle)
    expected = matrix.T if element in ("s8", "u8") else matrix.T.astype(np.float32)
    advance = k * SWIZZLES[swizzle].span
    for step in range(depth // k):
        read = OperandReader(shared).read(
            descriptor(family, address + step * advance, *layout), boxes * width, k, element, mn_major=True
        )
        assert (read == expected[:, step * k : (step + 1) * k]).all()
    run = OperandReader(shared).read(
        descriptor(family, address, *layout),
        boxes * width,
        k,
        element,
        mn_major=True,
        steps=depth // k,
        advance=advance,
    )
    assert (run == expected).all()


@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("element", ["bf16", "e4m3", "tf32"])
def test_tiles_without_swizzle(element, mn_major):
    """Core matrices of eight rows of 16 bytes, anywhere: leading and stride as the ISA defines them."""
    if mn_major and element == "tf32":
        return
    rng = np.random.default_rng(3)
    item = np.dtype(DTYPES[element]).itemsize
    t, rows, k = 16 // item, 64, 32 // item
    matrix = values(rng, element, (rows, k))
    shared = empty()
    start, leading, stride = 0x1230, 6400, 400
    for mn in range(rows):
        for kk in range(k):
            if mn_major:
                at = start + (mn % t) * item + (mn // t) * stride + (kk % 8) * 16 + (kk // 8) * leading
            else:
                at = start + (mn % 8) * 16 + (mn // 8) * stride + (kk // t) * leading + (kk % t) * item
            shared[at : at + item] = matrix[mn : mn + 1, kk : kk + 1].reshape(-1).view(np.uint8)
    read = OperandReader(shared).read(
        descriptor("sm_100", start, leading, stride, "none"), rows, k, element, mn_major=mn_major
    )
    assert (read == matrix.astype(np.float32)).all()


@pytest.mark.parametrize("element", sorted(NARROW))
@pytest.mark.parametrize("mn_major", [False, True])
def test_narrow_elements_padded_by_tma(element, mn_major):
    """Sixteen elements and padding in every 16 bytes, as the ALIGN16B maps write them."""
    rng = np.random.default_rng(4)
    dtype, bits = NARROW[element]
    rows = 32
    codes = rng.integers(0, 1 << bits, (rows, 128)).astype(np.uint8)
    stream = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits].reshape(rows, -1)
    memory = np.packbits(stream, axis=1, bitorder="little")
    name = "16u4_align16b" if bits == 4 else "16u6_align16b"
    geometry = TensorMap(memory, box=(rows, 128), dtype=name, swizzle="128B").geometry
    shared, address = empty(), 2048
    place_box(shared, address, geometry, read_box(memory.reshape(-1), geometry, (0, 0)))
    expected = codes.view(dtype).astype(np.float32)
    if mn_major:
        read = OperandReader(shared).read(
            descriptor("sm_100", address, 0, 1024, "128B"), 128, 32, element, mn_major=True
        )
        assert (read == expected.T).all()
    else:
        run = OperandReader(shared).read(
            descriptor("sm_100", address, 0, 1024, "128B"), rows, 32, element, steps=4, advance=32
        )
        assert (run == expected).all()


def test_packed_fp4():
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (128, 256)).astype(np.uint8)
    memory = codes[:, ::2] | codes[:, 1::2] << 4
    geometry = TensorMap(memory, box=(128, 256), dtype="16u4_align8b", swizzle="128B").geometry
    shared = empty()
    place_box(shared, 1024, geometry, read_box(memory.reshape(-1), geometry, (0, 0)))
    run = OperandReader(shared).read(
        descriptor("sm_100", 1024, 0, 1024, "128B"), 128, 64, "e2m1_packed", steps=4, advance=32
    )
    assert (run == codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_descriptor_reads_by_the_formula(data):
    """Random starts, strides and base offsets; an H200 was measured to do the same."""
    swizzle = SWIZZLES[data.draw(st.sampled_from(["none", "32B", "64B", "128B"]))]
    mn_major = data.draw(st.booleans())
    start, leading, stride = (16 * data.draw(st.integers(0, top)) for top in (2048, 128, 128))
    base = data.draw(st.integers(0, 7)) if swizzle.bits else 0
    shared = empty()
    words = shared.view(np.uint16)
    words &= 0xBFFF  # no infinities, no NaN
    read = OperandReader(shared).read(
        descriptor("sm_90", start, leading, stride, swizzle.name, base), 64, 16, "bf16", mn_major=mn_major
    )
    width = max(swizzle.span, 16)
    for mn, k in ((0, 0), (7, 9), (8, 15), (33, 4), (63, 15), (17, 8)):
        if mn_major:
            lines = (k % 8) * width + (k // 8) * (stride if swizzle.bits else leading)
            across = mn * 2 % width + (mn * 2 // width) * (leading if swizzle.bits else stride)
            linear = start + lines + across
        else:
            along = k * 2 if swizzle.bits else k * 2 % 16 + (k * 2 // 16) * leading
            linear = start + (mn % 8) * width + (mn // 8) * stride + along
        line = (linear >> 7) - base
        at = linear ^ (line & ((1 << swizzle.bits) - 1)) << 4
        assert read[mn, k] == words[at // 2 : at // 2 + 1].view(ml_dtypes.bfloat16).astype(np.float32)[0]


@pytest.mark.parametrize(
    ("family", "swizzle", "element", "mn_major", "diag"),
    [
        ("sm_90", "128B", "tf32", True, Diag.BAD_DESCRIPTOR),
        ("sm_90", "128B", "e4m3", True, Diag.BAD_DESCRIPTOR),
        ("sm_100", "128B", "tf32", True, Diag.BAD_DESCRIPTOR),
        ("sm_100", "128B_32B_atom", "bf16", True, Diag.BAD_DESCRIPTOR),
        ("sm_100", "128B", "e2m1_packed", True, Diag.BAD_DESCRIPTOR),
        ("sm_100", "128B_32B_atom", "tf32", False, Diag.NOT_MODELLED),
    ],
)
def test_majors_that_do_not_exist(family, swizzle, element, mn_major, diag):
    with pytest.raises(WarploomError) as caught:
        OperandReader(empty()).read(descriptor(family, 0, 0, 1024, swizzle), 64, 8, element, mn_major=mn_major)
    assert caught.value.diag is diag


def test_operands_stay_inside_shared_memory():
    rows = 64
    inside = descriptor("sm_90", SHARED - 8 * 1024, 0, 1024, "128B")
    assert OperandReader(empty()).read(inside, rows, 64, "bf16").shape == (64, 64)
    last = SHARED - 7 * 16 - 128 - 16
    assert OperandReader(empty()).read(descriptor("sm_90", last, 128, 0, "none"), 8, 16, "bf16").shape == (8, 16)
    with pytest.raises(Fault):
        OperandReader(empty()).read(descriptor("sm_90", last + 16, 128, 0, "none"), 8, 16, "bf16")
    for bad in (
        descriptor("sm_90", SHARED - 8 * 1024 + 1024, 0, 1024, "128B"),
        descriptor("sm_90", SHARED - 1024, 0, 1 << 17, "128B"),
        descriptor("sm_90", (1 << 18) - 16, 0, 0, "none"),
    ):
        with pytest.raises(Fault) as caught:
            OperandReader(empty()).read(bad, rows, 16, "bf16")
        assert caught.value.diag is Diag.OUT_OF_BOUNDS
        assert "stride" in str(caught.value)


@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_every_code_decodes(name):
    """All codes of every type against ml_dtypes."""
    element = ELEMENTS[name]
    if name in DTYPES and name != "tf32":
        dtype = np.dtype(DTYPES[name])
        raw = np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}")
        expected = raw.view(dtype) if dtype.kind in "iu" else raw.view(dtype).astype(np.float32)
    elif name == "tf32":
        raw = np.array([0x3F801FFF, 0xBF802000, 0x7F800000, 0x00001FFF], np.uint32)
        expected = np.array([0x3F800000, 0xBF802000, 0x7F800000, 0], np.uint32).view(np.float32)
    elif name.endswith("_byte"):
        dtype, bits = NARROW[name.removesuffix("_byte")]
        codes = np.arange(1 << bits).astype(np.uint8)
        raw = codes << 2 | 3 << 6 | 3 if bits == 4 else codes | 0xC0
        expected = codes.view(dtype).astype(np.float32)
    elif name in ("s4", "u4"):
        raw = np.arange(256).astype(np.uint8)
        halves = np.stack([raw & 15, raw >> 4], 1).reshape(-1)
        expected = (halves ^ 8).astype(np.int8) - np.int8(8) if name == "s4" else halves
    elif name == "b1":
        raw = np.arange(256).astype(np.uint8)
        expected = (raw[:, None] >> np.arange(8) & 1).astype(np.uint8).reshape(-1)
    elif name == "e2m1_packed":
        raw = np.arange(256).astype(np.uint8)
        expected = np.stack([raw & 15, raw >> 4], 1).reshape(-1).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    else:
        dtype, bits = NARROW[name]
        codes = np.arange(64).astype(np.uint8) & ((1 << bits) - 1)
        stream = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits].reshape(4, -1)
        raw = np.full((4, 16), 0xFF, np.uint8)
        raw[:, : 2 * bits] = np.packbits(stream, axis=1, bitorder="little")
        raw, expected = raw.reshape(-1), codes.view(dtype).astype(np.float32)
    found = element.decode(raw.astype(raw.dtype))
    assert found.dtype == (expected.dtype if expected.dtype.kind in "iu" else np.float32)
    np.testing.assert_array_equal(found, expected)


def test_scale_codes():
    codes = np.array([[127, 128, 0, 255]], np.uint8)
    np.testing.assert_array_equal(decode_scales(codes, "ue8m0"), [[1, 2, 2.0**-127, np.nan]])
    np.testing.assert_array_equal(decode_scales(np.array([0x38, 0xB8, 1], np.uint8), "ue4m3"), [1, 1, 2.0**-9])


@pytest.mark.parametrize(("vectors", "scale_type", "k"), [(1, "ue8m0", 32), (2, "ue8m0", 64), (4, "ue4m3", 64)])
def test_block_scaled_gemms(vectors, scale_type, k):
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-6, 7, (n, k)).astype(np.float32) for n in (128, 40))
    low, high = (100, 150) if scale_type == "ue8m0" else (0x20, 0x48)
    scale_a, scale_b = (rng.integers(low, high, (n, vectors)).astype(np.uint8) for n in (128, 40))
    expected = np.zeros((128, 40))
    block = k // vectors
    for i in range(k):
        factor_a, factor_b = (decode_scales(s, scale_type)[:, i // block] for s in (scale_a, scale_b))
        expected += np.outer(a[:, i] * factor_a, b[:, i] * factor_b)
    found = multiply_scaled(a, b, scale_a, scale_b, scale_type)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_scales_outside_float32_cancel():
    a = np.full((1, 32), 6, np.float32)
    found = multiply_scaled(a, a, np.array([[254]], np.uint8), np.array([[0]], np.uint8), "ue8m0")
    assert found[0, 0] == 36 * 32
