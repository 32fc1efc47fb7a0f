"""Calls on a Hopper GPU whose arguments overlap, change, or repeat defaults."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom as wl

pytestmark = needs_hopper


def ints(*shape, dtype=None):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16)


def same(found, want):
    torch.testing.assert_close(found.double(), want.double(), rtol=0, atol=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_out_may_be_an_operand(which, compiled):
    a, b = ints(512, 512), ints(512, 512)
    a, b = (b, b) if which == "both" else (a, b)
    want = (a.double() @ b.double()).bfloat16()
    out = a if which == "a" else b

    def call(a, b, out):
        return wl.matmul(a, b, out=out)

    torch._dynamo.reset()
    (torch.compile(call, fullgraph=True) if compiled else call)(a, b, out)
    same(out, want)


def test_an_epilogue_that_stores_anywhere_reads_no_element_that_it_wrote():
    a, b, residual = ints(256, 128), ints(128, 256), ints(256, 256)
    want = (a.double() @ b.double() + residual.double()).T.bfloat16()

    def turned(value, at, out):
        out[at.column, at.row] = value

    wl.matmul(a, b, residual=residual, out=residual, store=turned)
    same(residual, want)


def test_objects_that_an_epilogue_uses_may_change():
    x, w, settings = ints(64, 128), ints(72, 128), {"factor": 2.0}

    class Object:
        factor = 2.0

    held, product = Object(), x.double() @ w.double().T
    for factor in (2.0, 3.0, 2.0):
        settings["factor"] = held.factor = factor
        same(
            wl.linear(x, w, epilogue=lambda acc, at: acc * settings["factor"], out_dtype=torch.float32),
            product * factor,
        )
        same(wl.linear(x, w, epilogue=lambda acc, at: acc * held.factor, out_dtype=torch.float32), product * factor)


def test_repeated_calls():
    x, w, residual = ints(64, 128), ints(72, 128), ints(64, 72)
    product = x.double() @ w.double().T
    for _ in range(3):
        same(wl.linear(x, w, residual=residual, beta=0), product.bfloat16())
        same(wl.linear(x, w, bias=2.0, out_dtype=torch.float32), product + 2)
        same(wl.linear(x, w, target="sm_90a"), product.bfloat16())
    operands = {"a": residual, "b": ints(72)}
    found = wl.linear(x, w, operands=operands, epilogue=lambda acc, at, a, b: acc + a * b, out_dtype=torch.float32)
    same(found, product + residual.double() * operands["b"].double())


def test_a_prepared_call_refuses_an_output_that_it_reads():
    a, b, c = ints(64, 64), ints(64, 64), ints(64, 64)
    call = wl.plan_matmul(a, b, residual=c, out=c)
    want = (a.double() @ b.double() + c.double()).bfloat16()
    call(a, b, c, c)
    same(c, want)
    with pytest.raises(wl.WarploomError, match="overlaps"):
        call(a, b, c, a)


def test_split_k_through_memory_in_a_graph():
    x, w = ints(16, 8192), ints(64, 8192)
    want = (x.double() @ w.double().T).bfloat16()
    same(wl.linear(x, w), want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = wl.linear(x, w)
    made.fill_(torch.nan)
    graph.replay()
    same(made, want)


def test_blockwise_gemm_with_empty_k():
    kind, bias = torch.float8_e4m3fn, ints(24)
    a, b = torch.zeros(40, 0, device="cuda").to(kind), torch.zeros(24, 0, device="cuda").to(kind)
    scales = torch.zeros(40, 0, device="cuda"), torch.zeros(1, 0, device="cuda")
    same(wl.blockwise_matmul(a, b, *scales, bias=bias), bias.expand(40, 24))
