"""Arrays of pointers: nested arrays share their memory with the launch's other arguments."""

from __future__ import annotations

import json

import numpy as np
import pytest

from warploom import Fault, launch
from warploom.diagnostics import WarploomError
from warploom.host.arrays import Pointers
from warploom.launch_file import load

# Thread i loads word i of `table`; unless it is null, it adds `step` to element i of the array at that address.
ADD = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry add_to(.param .u64 table, .param .u64 other, .param .u32 step)
{
 .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<8>;
 ld.param.u64 %rd0, [table]; ld.param.u32 %r0, [step];
 mov.u32 %r1, %tid.x;
 mul.wide.u32 %rd1, %r1, 8; add.u64 %rd0, %rd0, %rd1;
 ld.global.u64 %rd2, [%rd0];
 setp.eq.u64 %p0, %rd2, 0;
 @%p0 ret;
 mul.wide.u32 %rd3, %r1, 4; add.u64 %rd2, %rd2, %rd3;
 ld.global.u32 %r2, [%rd2]; add.u32 %r2, %r2, %r0; st.global.u32 [%rd2], %r2;
 ret;
}
"""


def add(pointers, other=0, *, threads=None, step=5, text=ADD, **options):
    threads = len(pointers.arrays) if threads is None else threads
    return launch(text, grid=(1, 1, 1), block=(threads, 1, 1), args=[pointers, other, step], **options)


def drawn(size):
    return np.random.default_rng().integers(0, 1 << 20, size).astype(np.uint32)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("count", [1, 2, 7, 33])
def test_each_array_is_written_through_its_pointer(count, schedule):
    arrays = [drawn(count + size % 3) for size in range(count)]
    before = [array.copy() for array in arrays]
    add(Pointers(arrays), schedule=schedule)
    for number, (array, old) in enumerate(zip(arrays, before, strict=True)):
        old[number] += 5
        assert np.array_equal(array, old)


def test_none_is_a_null_pointer():
    array = drawn(3)
    before = array.copy()
    add(Pointers([None, array, None]))
    assert (array - before).tolist() == [0, 5, 0]


def test_an_array_that_is_passed_twice_has_one_memory():
    whole = drawn(8)
    before = whole.copy()
    add(Pointers(iter([whole, whole, whole[3:]])), whole)
    assert (whole - before).tolist() == [5, 5, 0, 0, 0, 5, 0, 0]
    same = ADD.replace(
        "ld.global.u64 %rd2, [%rd0];", "ld.global.u64 %rd2, [%rd0]; ld.param.u64 %rd4, [other];"
    ).replace("setp.eq.u64 %p0, %rd2, 0;", "setp.ne.u64 %p0, %rd2, %rd4;")
    add(Pointers([whole[3:], whole]), whole, text=same)
    assert (whole - before).tolist() == [5, 10, 0, 0, 0, 5, 0, 0]


def test_tensors_of_pytorch_are_written_in_place():
    torch = pytest.importorskip("torch")
    tensors = [torch.arange(4, dtype=torch.int32) for _ in range(3)]
    add(Pointers([*tensors[:2], None, tensors[2]]))
    assert [tensor.tolist() for tensor in tensors] == [[5, 1, 2, 3], [0, 6, 2, 3], [0, 1, 2, 8]]


def test_numbers_are_the_words_themselves():
    words = np.zeros(4, np.uint32)
    text = ADD.replace("setp.eq.u64 %p0, %rd2, 0;", "ld.param.u64 %rd4, [other]; add.u64 %rd4, %rd4, %rd1;").replace(
        "@%p0 ret;", "st.global.u64 [%rd4], %rd2; ret;"
    )
    add(Pointers([np.uint64(7), (1 << 64) - 2]), words, text=text)
    assert words.view(np.uint64).tolist() == [7, (1 << 64) - 2]


def test_a_fault_through_a_pointer_names_the_array():
    arrays = [drawn(4), drawn(1)]
    with pytest.raises(WarploomError, match="OUT_OF_BOUNDS") as caught:
        add(Pointers(arrays))
    assert "is the first byte after `argument 0, table[1]` (4 bytes)" in str(caught.value)


def test_the_pointer_array_has_bounds_and_is_read_only():
    with pytest.raises(WarploomError, match="OUT_OF_BOUNDS") as caught:
        add(Pointers([drawn(4)]), threads=2)
    assert "is the first byte after `argument 0, table` (8 bytes)" in str(caught.value)
    with pytest.raises(WarploomError, match="READ_ONLY") as caught:
        add(Pointers([None]), text=ADD.replace("setp.eq", "st.global.u64 [%rd0], %rd2; setp.eq"))
    assert "`argument 0, table`" in str(caught.value)


def test_a_read_only_array_stays_read_only():
    array = drawn(2)
    array.flags.writeable = False
    with pytest.raises(WarploomError, match="READ_ONLY") as caught:
        add(Pointers([array]))
    assert "`argument 0, table[0]`" in str(caught.value)


def test_all_invalid_elements_are_reported_at_once():
    with pytest.raises(WarploomError, match="BAD_LAUNCH") as caught:
        Pointers([drawn(1), "x", None, -1, 1 << 64, True, 0.5, [1]])
    assert [note.partition(":")[0] for note in caught.value.notes] == [f"element {at}" for at in (1, 3, 4, 5, 6, 7)]


def test_pointers_need_a_64_bit_parameter():
    with pytest.raises(WarploomError, match="BAD_LAUNCH") as caught:
        launch(ADD, grid=(1, 1, 1), block=(1, 1, 1), args=[0, 0, Pointers([])])
    assert "Pointers of 0" in caught.value.notes[0]


FILE = {
    "ptx": "k.ptx",
    "grid": [1, 1, 1],
    "block": [4, 1, 1],
    "buffers": {
        "a": {"dtype": "uint32", "shape": [5], "output": True, "init": "arange"},
        "b": {"dtype": "uint32", "shape": [7], "output": True, "init": "zeros"},
        "c": {"dtype": "uint32", "shape": [2]},
    },
    "args": [{"pointers": ["a", None, {"pointer": "b", "offset": 12}, "b"]}, {"pointer": "a"}, {"u32": 9}],
    "compare": [
        {"expr": "a == initial(a) + where(arange(5) == 0, 9, 0)"},
        {"expr": "b == where(arange(7) == 5, 9, 0) + where(arange(7) == 3, 9, 0)"},
    ],
}


def written(folder, **parts):
    (folder / "k.ptx").write_text(ADD)
    path = folder / "k.launch.json"
    path.write_text(json.dumps({**FILE, **parts}))
    return path


def test_a_launch_file_runs(tmp_path):
    file = load(written(tmp_path))
    buffers = file.allocate()
    assert len(file.check(buffers)) == 2
    made = file.launch(buffers)
    assert [None if each is None else np.shares_memory(each, buffers["a"]) for each in made.args[0].arrays] == [
        True, None, False, False,
    ]  # fmt: skip
    launch(made)
    assert file.check(buffers) == []


def test_a_launch_file_reports_all_invalid_pointers(tmp_path):
    elements = ["a", "missing", {"pointer": "b", "offset": 28}, {"pointer": "nothing", "offset": 1}]
    with pytest.raises(WarploomError, match="BAD_LAUNCH_FILE") as caught:
        load(written(tmp_path, args=[{"pointers": elements}, {"pointers": [3, {"pointer": "a"}, True]}]))
    notes = sorted(caught.value.notes)
    assert notes[:3] == [
        "args[0]: element 1: there is no buffer `missing`; the file has a, b, c",
        "args[0]: element 2: starts at byte 28 of `b`, which has 28",
        "args[0]: element 3: there is no buffer `nothing`; the file has a, b, c",
    ]
    assert [note.partition(":")[0] for note in notes[3:]] == [f"args[1].pointers[{at}]" for at in range(3)]


def test_an_input_of_a_launch_file_is_read_only_through_a_pointer(tmp_path):
    made = load(written(tmp_path, block=[1, 1, 1], args=[{"pointers": ["c"]}, {"u64": 0}, {"u32": 1}])).launch()
    with pytest.raises(WarploomError, match="READ_ONLY"):
        launch(made)


def stored_at(index: int, lanes: range = range(32), block: int = 32) -> str:
    """The message of a store whose given lanes write at an index of the second of two arrays."""
    ptx = f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 x)
{{
 .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<4>;
 ld.param.u64 %rd1, [x];
 mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, {lanes.start}; setp.lt.and.u32 %p2, %r1, {lanes.stop}, %p1;
 selp.b32 %r2, {index}, %r1, %p2;
 mul.wide.s32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;
 st.global.u32 [%rd3], %r1;
 ret;
}}"""
    a, x = np.zeros(block, np.uint32), np.zeros(block, np.uint32)
    with pytest.raises(Fault) as caught:
        launch(ptx, grid=1, block=block, args=[a, x])
    return str(caught.value)


def test_a_negative_index_is_reported_with_the_buffer_that_it_precedes():
    assert "is 4 bytes before `argument 1, x` (128 bytes)" in stored_at(-1)
    assert "is 4 bytes past the end of `argument 1, x` (128 bytes)" in stored_at(33)
    assert "is 8589934460 bytes past the end of `argument 1, x` (128 bytes): an index may" in stored_at((1 << 31) - 1)


@pytest.mark.parametrize(
    ("lanes", "words"),
    [
        (range(104, 105), "warp 3, lane 8"),
        (range(32, 96), "warps 1-2, all lanes"),
        (range(128), "warps 0-3, all lanes"),
        (range(60, 66), "warp 1, lanes 28-31; warp 2, lanes 0-1"),
    ],
)
def test_a_fault_of_a_convoy_names_the_warps_and_their_own_lanes(lanes, words):
    assert f"by CTA (0,0), {words}\n" in stored_at(4096, lanes, 128)
