"""`warploom ptx OPERATION` and `ptx_of`: the PTX of a call, without running it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.ops.references import BF16, integers
from tests.pace import cost

import warploom
from warploom.cli import main
from warploom.commands.console import output
from warploom.commands.operation import OPERATIONS
from warploom.demo.fused import show_fused
from warploom.diagnostics import WarploomError
from warploom.launcher import launch
from warploom.ops import matmul, ptx_of
from warploom.ptx.isa import unsupported
from warploom.ptx.syntax.parser import parse
from warploom.runtime.toolchain.tools import find
from warploom.trace import Array, f32, kernel, thread


def shown(capsys, *arguments):
    status = main(["ptx", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def has_tools():
    try:
        find("ptxas"), find("nvdisasm")
    except WarploomError:
        return False
    return True


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_ptx_of_every_operation(capsys, name):
    activation = () if name == "gated_linear" else ("--activation", "relu")
    sizes = "100x72x256" if name in ("blockwise_matmul", "block_scaled_matmul") else "2x100x72x256"
    status, out, _ = shown(capsys, name, sizes, "--bias", *activation)
    assert status == 0
    module = parse(out)
    assert module.target == ("sm_100a",)
    assert unsupported(module) == ()


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - {"block_scaled_matmul"}))
def test_the_ptx_for_hopper(capsys, name):
    status, out, _ = shown(capsys, name, "100x72x256", "--residual", "--target", "sm_90a")
    assert status == 0
    assert parse(out).target == ("sm_90a",)


@pytest.mark.skipif(not has_tools(), reason="there is no ptxas")
def test_registers_and_machine_code(capsys):
    status, out, _ = shown(capsys, "matmul", "4096x4096x4096", "--registers", "--sass", "--json")
    document = json.loads(out)
    assert status == 0
    (row,) = document["assembly"]["kernels"]
    assert row["spill_stores"] == 0
    assert any(name.startswith("UTCHMMA") for name in document["assembly"]["counts"])
    assert "UTCHMMA.2CTA" in document["assembly"]["sass"].replace("gdesc", "")


WRONG = {
    ("matmul", "3x4"): "is not a size",
    ("matmul", "0x4x4"): "is not a size",
    ("nothing", "3x4x5"): "is not an operation",
    ("matmul",): "the sizes of the operation are missing",
    ("matmul", "--bias"): "the sizes of the operation are missing",
    ("nothing",): "nothing does not exist",
    ("matmul", "3x4x5", "--target", "sm_80"): "`target` must be one of sm_100a",
    ("gated_linear", "3x4x5", "--activation", "silu"): "always computes silu(gate) * up",
    ("matmul", "3x4x5", "--activation", "gel"): "must be one of relu",
    ("file.ptx", "--bias", "--out-dtype", "bf16"): "--out-dtype, --bias: only for an operation",
    ("block_scaled_matmul", "32x32x32", "--dtype", "bf16"): "must have elements of type",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_invalid_commands(capsys, arguments):
    status, out, err = shown(capsys, *arguments)
    assert status == 3
    assert not out
    assert WRONG[arguments] in err


def test_ptx_of_a_call_is_what_the_call_runs():
    a, b, bias = integers(40, 24), integers(24, 30), integers(30)
    out = np.full((40, 30), np.nan, BF16)
    bound = matmul.bind(a, b, bias=bias, out=out)
    text = ptx_of(matmul, a, b, bias=bias, out=out)
    assert np.isnan(out.astype(np.float32)).all()
    launch(
        text,
        grid=bound.grid,
        block=bound.block,
        cluster=bound.cluster,
        shared_bytes=bound.shared_bytes,
        args=bound.args,
    )
    np.testing.assert_array_equal(out, matmul(a, b, bias=bias))


def test_ptx_of_a_user_kernel():
    @kernel(target="sm_90a")
    def doubled(x: Array[f32]):
        x[thread()] = x[thread()] * 2

    text = ptx_of(doubled, np.ones(32, np.float32), grid=(1, 1, 1), block=(32, 1, 1))
    assert ".entry doubled" in text
    with pytest.raises(WarploomError, match="neither an operation nor a kernel"):
        ptx_of(len, [])


def test_all_sizes_of_a_configuration_share_their_ptx():
    config = warploom.MatmulConfig(cta_group=2, mma_shape=(256, 128, 16))
    texts = {
        ptx_of(matmul, integers(m, 64), integers(64, n), config=config) for m, n in ((512, 256), (1024, 128), (8, 8))
    }
    assert len(texts) == 1


def test_tracing_the_default_kernel_is_fast():
    a, b = np.empty((4096, 4096), BF16), np.empty((4096, 4096), BF16)
    assert cost(lambda: ptx_of(matmul, a, b, config=warploom.MatmulConfig(num_output_stages=3)), 1) < 190


def test_the_demo_shows_the_work_of_each_role(capsys):
    assert show_fused(output())
    printed = capsys.readouterr().out
    assert "compared  with NumPy in float64: right" in printed
    rows = {line.split()[0]: line for line in printed.splitlines() if line.startswith(" ") and line.strip()}
    expected = {"load": "TMA loads", "mma": "MMAs", "epilogue": "TMA stores", "epilogue_load": "TMA loads"}
    assert all(operation in rows[role] for role, operation in expected.items())


def test_public_names_are_sorted_and_few():
    assert warploom.__all__ == sorted(warploom.__all__)
    assert len(warploom.__all__) <= 40
    assert all(hasattr(warploom, name) for name in warploom.__all__)
