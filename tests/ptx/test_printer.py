from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warploom.diagnostics import Loc
from warploom.ptx import parse, print_module
from warploom.ptx.syntax.model import Instruction, Kernel, Label, Module, Register

TESTS = Path(__file__).parent.parent
FOREIGN = sorted((TESTS / "foreign").glob("*.ptx"))
TEXTS = [*FOREIGN, *sorted((TESTS / "machine" / "data").glob("*.ptx"))]


def ptxas() -> str:
    beside = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "ptxas"
    found = str(beside) if beside.exists() else shutil.which("ptxas")
    return found or pytest.skip("no ptxas here: pip install nvidia-cuda-nvcc")


def machine_code(text: str, target: str, folder: Path) -> dict[str, bytes]:
    (folder / "in.ptx").write_text(text)
    command = [ptxas(), f"-arch={target}", str(folder / "in.ptx"), "-o", str(folder / "out.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    raw = (folder / "out.cubin").read_bytes()
    table = struct.unpack_from("<Q", raw, 40)[0]
    size, count, names = struct.unpack_from("<HHH", raw, 58)
    sections = [struct.unpack_from("<IIQQQQ", raw, table + row * size) for row in range(count)]
    strings = sections[names][4]
    named = {raw[strings + s[0] : raw.index(b"\0", strings + s[0])].decode(): raw[s[4] : s[4] + s[5]] for s in sections}
    return {name: code for name, code in named.items() if name.startswith(".text")}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_other_compilers_text_is_read_and_printed_back(path):
    text = path.read_text()
    module = parse(text, file=path.name)
    assert parse(print_module(module)) == module
    semicolons = len(re.findall(r";", re.sub(r"//.*", "", text)))
    declarations = len(
        re.findall(r"^\s*\.(?:reg|param|shared|local|pragma|extern|global|const)\b.*;", text, re.MULTILINE)
    )
    tables = len(re.findall(r"\.(?:branchtargets|callprototype)|^;", text, re.MULTILINE))
    assert sum(len(k.instructions) for k in module.kernels) == semicolons - declarations - tables
    launch = path.with_suffix(".launch.json")
    if launch.exists():
        case = json.loads(launch.read_text())
        found = next(k for k in module.kernels if k.name == case["entry"])
        assert len([p for p in found.params if p.type == "b8"]) == sum("tensor_map" in a for a in case["args"])


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_the_printed_text_assembles_to_the_same_machine_code(path, tmp_path):
    text = path.read_text()
    module = parse(text)
    assert machine_code(print_module(module), module.target[0], tmp_path) == machine_code(
        text, module.target[0], tmp_path
    )


REGISTER_NAMES = st.builds(
    "{}{}".format,
    st.sampled_from(("%r", "%rd", "%r1", "p", "p$", "%p$")),
    st.one_of(st.integers(0, 30), st.just(10**8)),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(REGISTER_NAMES, st.sampled_from(("b32", "f32", "pred"))), unique_by=lambda row: row[0], max_size=20
    )
)
def test_any_table_of_registers_is_printed_in_its_order(table):
    body = tuple(Instruction("use", (Register(name),)) for name, _ in table)
    module = Module((8, 6), ("sm_90a",), (Kernel("k", registers=tuple(table), body=(Label("L"), *reversed(body))),))
    assert parse(print_module(module)) == module


def test_printing_adds_missing_file_directives():
    loc = Loc("gemm.py", 3, 1)
    module = Module((8, 6), ("sm_90a",), (Kernel("k", body=(Instruction("ret", loc=loc),)),))
    assert parse(print_module(module)) == replace(module, files=((1, "gemm.py"),))
