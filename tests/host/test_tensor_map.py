"""Tensor maps: every rule broken once, and boxes against a copy of one element at a time."""

import itertools
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warploom.diagnostics import Diag, Fault, LaunchError, WarploomError
from warploom.hardware.swizzles import SWIZZLES
from warploom.hardware.tensor_maps import DTYPE_DEFAULTS, MAP_TYPES
from warploom.host.tensor_map import TensorMap
from warploom.machine.copy.boxes import (
    collect_box,
    place_box,
    read_box,
    read_rows,
    reduce_box,
    write_box,
    write_rows,
)
from warploom.machine.copy.reductions import DTYPES, reduce_values
from warploom.machine.tensor.elements import expand_padded, round_to_tf32


def array(*shape, dtype=np.float16):
    return np.zeros(shape, dtype)


BROKEN = [
    ("dtype", {"array": array(8, 64, dtype=np.complex64)}, "complex64 is not a tensor-map type"),
    ("rank", {"array": array(1, 1, 1, 1, 1, 16), "box": (1, 1, 1, 1, 1, 8)}, "6 is not 1 to 5"),
    ("rank", {"interleave": "16B"}, "2 is less than 3"),
    ("box", {"box": (8,)}, "(8,) has 1 axes, the tensor has 2"),
    ("element_strides", {"element_strides": (1, 1, 1)}, "has 3 axes"),
    ("strides", {"shape": (4, 64), "strides": (128, 2, 2)}, "has 3 axes"),
    ("shape", {"shape": (0, 64)}, "axis 0 has 0 elements"),
    ("shape", {"shape": ((1 << 32) + 1, 64), "strides": (0, 2)}, "not 1 to 2^32"),
    (
        "shape",
        {"array": array(8, 64, dtype=np.uint8), "dtype": "16u4_align16b", "box": (8, 128), "shape": (8, 64)},
        "128",
    ),
    ("shape", {"array": array(8, 64, dtype=np.uint8), "dtype": "16u4_align8b", "box": (8, 32), "shape": (8, 63)}, "2"),
    ("strides", {"array": array(64, 64).T[::2], "box": (8, 8)}, "not the 2 bytes of one element"),
    ("strides", {"array": array(8, 36), "box": (8, 8)}, "axis 0 has stride 72 bytes, not a multiple of 16"),
    ("strides", {"array": array(64, 64)[::-1]}, "axis 0 has stride -128 bytes, not 0 to 2^40 - 1"),
    ("strides", {"shape": (1, 64), "strides": (1 << 40, 2)}, "not 0 to 2^40 - 1"),
    ("strides", {"array": array(9, 48, dtype=np.uint8), "dtype": "16u4_align16b", "box": (8, 128)}, "a multiple of 32"),
    ("address", {"array": array(8, 128)[:, 4:]}, "begins at byte 0x8 of its memory, not on a multiple of 16"),
    ("address", {"offset": 8, "shape": (4, 64)}, "begins at byte 0x8"),
    (
        "address",
        {
            "array": array(9, 64, dtype=np.uint8),
            "dtype": "16u4_align16b",
            "box": (8, 128),
            "offset": 16,
            "shape": (2, 128),
        },
        "multiple of 32",
    ),
    ("box", {"box": (0, 64)}, "axis 0 has 0 elements, not 1 to 256"),
    ("box", {"array": array(300, 64), "box": (257, 64)}, "axis 0 has 257 elements"),
    ("box", {"box": (8, 4)}, "takes 8 bytes, not a multiple of 16"),
    ("box", {"box": (8, 64), "swizzle": "64B"}, "takes 128 bytes; swizzle 64B allows 64"),
    ("box", {"array": array(8, 128, dtype=np.uint8), "dtype": "16u4_align16b", "box": (8, 64)}, "64 values, not 128"),
    (
        "box",
        {"array": array(256, 1024), "box": (256, 256), "shape": (2, 256, 1024), "strides": (0, 2048, 2)},
        "has 2 axes",
    ),
    ("box", {"array": array(2, 256, 1024), "box": (2, 256, 256)}, "it takes 262144 bytes of shared memory"),
    ("element_strides", {"element_strides": (9, 1)}, "axis 0 has 9, not 1 to 8"),
    ("element_strides", {"element_strides": (0, 1)}, "axis 0 has 0, not 1 to 8"),
    ("swizzle", {"swizzle": "256B"}, "'256B' is not one of none, 32B"),
    ("swizzle", {"array": array(4, 8, 16), "box": (4, 8, 16), "interleave": "32B"}, "interleave 32B needs swizzle 32B"),
    (
        "swizzle",
        {"array": array(8, 64, dtype=np.uint8), "dtype": "16u4_align16b", "box": (8, 128), "swizzle": "64B"},
        "has none, 128B",
    ),
    ("interleave", {"interleave": "64B"}, "'64B' is not one of"),
    (
        "interleave",
        {"array": array(8, 8, 96, dtype=np.uint8), "dtype": "16u6_align16b", "box": (8, 8, 128), "interleave": "16B"},
        "has none",
    ),
    ("fill", {"fill": "one"}, "'one' is not one of zero, nan"),
    ("fill", {"array": array(8, 64, dtype=np.int32), "box": (8, 8), "fill": "nan"}, "nan needs a floating-point type"),
    ("l2_promotion", {"l2_promotion": "512B"}, "'512B' is not one of"),
    ("array", {"shape": (9, 64)}, "takes bytes 0 to 1152 of an array of 1024 bytes"),
    ("array", {"offset": 128, "shape": (8, 64)}, "takes bytes 128 to 1152"),
    ("array", {"offset": 1024, "shape": (8, 64), "beyond": True}, "begins at byte 1024 of an array of 1024 bytes"),
]


