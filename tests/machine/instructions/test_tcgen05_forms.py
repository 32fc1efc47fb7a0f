"""Spelling of tcgen05 instructions: forms that ptxas assembles are parsed, and constants match other compilers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.machine.tensor_kernels import Product

from warploom.diagnostics import WarploomError
from warploom.hardware.instruction_descriptors import encode_instruction_descriptor
from warploom.hardware.matrix_descriptors import encode_shared_descriptor
from warploom.ptx.isa import decode_kernel
from warploom.ptx.syntax.parser import parse

FOREIGN = Path(__file__).parents[2] / "foreign"
HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
ENTRY = """.visible .entry group_{group}()
{{
  .reg .b32 %r<160>;
  .reg .b64 %d<8>;
  .reg .b16 %h<2>;
  .reg .pred %p<2>;
  {body}
  ret;
}}
"""


ASKED = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
BEYOND = [
    "setmaxnreg.inc.sync.aligned.u32 64;",
    f"{ASKED}.b128 [%r0], [%r1];",
    f"{ASKED}.multicast::cluster::all.b128 [%r0], [%r1];",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r2];",
    "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r0}, [%r2];",
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r2], {%r0};",
    "tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d1;",
    "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%d0], 1;",
    "wgmma.fence.sync.aligned;",
]
"""Instructions of other families that only some targets have."""


def listed(count: int) -> str:
    return "{" + ", ".join(f"%r{i}" for i in range(count)) + "}"


def management(group: str) -> list[str]:
    commit = f"tcgen05.commit.{group}.mbarrier::arrive::one"
    return [
        f"tcgen05.alloc.{group}.sync.aligned.b32 [%d0], 32;",
        f"tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [%r0], %r1;",
        f"tcgen05.dealloc.{group}.sync.aligned.b32 %r0, 32;",
        f"tcgen05.dealloc.{group}.sync.aligned.b32 %r0, %r1;",
        f"tcgen05.relinquish_alloc_permit.{group}.sync.aligned;",
        f"{commit}.b64 [%d0];",
        f"{commit}.shared::cluster.b64 [%r0];",
        f"{commit}.shared::cluster.b64 [ %r0 + 8 ];",
        f"{commit}.multicast::cluster.b64 [%d0], %h0;",
        f"{commit}.shared::cluster.multicast::cluster.b64 [%r0], %h0;",
        f"{commit}.multicast::cluster.shared::cluster.b64 [%r0], %h0;",
        f"tcgen05.commit.mbarrier::arrive::one.{group}.b64 [%d0];",
    ]


def copies(group: str) -> list[str]:
    shapes = ["128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4"]
    shapes += ["warpx4.32x128b", "warpx2::01_23.64x128b"]
    formats = ["", ".b8x16.b6x16_p32", ".b8x16.b4x16_p64"]
    spelled = [f"tcgen05.cp.{group}.{shape}{format_} [%r0], %d0;" for shape in shapes for format_ in formats]
    return [*spelled, f"tcgen05.cp.128x256b.{group} [%r0], %d0;", f"tcgen05.shift.{group}.down [%r0];"]


def multiplications(group: str) -> list[str]:
    words = 4 * int(group[-1])
    disable = "{" + ", ".join(["%r5"] * words) + "}"
    uses = [f".collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")]
    found = []
    for a in ("%d0", "[%r1]"):
        rest = f"[%r0], {a}, %d1, %r2"
        for kind in ("f16", "tf32", "f8f6f4", "i8"):
            name = f"tcgen05.mma.{group}.kind::{kind}"
            found += [f"{name}{use} {rest}, %p0;" for use in ("", *uses)]
            found += [f"{name} {rest}, {disable}, %p0;", f"{name} {rest}, !%p0;"]
            found.append(f"{name} [ %r0 + 0 ], {a}, %d1, %r2, 1;")
            found.append(f"tcgen05.mma.kind::{kind}.{group} {rest}, %p0;")
            if kind in ("f16", "tf32"):
                found += [f"{name} {rest}, %p0, 3;", f"{name} {rest}, {disable}, %p0, 15;"]
            if group.endswith("1"):
                name = f"tcgen05.mma.ws.{group}.kind::{kind}"
                found += [f"{name} {rest}, %p0;", f"{name} {rest}, %p0, 0;", f"{name} {rest}, %p0, %d2;"]
                buffers = ("b0::fill", "b1::use", "b2::lastuse", "b3::discard")
                found += [f"{name}.collector::{buffer} {rest}, %p0;" for buffer in buffers]
        for kind, vectors in (
            ("mxf8f6f4", ("", ".scale_vec::1X", ".block32")),
            ("mxf4", ("", ".scale_vec::2X", ".block32")),
            ("mxf4nvf4", (".scale_vec::2X", ".scale_vec::4X", ".block16", ".block32")),
        ):
            name, tail = f"tcgen05.mma.{group}.kind::{kind}.block_scale", f"{rest}, [%r3], [%r4], %p0;"
            found += [f"{name}{vector}{use} {tail}" for vector in vectors for use in ("", uses[0])]
            found += [f"{name}{uses[1]}{vectors[1]} {tail}"]
    return found


def moves() -> list[str]:
    registers = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
    found = ["tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"]
    found += ["tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"]
    for shape, each in registers.items():
        half = ", 16" if shape == "16x32bx2" else ""
        for count in (1, 2, 4, 8, 16, 32, 64, 128):
            if each * count <= 128:
                many, name = listed(each * count), f"sync.aligned.{shape}.x{count}"
                found += [f"tcgen05.ld.{name}{pack}.b32 {many}, [%r150]{half};" for pack in ("", ".pack::16b")]
                found += [f"tcgen05.st.{name}{pack}.b32 [%r150 + 4]{half}, {many};" for pack in ("", ".unpack::16b")]
    return found


def module() -> str:
    """A kernel for each cta_group, which holds every form."""
    entries = []
    for group, more in (("cta_group::1", moves()), ("cta_group::2", [])):
        lines = [*management(group), *copies(group), *multiplications(group), *more]
        entries.append(ENTRY.format(group=group[-1], body="\n  ".join(lines)))
    return HEADER + "".join(entries)


def taken(lines: list[str], target: str, folder: Path) -> set[str]:
    """The instructions that ptxas accepts for a target, each in its own kernel."""
    entries = [ENTRY.format(group=number, body=line) for number, line in enumerate(lines)]
    (folder / "in.ptx").write_text(HEADER.replace("sm_100a", target) + "".join(entries))
    command = [ptxas(), f"-arch={target}", "-O0", "-o", str(folder / "out.cubin"), str(folder / "in.ptx")]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    before, size = HEADER.count("\n"), ENTRY.count("\n")
    refused = {(int(line) - 1 - before) // size for line in re.findall(r"line (\d+); error", said)}
    assert refused or not said, said
    return {line for number, line in enumerate(lines) if number not in refused}


def has(line: str, target: str) -> bool:
    (kernel,) = parse(HEADER + ENTRY.format(group=0, body=line)).kernels
    try:
        decode_kernel(kernel, target)
    except WarploomError as error:
        assert error.code == "WRONG_TARGET", error
        return False
    return True


@pytest.mark.parametrize("target", ["sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_103"])
def test_targets_have_the_instructions_that_ptxas_accepts(target, tmp_path):
    group = "cta_group::1"
    lines = [*management(group), *copies(group), *multiplications(group), *(each for each in moves() if "x1." in each)]
    lines += BEYOND
    lines = list({line.split()[0]: line for line in lines}.values())
    assert {line for line in lines if has(line, target)} == taken(lines, target, tmp_path)


def test_every_form_is_parsed():
    for kernel in parse(module()).kernels:
        assert len(decode_kernel(kernel, "sm_100a")) == len(kernel.instructions)


SOURCES = {
    "forms": module,
    "one CTA": lambda: Product(ws=True, m=64, n=64).bench(tail=", %p0, 0").source(),
    "two CTAs": lambda: Product(m=256, n=32, group=2).bench().source(),
}


def ptxas() -> str:
    packages = Path(sysconfig.get_paths()["purelib"])
    found = shutil.which("ptxas") or next(map(str, packages.glob("nvidia/*/bin/ptxas")), None)
    return found or pytest.skip("there is no ptxas")


@pytest.mark.parametrize("name", SOURCES)
def test_ptxas_accepts_every_parsed_form(name, tmp_path):
    (tmp_path / "in.ptx").write_text(SOURCES[name]())
    command = [ptxas(), "-arch=sm_100a", "-O0", "-o", str(tmp_path / "out.cubin"), str(tmp_path / "in.ptx")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["triton39_matmul_tma_sm100", "triton39_gluon_tcgen05_sm100"])
def test_descriptors_match_those_of_triton(name):
    text = (FOREIGN / f"{name}.ptx").read_text()
    instruction = encode_instruction_descriptor("f16", 128, 128, "bf16", "bf16")
    high = encode_shared_descriptor("sm_100", 0, 0, 1024, "128B") >> 32
    for constant in (instruction, high):
        assert f", {constant};" in text
