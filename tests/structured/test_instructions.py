"""There is one way to emit an instruction: the library uses the typed functions of `warploom.trace.isa`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import warploom
from warploom.ptx.syntax.printer import print_module
from warploom.structured import Cluster
from warploom.structured.pipelines.signals import remote_arrive
from warploom.trace import At, barriers, isa, kernel, literal

SOURCE = Path(warploom.__file__).parent
FILES = [file for room in ("structured", "kernels") for file in sorted((SOURCE / room).rglob("*.py"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_the_library_emits_no_opcodes_as_text(file):
    calls = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
    names = [node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "") for node in calls]
    assert "emit" not in names


def test_the_results_of_an_instruction_can_be_discarded():
    @kernel(target="sm_100a")
    def arrives():
        cluster = Cluster((2, 1))
        barrier = barriers("there")[0].at
        remote_arrive(cluster.remote(barrier, literal(1, "u32")))
        isa.mbarrier.arrive(barrier, results=0)

    text = print_module(arrives.bind(grid=(2, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1)).program)
    assert "mbarrier.arrive.shared::cluster.b64 _, [" in text
    assert "mbarrier.arrive.shared::cta.b64 _, [" in text


def test_the_cta_group_of_a_copy_is_where_the_manual_puts_it():
    @kernel(target="sm_100a")
    def copies(x: warploom.TensorMap):
        barrier = barriers("there")[0].at
        isa.cp.async_bulk_tensor_load(At(literal(1024, "u32")), x.at(0, 0), barrier, mask=3, cta_group=2)

    import numpy as np

    x = warploom.TensorMap(np.zeros((8, 16), np.float32), box=(8, 16))
    text = print_module(copies.bind(x, grid=(2, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1)).program)
    assert ".mbarrier::complete_tx::bytes.multicast::cluster.cta_group::2 [" in text