@pytest.mark.parametrize(("subject", "change", "words"), BROKEN)
def test_every_rule_broken_once(subject, change, words):
    arguments = {"array": array(8, 64), "box": (8, 64), **change}
    source = arguments.pop("array")
    with pytest.raises(LaunchError) as caught:
        TensorMap(source, **arguments)
    assert caught.value.diag is Diag.BAD_TENSOR_MAP
    assert any(note.startswith(f"{subject}: ") and words in note for note in caught.value.notes), caught.value.notes


def test_all_broken_rules_come_in_one_error():
    with pytest.raises(LaunchError) as caught:
        TensorMap(array(8, 36), box=(300, 3), swizzle="weird", fill="nan", dtype="u16", element_strides=(9, 1))
    assert caught.value.fields["count"] == len(caught.value.notes) == 6
    assert {note.partition(":")[0] for note in caught.value.notes} == {
        "swizzle",
        "strides",
        "box",
        "element_strides",
        "fill",
    }


def test_a_map_keeps_its_array_and_fills_in_the_rest():
    source = np.zeros((3, 24, 64), ml_dtypes.bfloat16)
    tensor_map = TensorMap(source, box=(1, 8, 64), swizzle="128B", element_strides=(1, 2, 1))
    assert tensor_map.array is source
    assert tensor_map.dtype == "bf16"
    assert tensor_map.geometry.shape == (3, 24, 64)
    assert tensor_map.geometry.strides == (24 * 128, 128)
    assert tensor_map.box == (1, 4, 64)
    assert tensor_map.box_bytes == 4 * 128
    with pytest.raises(AttributeError):
        tensor_map.array = None


def test_every_dtype_has_its_type():
    for name, row in DTYPE_DEFAULTS.items():
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        assert dtype.itemsize == row.global_bytes
        assert TensorMap(np.zeros((4, 256), dtype), box=(4, 16)).dtype == row.name
    assert sorted(row.code for row in MAP_TYPES.values()) == list(range(16))


def test_packed_types_count_values():
    packed = np.zeros((8, 64), np.uint8)
    assert TensorMap(packed, box=(8, 64), dtype="16u4_align8b").geometry.shape == (8, 128)
    padded = TensorMap(packed, box=(8, 128), dtype="16u4_align16b", swizzle="128B")
    assert (padded.box_bytes, padded.geometry.shared_bytes) == (8 * 64, 8 * 128)
    assert TensorMap(np.zeros((8, 96), np.uint8), box=(8, 128), dtype="16u6_align16b").geometry.shape == (8, 128)


def test_torch_like_tensors():
    tensor = SimpleNamespace(
        shape=(16, 64),
        dtype="torch.bfloat16",
        device="cuda:0",
        stride=lambda: (64, 1),
        element_size=lambda: 2,
        data_ptr=lambda: 0x7F00,
    )
    tensor_map = TensorMap(tensor, box=(8, 64), swizzle="128B")
    assert tensor_map.array is tensor
    assert tensor_map.geometry.strides == (128,)
    tensor.data_ptr = lambda: 0x7F08
    with pytest.raises(LaunchError):
        TensorMap(tensor, box=(8, 64))


