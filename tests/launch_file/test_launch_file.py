"""Launch files: schema and reader agree, buffers match their specification, untrusted files access nothing else."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import jsonschema
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warploom.diagnostics import WarploomError
from warploom.hardware import tensor_maps
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.swizzles import SWIZZLES
from warploom.host.launch import Launch
from warploom.host.tensor_map import TensorMap
from warploom.launch_file import launch_file_schema, load
from warploom.launch_file.schema import violations

GOOD = {
    "ptx": "k.ptx",
    "entry": "k",
    "grid": [2, 1, 1],
    "block": [32, 1, 1],
    "cluster": [1, 1, 1],
    "shared_bytes": 128,
    "seed": 7,
    "buffers": {
        "x": {"dtype": "float32", "shape": [6, 16], "init": {"uniform": [-1, 1]}},
        "w": {"dtype": "bfloat16", "shape": [4, 8], "strides": [32, 2], "init": {"normal": [0, 2.5]}},
        "n": {"dtype": "int8", "shape": [9], "init": {"integers": [-3, 3]}},
        "y": {"dtype": "float16", "shape": [6, 16], "output": True},
    },
    "args": [
        {"tensor_map": "x", "box": [3, 4], "swizzle": "none"},
        {"pointer": "y", "offset": 4},
        {"u32": 5},
        {"bytes": "00ff10"},
        {"pointers": ["x", None, {"pointer": "y", "offset": 8}]},
    ],
    "compare": [{"expr": "y == x", "rtol": 0.01, "atol": 0}],
    "expect": "y is x",
    "kind": "copy",
}


def write(folder: Path, document: object, ptx: str = ".version 9.0\n") -> Path:
    (folder / "k.ptx").write_text(ptx)
    path = folder / "k.launch.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def changed(**parts: object) -> dict:
    return {**copy.deepcopy(GOOD), **parts}


def problems(folder: Path, document: object) -> list[str]:
    with pytest.raises(WarploomError) as caught:
        load(write(folder, document))
    assert caught.value.code == "BAD_LAUNCH_FILE"
    return list(caught.value.notes)


def with_buffer(**spec: object) -> dict:
    """A file whose only buffer is x."""
    return changed(buffers={"x": {"dtype": "float32", "shape": [64], **spec}}, args=[], compare=[])


def allocated(folder: Path, **spec: object) -> np.ndarray:
    return load(write(folder, with_buffer(**spec))).allocate()["x"]


class TestReading:
    def test_fields_have_the_values_of_the_file(self, tmp_path):
        file = load(write(tmp_path, GOOD, ptx="// text\n"))
        assert (file.ptx, file.entry, file.grid, file.block) == ("// text\n", "k", (2, 1, 1), (32, 1, 1))
        assert (file.cluster, file.shared_bytes, file.seed, file.expect) == ((1, 1, 1), 128, 7, "y is x")
        assert [c.text for c in file.comparisons] == ["y == x"]

    def test_names_of_kernels_are_as_long_as_those_of_templates(self, tmp_path):
        assert load(write(tmp_path, changed(entry="k" * 65536))).entry == "k" * 65536
        assert problems(tmp_path, changed(entry="k" * 65537))[0].startswith("entry")

    def test_optional_parts_have_defaults(self, tmp_path):
        short = {key: GOOD[key] for key in ("ptx", "grid", "block", "buffers", "args")}
        file = load(write(tmp_path, short))
        assert (file.entry, file.cluster, file.shared_bytes, file.seed) == (None, (1, 1, 1), 0, 0)
        assert (file.comparisons, file.expect) == ((), "")

    def test_the_seed_can_be_overridden(self, tmp_path):
        path = write(tmp_path, GOOD)
        assert load(path, seed=8).seed == 8
        assert not np.array_equal(load(path, seed=8).allocate()["x"], load(path).allocate()["x"])

    def test_integral_floats_are_integers(self, tmp_path):
        assert load(write(tmp_path, changed(grid=[2.0, 1.0, 1.0]))).grid == (2, 1, 1)


class TestBuffers:
    def test_the_seed_and_the_name_decide_the_numbers(self, tmp_path):
        first, second = (load(write(tmp_path, GOOD)).allocate() for _ in range(2))
        for name, array in first.items():
            assert array.tobytes() == second[name].tobytes()
        one = allocated(tmp_path, init={"uniform": [-1, 1]}, shape=[6, 16])
        document = with_buffer(init={"uniform": [-1, 1]}, shape=[6, 16])
        document["buffers"]["other"] = document["buffers"]["x"]
        both = load(write(tmp_path, document)).allocate()
        assert np.array_equal(both["x"], one)
        assert not np.array_equal(both["x"], both["other"])

    def test_only_outputs_can_be_written(self, tmp_path):
        buffers = load(write(tmp_path, GOOD)).allocate()
        assert {name for name, array in buffers.items() if array.flags.writeable} == {"y"}
        assert {name for name, array in buffers.items() if array.base.flags.writeable} == {"y"}

    @pytest.mark.parametrize("dtype", launch_file_schema()["$defs"]["dtype"]["enum"])
    def test_every_dtype_is_poisoned_and_filled(self, tmp_path, dtype):
        poisoned = allocated(tmp_path, dtype=dtype, output=True)
        assert poisoned.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
        if dtype != "bool":
            assert set(poisoned.tobytes()) == {0xFF}
        if poisoned.dtype.kind not in "iub":
            assert np.isnan(poisoned.astype(np.float64)).all()
        filled = allocated(tmp_path, dtype=dtype)
        assert len(np.unique(filled.astype(np.float64))) > 1
        assert np.isfinite(filled.astype(np.float64)).all()

    def test_distributions(self, tmp_path):
        uniform = allocated(tmp_path, shape=[40, 25], init={"uniform": [2, 3]})
        assert uniform.min() >= 2
        assert uniform.max() <= 3
        assert 2.4 < uniform.mean() < 2.6
        normal = allocated(tmp_path, shape=[2000], init={"normal": [5, 0.5]})
        assert 4.9 < normal.mean() < 5.1
        assert 0.4 < normal.std() < 0.6
        integers = allocated(tmp_path, shape=[500], init={"integers": [-2, 1]})
        assert set(integers) == {-2, -1, 0, 1}
        assert (allocated(tmp_path, init="zeros") == 0).all()
        assert (allocated(tmp_path, init="ones") == 1).all()
        assert np.isnan(allocated(tmp_path, init="nan")).all()
        assert (allocated(tmp_path, init={"constant": -2.5}) == -2.5).all()
        assert (allocated(tmp_path, init="arange") == np.arange(64)).all()
        assert (allocated(tmp_path, init={"arange": [10, -0.5]}) == 10 - np.arange(64) / 2).all()
        assert (allocated(tmp_path, shape=[2, 2], init={"values": [1, 2, 3, 4.5]}) == [[1, 2], [3, 4.5]]).all()
        wide = allocated(tmp_path, dtype="uint64", shape=[3], init={"values": [0, 1 << 63, (1 << 64) - 1]})
        assert list(wide) == [0, 1 << 63, (1 << 64) - 1]
        down = allocated(tmp_path, dtype="uint64", shape=[4], init={"arange": [(1 << 63) + 1, -1]})
        assert [int(v) for v in down] == [(1 << 63) + 1 - i for i in range(4)]
        high = allocated(tmp_path, dtype="uint64", init={"integers": [(1 << 64) - 2, (1 << 64) - 1]})
        assert {int(v) for v in high} == {(1 << 64) - 2, (1 << 64) - 1}

    def test_filling_in_pieces_changes_nothing(self, tmp_path, monkeypatch):
        inits = [{"uniform": [0, 1]}, {"normal": [0, 1]}, {"integers": [0, 99]}, "arange", {"values": list(range(64))}]
        whole = [allocated(tmp_path, init=init) for init in inits]
        monkeypatch.setattr("warploom.launch_file.buffers.ELEMENTS_AT_ONCE", 7)
        for init, expected in zip(inits, whole, strict=True):
            assert np.array_equal(allocated(tmp_path, init=init), expected)

    def test_strides_leave_poisoned_gaps(self, tmp_path):
        array = allocated(tmp_path, dtype="uint16", shape=[3, 5], strides=[16, 2], init="arange")
        assert array.strides == (16, 2)
        assert np.array_equal(array, np.arange(15).reshape(3, 5))
        row = array.base[:16].view(np.uint16)
        assert list(row) == [0, 1, 2, 3, 4, 0xFFFF, 0xFFFF, 0xFFFF]
        column_major = allocated(tmp_path, dtype="int32", shape=[3, 4], strides=[4, 12], init="arange")
        assert column_major.flags.f_contiguous
        assert np.array_equal(column_major, np.arange(12).reshape(3, 4))

    def test_empty_and_scalar_shapes(self, tmp_path):
        assert allocated(tmp_path, shape=[0, 3]).shape == (0, 3)
        assert allocated(tmp_path, shape=[]).shape == ()


class TestArguments:
    def test_share_memory_with_their_buffers(self, tmp_path):
        file = load(write(tmp_path, GOOD))
        buffers = file.allocate()
        launch = file.launch(buffers)
        assert isinstance(launch, Launch)
        tensor, pointer, number, raw, pointers = launch.args
        assert isinstance(tensor, TensorMap)
        assert tensor.box == (3, 4)
        assert np.shares_memory(tensor.array, buffers["x"])
        pointer[:2] = np.array([1.5], np.float16).view(np.uint8)
        assert buffers["y"][0, 2] == 1.5
        assert (number, type(number), raw) == (5, np.uint32, b"\x00\xff\x10")
        assert pointers.arrays[2].ctypes.data == buffers["y"].ctypes.data + 8
        assert launch.program == file.ptx

    @pytest.mark.parametrize("name", ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "b8", "b16", "b32", "b64"])
    def test_integers_of_every_width(self, tmp_path, name):
        kind = ELEMENT_TYPES[name]
        values = [kind.low, kind.high, 0, *([hex(kind.high)] if name[0] != "s" else [])]
        file = load(write(tmp_path, changed(args=[{name: value} for value in values])))
        args = file.launch().args
        assert [int(a) for a in args] == [int(v, 16) if isinstance(v, str) else v for v in values]
        assert {a.dtype.itemsize * 8 for a in args} == {kind.bits}
        bad = changed(args=[{name: kind.low - 1}, {name: kind.high + 1}, {name: 0.5}])
        assert [note.partition(":")[0] for note in sorted(problems(tmp_path, bad))] == [
            "args[0]",
            "args[1]",
            f"args[2].{name}",
        ]

    @pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
    def test_floats_of_every_width(self, tmp_path, name):
        values = [1.5, -0.0, 2, "inf", "-inf", "nan", 1e300]
        args = load(write(tmp_path, changed(args=[{name: value} for value in values]))).launch().args
        assert {a.dtype for a in args} == {ELEMENT_TYPES[name].values}
        assert [float(a) for a in args[:5]] == [1.5, 0.0, 2.0, np.inf, -np.inf]
        assert np.signbit(float(args[1]))
        assert np.isnan(float(args[5]))
        assert float(args[6]) == (1e300 if name == "f64" else np.inf)

    def test_tensor_maps_take_every_keyword(self, tmp_path):
        buffers = {"x": {"dtype": "float32", "shape": [4096]}}
        keys = {
            "box": [1, 2, 2, 2, 4],
            "swizzle": "32B",
            "fill": "nan",
            "dtype": "tf32",
            "shape": [2, 2, 3, 4, 8],
            "strides": [1024, 512, 128, 32, 4],
            "offset": 64,
            "element_strides": [1, 1, 1, 1, 1],
            "interleave": "none",
            "l2_promotion": "128B",
        }
        document = changed(buffers=buffers, args=[{"tensor_map": "x", **keys}], compare=[])
        args = load(write(tmp_path, document)).launch().args
        direct = TensorMap(np.zeros(4096, np.float32), **keys)
        assert (args[0].geometry, args[0].offset, args[0].dtype) == (direct.geometry, 64, "tf32")
        keys |= {"mode": "im2col", "box": [40, 4], "lower_corner": [-1, 0, -2], "upper_corner": [1, 0, -1]}
        document = changed(buffers=buffers, args=[{"tensor_map": "x", **keys}], compare=[])
        args = load(write(tmp_path, document)).launch().args
        assert args[0].geometry == TensorMap(np.zeros(4096, np.float32), **keys).geometry

    def test_the_schema_has_the_names_of_the_hardware_tables(self):
        keys = next(
            a["properties"] for a in launch_file_schema()["$defs"]["argument"]["oneOf"] if "tensor_map" in a["required"]
        )
        assert keys["swizzle"]["enum"] == list(SWIZZLES)
        assert keys["fill"]["enum"] == list(tensor_maps.FILLS)
        assert keys["interleave"]["enum"] == list(tensor_maps.INTERLEAVES)
        assert keys["l2_promotion"]["enum"] == list(tensor_maps.L2_PROMOTIONS)
        assert keys["mode"]["enum"] == list(tensor_maps.MODES)


class TestCheck:
    def test_reports_every_comparison_that_fails(self, tmp_path):
        compare = [{"expr": "y == x", "rtol": 0.01}, {"expr": "y == 0"}, {"expr": "x == initial(x)"}]
        file = load(write(tmp_path, changed(compare=compare)))
        buffers = file.allocate()
        assert [m.comparison.text for m in file.check(buffers)] == ["y == x", "y == 0"]
        buffers["y"][...] = buffers["x"]
        assert [m.comparison.text for m in file.check(buffers)] == ["y == 0"]

    def test_initial_uses_the_current_seed(self, tmp_path):
        file = load(
            write(
                tmp_path, with_buffer(output=True, init={"normal": [0, 1]}) | {"compare": [{"expr": "x == initial(x)"}]}
            ),
            seed=99,
        )
        buffers = file.allocate()
        assert file.check(buffers) == []
        buffers["x"][5] += 1
        assert file.check(buffers)[0].where == (5,)


WRONG = {
    "an unknown key": (changed(grids=[1, 1, 1]), "`grids` is not a known key; did you mean `grid`?"),
    "a missing key": ({k: v for k, v in GOOD.items() if k != "grid"}, "the file: `grid` is missing"),
    "not an object": ([1], "the file: [1] is not an object"),
    "a short grid": (changed(grid=[1, 1]), "grid: has 2 items; needs 3"),
    "a zero grid": (changed(grid=[0, 1, 1]), "grid[0]: 0 is below 1"),
    "a grid of text": (changed(grid=["1", 1, 1]), 'grid[0]: "1" is not an integer'),
    "a truth value for a number": (changed(shared_bytes=True), "shared_bytes: true is not an integer"),
    "an unknown dtype": (with_buffer(dtype="flaot32"), "did you mean `float32`?"),
    "a packed dtype": (with_buffer(dtype="int4"), "is not one of"),
    "a wrong name": (changed(buffers={"1x": GOOD["buffers"]["x"]}), "`1x` is not a name"),
    "a name with a newline": (changed(buffers={"x\n": GOOD["buffers"]["x"]}), "is not a name"),
    "an argument without kind": (changed(args=[{"pointr": "x"}]), "did you mean `pointer`?"),
    "an argument of two kinds": (changed(args=[{"u32": 1, "u64": 1}]), "args[0]: says `u32` and `u64`"),
    "an argument that is a number": (changed(args=[3]), "args[0]: 3 is not an object"),
    "a map without box": (changed(args=[{"tensor_map": "x"}]), "args[0]: `box` is missing"),
    "a map of nothing": (
        changed(args=[{"tensor_map": "q", "box": [1]}]),
        "there is no buffer `q`; the file has x, w, n, y",
    ),
    "a map that breaks rules": (
        changed(args=[{"tensor_map": "x", "box": [300, 3, 1], "swizzle": "128B"}]),
        "args[0]: box: (300, 3, 1) has 3 axes, the tensor has 2",
    ),
    "a map past its buffer": (
        changed(args=[{"tensor_map": "x", "box": [4], "shape": [97]}]),
        "bytes 0 to 388 of an array of 384",
    ),
    "a map of no type": (changed(args=[{"tensor_map": "x", "box": [3, 4], "dtype": "tf33"}]), "not a tensor-map type"),
    "a pointer past its buffer": (
        changed(args=[{"pointer": "n", "offset": 9}]),
        "starts at byte 9 of `n`, which has 9",
    ),
    "a negative offset": (changed(args=[{"pointer": "n", "offset": -1}]), "args[0].offset: -1 is below 0"),
    "odd hexadecimal": (changed(args=[{"bytes": "abc"}]), "args[0].bytes"),
    "hexadecimal with a newline": (changed(args=[{"bytes": "ab\n"}]), "args[0].bytes"),
    "an odd comparison": (changed(compare=[{"expr": "y = x"}]), "compare[0]: Invalid comparison `y = x`"),
    "a comparison as code": (changed(compare=[{"expr": "y == __import__('os').system('true')"}]), "compare[0]"),
    "a negative tolerance": (changed(compare=[{"expr": "y == x", "rtol": -1}]), "compare[0].rtol: -1 is below 0"),
    "strides of another rank": (with_buffer(strides=[4, 4]), "buffers.x: has 1 axes and 2 strides"),
    "strides that overlap": (with_buffer(shape=[4, 4], strides=[8, 4]), "share one address"),
    "strides within an element": (with_buffer(strides=[6]), "not multiples of the 4 bytes"),
    "an integer NaN": (with_buffer(dtype="int32", init="nan"), "nan does not fit int32"),
    "an integer normal": (with_buffer(dtype="int32", init={"normal": [0, 1]}), "normal does not fit int32"),
    "too few values": (with_buffer(init={"values": [1]}), "has 1 values; the buffer has 64 elements"),
    "an empty distribution": (with_buffer(init={"uniform": [1, 0]}), "uniform from 1 to 0 is empty"),
    "a wide distribution": (with_buffer(init={"uniform": [-1.7e308, 1.7e308]}), "spans more than float64"),
    "a negative deviation": (with_buffer(init={"normal": [0, -1]}), "cannot be negative"),
    "integers over 64 bits": (with_buffer(init={"integers": [-1, 1 << 63]}), "span more than 64 bits"),
    "integers that do not fit": (with_buffer(dtype="int8", init={"integers": [0, 128]}), "128 is not a value of int8"),
    "a count that does not fit": (with_buffer(dtype="uint8", init={"arange": [0, 5]}), "315 is not a value of uint8"),
    "half an integer": (with_buffer(dtype="int8", init={"constant": 0.5}), "0.5 is not a value of int8"),
    "a huge integer": (with_buffer(init={"constant": 1 << 70}), "too large"),
    "an unknown init": (with_buffer(init="zeroes"), "did you mean `zeros`?"),
    "too many bytes": (with_buffer(shape=[1 << 20, 1 << 10]), "need 4294967296 bytes together; at most 1073741824"),
    "astronomic bytes": (with_buffer(shape=[1 << 40] * 8), "together; at most"),
    "an endless expression": (changed(compare=[{"expr": "y == x + " * 300}]), "compare[0].expr: has"),
    "not JSON": ("{", "is not JSON"),
    "NaN in JSON": ('{"seed": NaN}', "NaN is not a JSON number"),
    "infinity in JSON": ('{"seed": 1e999}', "too large"),
    "a repeated key": ('{"seed": 1, "seed": 2}', "`seed` is given twice"),
    "half of a surrogate pair": ('{"ptx": "\\ud800"}', "half of a surrogate pair"),
    "half of a pair in a key": ('{"\\uDC00": 1}', "half of a surrogate pair"),
    "a huge number": ('{"seed": ' + "9" * 10_000 + "}", "is not JSON"),
    "deep nesting": ("[" * 100_000, "is nested deeper than 32 levels"),
    "quotes without end": ('"' + '\\"' * 1_000_000, "is not JSON"),
    "a backslash at the end": ('"' + '\\"' * 1_000_000 + "\\", "is not JSON"),
    "very many unknown keys": (json.dumps({f"key{i}": 0 for i in range(100_000)}), "`key0` is not a known key"),
    "deep nesting in a string": ('{"expect": "' + "[" * 500 + '"}', "`grid` is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_files_are_rejected_with_path_and_reason(tmp_path, name):
    document, reason = WRONG[name]
    assert reason in "\n".join(problems(tmp_path, document))


def test_all_violations_are_in_one_error(tmp_path):
    wrong = changed(grid=[0, 1, 1], ptx="missing.ptx", surprise=1, compare=[{"expr": "y == z"}, {"expr": "y =="}])
    wrong["buffers"]["n"]["init"] = {"integers": [0, 300]}
    wrong["args"] = [{"u8": 256}, {"pointer": "missing"}, {"tensor_map": "x", "box": [0, 1]}]
    found = "\n".join(problems(tmp_path, wrong))
    for part in ("grid[0]", "ptx:", "`surprise`", "buffers.n", "args[0]", "args[1]", "args[2].box[0]"):
        assert part in found
    wrong["buffers"]["n"]["init"] = "ones"
    found = "\n".join(problems(tmp_path, wrong))
    assert "compare[0]" in found
    assert "compare[1]" in found


class TestUntrustedFiles:
    @pytest.mark.parametrize(
        "name",
        [
            "/etc/passwd",
            "../k.ptx",
            "a/../../k.ptx",
            "C:\\k.ptx",
            "\\\\host\\k.ptx",
            "..\\k.ptx",
            "none.ptx",
            ".",
            "\x00",
        ],
    )
    def test_the_ptx_stays_in_the_folder(self, tmp_path, name):
        inner = tmp_path / "inner"
        inner.mkdir()
        (tmp_path / "k.ptx").write_text("secret")
        assert any(note.startswith("ptx:") for note in problems(inner, changed(ptx=name)))

    def test_links_out_of_the_folder_are_refused(self, tmp_path):
        inner = tmp_path / "inner"
        inner.mkdir()
        (tmp_path / "secret.ptx").write_text("secret")
        (inner / "link.ptx").symlink_to(tmp_path / "secret.ptx")
        (inner / "up").symlink_to(tmp_path)
        for name in ("link.ptx", "up/secret.ptx"):
            assert "leads out" in problems(inner, changed(ptx=name))[0]

    def test_links_and_folders_inside_are_fine(self, tmp_path):
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "real.ptx").write_text("// inside\n")
        (tmp_path / "link.ptx").symlink_to("sub/real.ptx")
        for name in ("sub/real.ptx", "link.ptx"):
            assert load(write(tmp_path, changed(ptx=name))).ptx == "// inside\n"

    def test_a_named_pipe_does_not_block(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.ptx")
        assert "is not a file" in problems(tmp_path, changed(ptx="pipe.ptx"))[0]

    def test_binary_and_oversized_files_are_refused(self, tmp_path, monkeypatch):
        path = write(tmp_path, GOOD)
        (tmp_path / "k.ptx").write_bytes(b"\xff\xfe")
        with pytest.raises(WarploomError, match="BAD_LAUNCH_FILE") as caught:
            load(path)
        assert "is not text" in caught.value.notes[0]
        monkeypatch.setattr("warploom.launch_file.reading.LARGEST_DOCUMENT", 100)
        assert "is larger than 100 bytes" in problems(tmp_path, GOOD)[0]

    def test_a_missing_file_is_a_catalogued_error(self, tmp_path):
        with pytest.raises(WarploomError) as caught:
            load(tmp_path / "nothing.launch.json")
        assert caught.value.code == "BAD_LAUNCH_FILE"

    def test_max_bytes_can_be_raised(self, tmp_path):
        path = write(tmp_path, GOOD)
        need = 6 * 16 * 4 + (3 * 32 + 8 * 2) + 9 + 6 * 16 * 2
        load(path, max_bytes=need)
        with pytest.raises(WarploomError):
            load(path, max_bytes=need - 1)

    def test_nothing_is_allocated_for_a_file_that_is_too_large(self, tmp_path, monkeypatch):
        monkeypatch.setattr("warploom.launch_file.buffers.Buffer.blank", lambda self: pytest.fail("allocated"))
        document = with_buffer(shape=[1 << 40])
        document["args"] = [{"tensor_map": "x", "box": [4]}]
        assert len(problems(tmp_path, document)) == 1


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(-2, 2)
    | st.sampled_from(["x", "y", "zeros", "128B", "0xff", ""]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["u32", "box", "x", "init", "expr"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def documents(draw):
    """The good file with some of its parts replaced, removed or added."""
    document = copy.deepcopy(GOOD)
    for _ in range(draw(st.integers(1, 3))):
        part: object = document
        while isinstance(part, dict | list) and len(part) and draw(st.integers(0, 3)):
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            key = draw(st.sampled_from(keys))
            if not isinstance(part[key], dict | list) or not draw(st.integers(0, 3)):
                break
            part = part[key]
        if isinstance(part, dict):
            known = ["swizzle", "offset", "output", "strides", "f16", "pointer", "tensor_map", "values", "seed"]
            key = draw(st.sampled_from([*part, *known]))
            if draw(st.booleans()):
                part.pop(key, None)
            else:
                part[key] = draw(JSON)
        elif isinstance(part, list):
            part.append(draw(JSON))
    return document


@given(documents())
@settings(max_examples=400)
def test_the_reader_and_json_schema_agree(document):
    schema = launch_file_schema()
    theirs = sorted(jsonschema.Draft202012Validator(schema).iter_errors(document), key=str)
    ours = violations(document, schema)
    assert bool(ours) == bool(theirs), (ours, theirs[:1])


@given(documents())
def test_any_document_loads_or_gives_the_catalogued_error(tmp_path_factory, document):
    path = write(tmp_path_factory.mktemp("any"), document)
    try:
        file = load(path, max_bytes=1 << 20)
    except WarploomError as error:
        assert error.code == "BAD_LAUNCH_FILE"
        assert error.notes
    else:
        buffers = file.allocate()
        file.launch(buffers)
        file.check(buffers)


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(launch_file_schema())


@pytest.mark.parametrize("name", ["matmul_tma_sm90", "matmul_persistent_sm100"])
def test_the_packaged_files_load(name):
    import warploom

    file = load(Path(warploom.__file__).parent / "data" / f"{name}.launch.json")
    assert file.comparisons
    launch = file.launch()
    assert sum(isinstance(a, TensorMap) for a in launch.args) == 3
