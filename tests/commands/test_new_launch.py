"""`warploom new-launch`: a launch file from nothing but PTX, which runs as it is written."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from tests.commands.test_cli import HEAD, KERNEL, call

from warploom.launch_file.schema import launch_file_schema

ROOT = Path(__file__).parents[2]
FOREIGN = ROOT / "tests" / "foreign"


def skeleton(folder: Path, capsys, text: str, *options: str) -> dict:
    (folder / "k.ptx").write_text(text)
    status, out, err = call(capsys, "new-launch", str(folder / "k.ptx"), *options)
    assert (status, err) == (0, "")
    document = json.loads((folder / "k.launch.json").read_text("utf-8"))
    jsonschema.validate(document, launch_file_schema())
    assert all(line in " ".join(out.split()) for line in (" ".join(each.split()) for each in document["$comment"]))
    return document


def test_a_skeleton_runs_and_asks_for_a_comparison(tmp_path, capsys):
    document = skeleton(tmp_path, capsys, KERNEL)
    assert document["entry"] == "twice"
    assert document["args"] == [{"pointer": "in"}, {"pointer": "out"}, {"u32": 256}]
    assert document["buffers"]["in"] == {"dtype": "float32", "shape": [65536]}
    assert document["buffers"]["out"] == {"dtype": "float32", "shape": [65536], "output": True}
    status, out, _ = call(capsys, "run", str(tmp_path / "k.launch.json"))
    assert status == 5
    assert "nothing compared" in out


@pytest.mark.parametrize("name", ["triton39_vector_add_sm90", "triton39_softmax_sm90", "triton39_matmul_tma_sm90"])
def test_kernels_of_triton(tmp_path, capsys, name):
    document = skeleton(tmp_path, capsys, (FOREIGN / f"{name}.ptx").read_text("utf-8"))
    assert document["args"][-2:] == [{"u64": 0}, {"u64": 0}], "the two hidden scratch pointers, which it does not use"
    assert any("hidden pointers" in line for line in document["$comment"])
    assert document["block"] == json.loads((FOREIGN / f"{name}.launch.json").read_text("utf-8"))["block"]
    assert call(capsys, "run", str(tmp_path / "k.launch.json"))[0] == 5


def test_descriptors_of_triton(tmp_path, capsys):
    document = skeleton(tmp_path, capsys, (FOREIGN / "triton39_matmul_tma_sm90.ptx").read_text("utf-8"))
    assert [buffer.get("output", False) for buffer in document["buffers"].values()] == [False, False, True]
    assert document["args"][:5] == [
        {"tensor_map": "p0", "box": [128, 64], "swizzle": "128B"},
        {"u32": 256},
        {"u32": 256},
        {"u64": 256},
        {"u64": 1},
    ]
    assert document["shared_bytes"] > 98328, "dynamic shared memory, the most that the target has"
    assert any("compiled.metadata.shared" in line for line in document["$comment"])


def kernel(parameters: str, body: str = "ret;", before: str = "", directives: str = "") -> str:
    registers = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %h<9>; .reg .f32 %f<9>;"
    return f"{HEAD}{before}\n.visible .entry k({parameters})\n{directives}\n{{\n{registers}\n{body}\n}}\n"


def test_types_of_elements_come_from_arithmetic(tmp_path, capsys):
    body = """ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c]; cvta.to.global.u64 %rd2, %rd0;
    ld.global.b32 %r0, [%rd2]; mov.b32 {%h0, %h1}, %r0; cvt.f32.bf16 %f0, %h0; add.f32 %f1, %f0, %f0;
    mov.b32 %r1, %f1; st.global.b32 [%rd1], %r1; ret;"""
    document = skeleton(tmp_path, capsys, kernel(".param .u64 a, .param .u64 c", body))
    assert document["buffers"]["a"]["dtype"] == "bfloat16"
    assert document["buffers"]["c"] == {"dtype": "float32", "shape": [65536], "output": True}


def test_scalars_structures_and_shapes(tmp_path, capsys):
    text = kernel(
        ".param .f32 alpha, .param .b8 flag, .param .align 4 .b8 s[12], .param .s64 n",
        directives=".maxntid 64, 2, 1\n.reqnctapercluster 2, 1, 1",
    )
    document = skeleton(tmp_path, capsys, text)
    assert document["args"] == [{"f32": 1.0}, {"b8": 1}, {"bytes": "00" * 12}, {"s64": 256}]
    assert (document["block"], document["cluster"], document["grid"]) == ([64, 2, 1], [2, 1, 1], [2, 1, 1])
    assert "shared_bytes" not in document
    assert call(capsys, "run", str(tmp_path / "k.launch.json"))[0] == 5


def test_an_edited_file_is_not_lost(tmp_path, capsys):
    skeleton(tmp_path, capsys, KERNEL)
    (tmp_path / "k.launch.json").write_text("mine")
    status, _, err = call(capsys, "new-launch", str(tmp_path / "k.ptx"))
    assert (status, "--force" in err) == (3, True)
    assert (tmp_path / "k.launch.json").read_text() == "mine"
    assert call(capsys, "new-launch", str(tmp_path / "k.ptx"), "--force")[0] == 0


def test_a_launch_file_is_not_written_away_from_its_ptx(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(KERNEL)
    (tmp_path / "below").mkdir()
    status, _, err = call(
        capsys, "new-launch", str(tmp_path / "k.ptx"), "--out", str(tmp_path / "below" / "k.launch.json")
    )
    assert (status, "UNWRITABLE_FILE" in err) == (3, True)


def test_a_file_with_two_kernels_needs_a_name(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(KERNEL + kernel("").removeprefix(HEAD))
    status, _, err = call(capsys, "new-launch", str(tmp_path / "k.ptx"))
    assert (status, "twice, k" in err) == (3, True)
    assert call(capsys, "new-launch", str(tmp_path / "k.ptx"), "--entry", "k")[0] == 0


def test_very_many_kernels_are_counted(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(HEAD + "\n".join(f".visible .entry k{at}() {{ ret; }}" for at in range(500)))
    status, _, err = call(capsys, "new-launch", str(tmp_path / "k.ptx"))
    assert (status, "k31 and 468 more" in err) == (3, True)


def test_very_many_parameters_are_written_and_some_are_printed(tmp_path, capsys):
    params = ", ".join(f".param .u32 p{at}" for at in range(8000))
    (tmp_path / "k.ptx").write_text(f"{HEAD}\n.visible .entry k({params}) {{ ret; }}\n")
    status, out, _ = call(capsys, "new-launch", str(tmp_path / "k.ptx"))
    assert (status, "and 7,800 more parameters" in out) == (0, True)
    assert len(json.loads((tmp_path / "k.launch.json").read_text("utf-8"))["args"]) == 8000


@pytest.mark.parametrize("param", [".param .b8 p[1073741824]", ", ".join(f".param .u64 p{at}" for at in range(4096))])
def test_more_parameters_than_the_hardware_has_are_refused(tmp_path, capsys, param):
    (tmp_path / "k.ptx").write_text(f"{HEAD}\n.visible .entry k({param}) {{ ret; }}\n")
    status, _, err = call(capsys, "new-launch", str(tmp_path / "k.ptx"))
    assert (status, "has 32764" in err) == (3, True)
    assert not (tmp_path / "k.launch.json").exists()


def test_run_points_from_ptx_to_the_command(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(KERNEL)
    status, _, err = call(capsys, "run", str(tmp_path / "k.ptx"))
    assert status == 3
    assert f"warploom new-launch {tmp_path / 'k.ptx'}" in err