@st.composite
def maps(draw, dtypes=("uint8", "float16", "float32", "float64")):
    """A map over a flat buffer, and coordinates around it."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    item = dtype.itemsize
    rank = draw(st.integers(1, 5))
    inner = 16 // item
    steps = [draw(st.integers(1, 3)) for _ in range(rank - 1)] + [1]
    box = [draw(st.integers(1, 4 * step)) for step in steps[:-1]] + [inner * draw(st.integers(1, 3))]
    shape = [draw(st.integers(1, 6)) for _ in range(rank - 1)] + [draw(st.integers(1, 4 * inner))]
    strides = [item]
    reach = -(-shape[-1] * item // 16) * 16
    for extent in reversed(shape[:-1]):
        strides.insert(0, reach + 16 * draw(st.integers(0, 2)))
        reach = strides[0] * extent
    coords = [inner * draw(st.integers(-4, 5))] + [draw(st.integers(-5, 8)) for _ in range(rank - 1)]
    offset = 16 * draw(st.integers(0, 3))
    fill = draw(st.sampled_from(["zero", "nan"])) if dtype.kind == "f" else "zero"
    swizzle = draw(st.sampled_from([name for name, s in SWIZZLES.items() if not s.span or s.span >= box[-1] * item]))
    memory = np.random.default_rng(draw(st.integers(0, 1 << 30))).integers(0, 256, offset + reach + 64).astype(np.uint8)
    tensor_map = TensorMap(
        memory,
        box=box,
        shape=shape,
        strides=strides,
        dtype=dtype,
        element_strides=steps,
        swizzle=swizzle,
        fill=fill,
        offset=offset,
    )
    return tensor_map, coords, memory


def positions(geometry, coords):
    """(index in the box, byte offset in global memory or None outside), element by element."""
    item = geometry.element.global_bytes
    for index in itertools.product(*map(range, geometry.box)):
        offset, inside = 0, True
        for axis, i in enumerate(index):
            at = coords[len(index) - 1 - axis] + i * geometry.element_strides[axis]
            inside &= 0 <= at < geometry.shape[axis]
            offset += at * (geometry.strides[axis] if axis < len(index) - 1 else item)
        yield index, offset if inside else None


@settings(max_examples=150, deadline=None)
@given(maps())
def test_read_box_against_one_element_at_a_time(case):
    tensor_map, coords, memory = case
    geometry, item = tensor_map.geometry, tensor_map.geometry.element.global_bytes
    expected = np.zeros((*geometry.box, item), np.uint8)
    if geometry.fill == "nan":
        expected[...] = np.frombuffer(b"\xf7\x7f" * (item // 2), np.uint8)
    for index, offset in positions(geometry, coords):
        if offset is not None:
            start = tensor_map.offset + offset
            expected[index] = memory[start : start + item]
    before = memory.copy()
    dense = read_box(memory, geometry, coords, tensor_map.offset)
    assert dense.nbytes == tensor_map.box_bytes
    assert (dense == expected.reshape(-1)).all()
    dense[...] = ~dense
    assert (memory == before).all()


@settings(max_examples=100, deadline=None)
@given(maps(), st.integers(0, 1 << 30))
def test_write_box_against_one_element_at_a_time(case, seed):
    tensor_map, coords, memory = case
    coords = [abs(c) for c in coords]
    geometry, item = tensor_map.geometry, tensor_map.geometry.element.global_bytes
    dense = np.random.default_rng(seed).integers(0, 256, tensor_map.box_bytes).astype(np.uint8)
    expected = memory.copy()
    for index, offset in positions(geometry, coords):
        if offset is not None:
            flat = np.ravel_multi_index(index, geometry.box) * item
            expected[tensor_map.offset + offset : tensor_map.offset + offset + item] = dense[flat : flat + item]
    write_box(memory, geometry, coords, dense, tensor_map.offset)
    assert (memory == expected).all()


@settings(max_examples=100, deadline=None)
@given(maps(), st.integers(0, 15), st.integers(0, 1 << 30))
def test_boxes_are_placed_line_by_line_and_collected_again(case, line, seed):
    tensor_map = case[0]
    geometry = tensor_map.geometry
    rng = np.random.default_rng(seed)
    dense = rng.integers(0, 256, tensor_map.box_bytes).astype(np.uint8)
    shared = np.full(1 << 16, 0xCC, np.uint8)
    address = 128 * line
    place_box(shared, address, geometry, dense)
    expected = np.full(1 << 16, 0xCC, np.uint8)
    rows = dense.reshape(-1, geometry.row_bytes)
    for y, x in itertools.product(range(len(rows)), range(geometry.row_bytes)):
        expected[geometry.swizzle.apply(address + y * max(geometry.swizzle.span, geometry.row_bytes) + x)] = rows[y, x]
    assert (shared == expected).all()
    assert (collect_box(shared, address, geometry) == dense).all()


def test_element_strides_count_from_a_negative_coordinate():
    source = np.arange(80, dtype=np.int32).reshape(10, 8)
    geometry = TensorMap(source, box=(8, 8), element_strides=(2, 1)).geometry
    dense = read_box(source.reshape(-1).view(np.uint8), geometry, (0, -3)).view(np.int32).reshape(4, 8)
    assert (dense[:2] == 0).all()
    assert (dense[2:] == source[[1, 3]]).all()


def test_boxes_stay_inside_shared_memory_and_aligned():
    geometry = TensorMap(array(8, 64), box=(8, 64), swizzle="128B").geometry
    dense, shared = np.zeros(1024, np.uint8), np.zeros(2048, np.uint8)
    for address, diag in ((1152, Diag.OUT_OF_BOUNDS), (64, Diag.MISALIGNED)):
        with pytest.raises(Fault) as caught:
            place_box(shared, address, geometry, dense)
        assert caught.value.diag is diag
        with pytest.raises(Fault):
            collect_box(shared, address, geometry)


@pytest.mark.parametrize(
    ("action", "coords", "words"),
    [
        (read_box, (4, 0), "a multiple of 8"),
        (read_box, (0, 0, 0), "the tensor has 2 axes"),
        (write_box, (0, -1), "none below 0"),
        (write_box, (-8, 0), "none below 0"),
    ],
)
def test_illegal_coordinates(action, coords, words):
    geometry = TensorMap(array(8, 64), box=(8, 64)).geometry
    rest = () if action is read_box else (np.zeros(1024, np.uint8),)
    with pytest.raises(Fault) as caught:
        action(np.zeros(1024, np.uint8), geometry, coords, *rest)
    assert caught.value.diag is Diag.BAD_COORDINATES
    assert words in caught.value.what


def test_interleaved_maps_are_reported():
    interleaved = TensorMap(array(4, 8, 16), box=(4, 8, 8), interleave="16B").geometry
    with pytest.raises(WarploomError) as caught:
        read_box(np.zeros(2048, np.uint8), interleaved, (0, 0, 0))
    assert caught.value.diag is Diag.NOT_MODELLED


def test_packed_tensors_are_padded_in_shared_memory():
    rng = np.random.default_rng(3)
    nibbles = rng.integers(0, 16, (5, 256)).astype(np.uint8)
    memory = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).reshape(-1)
    tensor_map = TensorMap(memory.reshape(5, 128), box=(4, 128), dtype="16u4_align16b")
    dense = read_box(memory, tensor_map.geometry, (128, 2))
    assert (expand_padded(dense.reshape(4, 128), "b4x16_p64")[:3] == nibbles[2:, 128:]).all()
    assert (expand_padded(dense.reshape(4, 128), "b4x16_p64")[3] == 0).all()
    with pytest.raises(Fault):
        write_box(memory, tensor_map.geometry, (0, 0), dense)
    with pytest.raises(Fault):
        read_box(memory, tensor_map.geometry, (64, 0))
    plain = TensorMap(memory.reshape(5, 128), box=(5, 64), dtype="16u4_align8b")
    assert (read_box(memory, plain.geometry, (64, 0)) == memory.reshape(5, 128)[:, 32:64].reshape(-1)).all()


def test_six_bit_tensors_round_trip():
    rng = np.random.default_rng(4)
    values = rng.integers(0, 64, (3, 128)).astype(np.uint8)
    memory = np.zeros((3, 96), np.uint8)
    tensor_map = TensorMap(memory, box=(3, 128), dtype="16u6_align16b")
    write_box(memory.reshape(-1), tensor_map.geometry, (0, 0), (values | 0xC0).reshape(-1))
    dense = read_box(memory.reshape(-1), tensor_map.geometry, (0, 0))
    assert (expand_padded(dense.reshape(3, 128), "b6x16_p32") == values).all()


def test_tf32_maps_round_on_load():
    words = np.array([0x3F801000, 0x3F803000, 0x3F800FFF, 0x7F7FFFFF, 0xFF800001, 0x80000001, 0x007FF000, 0], np.uint32)
    rounded = np.array(
        [0x3F800000, 0x3F804000, 0x3F800000, 0x7F800000, 0x7FFFE000, 0x80000000, 0x00800000, 0], np.uint32
    )
    assert (round_to_tf32(words) == rounded).all()
    tensor_map = TensorMap(words, box=(8,), dtype="tf32")
    assert (read_box(words.view(np.uint8), tensor_map.geometry, (0,)).view(np.uint32) == rounded).all()


def test_gather4_and_scatter4():
    rng = np.random.default_rng(5)
    source = rng.integers(0, 1000, (10, 64)).astype(np.int32)
    geometry = TensorMap(source, box=(1, 32), swizzle="128B").geometry
    rows = [7, 0, 12, 3]
    dense = read_rows(source.reshape(-1).view(np.uint8), geometry, 32, rows).view(np.int32).reshape(4, 32)
    assert (dense[[0, 1, 3]] == source[[7, 0, 3], 32:]).all()
    assert (dense[2] == 0).all()
    target = np.zeros_like(source)
    write_rows(target.reshape(-1).view(np.uint8), geometry, 0, [9, 1, 2, 8], dense.view(np.uint8).reshape(-1))
    assert (target[[9, 1, 8], :32] == dense[[0, 1, 3]]).all()


REDUCERS = {
    "add": lambda a, b: a + b,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda a, b: np.where(a >= b, 0, a + 1),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1),
}


@pytest.mark.parametrize("operation", sorted(REDUCERS))
@pytest.mark.parametrize("name", ["u32", "i32", "u64", "i64", "f32", "f16", "bf16"])
def test_reduce_box(operation, name):
    dtype = DTYPES[name]
    rng = np.random.default_rng(6)
    width = 32 // dtype.itemsize
    current = rng.integers(0, 9, (7, 2 * width)).astype(dtype)
    operand = rng.integers(0, 9, (4, width)).astype(dtype)
    before = current.copy()
    geometry = TensorMap(current, box=(4, width), dtype=name).geometry
    memory = current.reshape(-1).view(np.uint8)
    legal = {
        "add": ("u32", "i32", "u64", "f32", "f16", "bf16"),
        "min": ("u32", "i32", "u64", "i64", "f16", "bf16"),
        "max": ("u32", "i32", "u64", "i64", "f16", "bf16"),
        "inc": ("u32",),
        "dec": ("u32",),
    }.get(operation, ("u32", "i32", "u64", "i64"))
    if name not in legal:
        with pytest.raises(Fault) as caught:
            reduce_box(operation, memory, geometry, (0, 5), operand.reshape(-1).view(np.uint8))
        assert caught.value.diag is Diag.BAD_SHAPE
        assert (current == before).all()
        return
    reduce_box(operation, memory, geometry, (0, 5), operand.reshape(-1).view(np.uint8))
    before[5:, :width] = REDUCERS[operation](before[5:, :width], operand[:2]).astype(dtype)
    assert (current == before).all()


def test_reductions_of_special_numbers():
    """The expected values are those of an H200."""
    f32 = np.array([0x0045A6D8, 0x8013B9A2, 0x7F800000, 0x7F800001], np.uint32).view(np.float32)
    other = np.array([0x02B465E2, 0x004FAA4B, 0xFF800000, 0x3F800000], np.uint32).view(np.float32)
    assert (
        reduce_values("add", "f32", f32, other).view(np.uint32) == [0x02B8C050, 0x003BF0A9, 0x7FFFFFFF, 0x7FFFFFFF]
    ).all()
    flushed = reduce_values("add", "f32_ftz", f32, other).view(np.uint32)
    assert (flushed[:2] == [0x02B465E2, 0]).all()
    halves = np.array([0xFF94, 0xFF94, 0x3C00, 0x8000], np.uint16).view(np.float16)
    others = np.array([0xFE8B, 0x4000, 0x7E00, 0x0000], np.uint16).view(np.float16)
    assert (reduce_values("min", "f16", halves, others).view(np.uint16) == [0x7FFF, 0x4000, 0x3C00, 0x8000]).all()
    assert (reduce_values("max", "f16", halves, others).view(np.uint16) == [0x7FFF, 0x4000, 0x3C00, 0x0000]).all()
