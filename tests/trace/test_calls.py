"""Kernels called with the shape of their launch: `kernel[grid, block](…)`."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.trace.harness import body

from warploom import TensorMap, launch
from warploom.diagnostics import WarploomError
from warploom.trace import Array, cta_index, f32, kernel, s32, shared, special, thread, warp_roles, when

RNG = np.random.default_rng()


@kernel
def add(x: Array[f32], y: Array[f32], out: Array[f32], n: s32):
    i = cta_index() * special("ntid.x") + thread()
    with when(i < n):
        out[i] = x[i] + y[i]


@kernel(block=64)
def fixed(out: Array[s32]):
    out[cta_index("y"), cta_index() * 64 + thread()] = thread()


@kernel
def of_roles(out: Array[s32]):
    roles = warp_roles(one=1, two=2)
    with roles.one:
        out[thread()] = 1
    with roles.two:
        out[thread()] = 2


@pytest.mark.parametrize("shape", [(3, 128), ((3,), (128,)), ((3, 1, 1), (128, 1, 1)), ([3], (128, 1))])
def test_grid_and_block_are_integers_or_tuples(shape):
    n = int(RNG.integers(257, 384))
    x, y = RNG.integers(-9, 9, (2, 384)).astype(np.float32)
    out = np.full(384, np.nan, np.float32)
    run = add[tuple(shape)](x, y, out, n)
    np.testing.assert_array_equal(out[:n], (x + y)[:n])
    assert np.isnan(out[n:]).all()
    assert run.counts["st"] > 0
    bound = add.bind(x, y, out, n, grid=shape[0], block=shape[1])
    assert (bound.grid, bound.block) == ((3, 1, 1), (128, 1, 1))
    assert launch(bound.program, grid=3, block=128, args=bound.args).counts == run.counts


def test_the_block_of_a_kernel_may_be_fixed():
    out = np.full((2, 128), -1, np.int32)
    fixed[2, 2](out)
    np.testing.assert_array_equal(out, np.tile(np.arange(64), (2, 2)))
    assert fixed[3].bind(out).grid == (3, 1, 1)
    assert fixed[(2, 2), 64].bind(out).block == (64, 1, 1)
    assert fixed.for_target("sm_100a")[1].bind(out).block == (64, 1, 1)


def test_the_block_of_roles_is_known():
    out = np.full(96, -1, np.int32)
    of_roles[1](out)
    assert out.tolist() == [1] * 32 + [2] * 64
    assert of_roles.bind(out, grid=5).block == (96, 1, 1)
    assert of_roles.ptx(out) == of_roles.ptx(out, block=96)


def test_registers_of_roles_need_no_block():
    @kernel
    def registers(out: Array[s32]):
        roles = warp_roles(first=4, second=4, registers={"first": 40, "second": 232})
        with roles.second:
            out[0] = 1

    out = np.zeros(1, np.int32)
    assert registers.ptx(out) == registers.ptx(out, block=256)


@pytest.mark.parametrize(
    ("act", "code", "says"),
    [
        (lambda x: add(x, x, x, 3), "BAD_KERNEL", "write `add[grid, block](…)`"),
        (lambda x: add[1](x, x, x, 3), "BAD_KERNEL", "the block of `add` is not known"),
        (lambda x: add[1, 2, 3, 4], "BAD_KERNEL", "grid, block and cluster, not 4 items"),
        (lambda x: add["one", 32](x, x, x, 3), "BAD_LAUNCH", "`grid` is 'one'"),
        (lambda x: add[1, 32.5](x, x, x, 3), "BAD_LAUNCH", "`block` is 32.5"),
        (lambda x: add.bind(x, x, x, 3, grid=(1, 1, 1, 1), block=1), "BAD_LAUNCH", "`grid` is (1, 1, 1, 1)"),
        (lambda x: of_roles[1, 64](np.zeros(9, np.int32)), "BAD_KERNEL", "roles have 96 threads and the block 64"),
    ],
)
def test_wrong_shapes(act, code, says):
    with pytest.raises(WarploomError) as caught:
        act(np.zeros(4, np.float32))
    assert caught.value.code == code
    assert says in str(caught.value)


def test_reprs_are_short():
    assert re.fullmatch(r"<kernel add\(.*n: 's32'\) for sm_90a>", repr(add))
    assert repr(add[3, 128]) == f"{add!r}[3, 128]"
    x = np.zeros(384, np.float32)
    bound = add.bind(x, x, x, 3, grid=2, block=64)
    assert repr(bound) == "<Launch of add: grid=(2, 1, 1), block=(64, 1, 1), 4 arguments>"
    seen = []

    @kernel
    def shows(x: Array[f32], box: TensorMap):
        seen.extend(map(repr, (x, shared(f32, (8, 32), name="tile", swizzle="128B"), box)))

    shows.bind(x, TensorMap(x.reshape(12, 32), box=(8, 32), swizzle="128B"), grid=1, block=32)
    assert seen == [
        "<View of f32 (384,) in global memory>",
        "<View `tile` of f32 (8, 32) in shared memory, swizzle 128B>",
        "<tensor map `box`: boxes of (8, 32) f32, swizzle 128B>",
    ]


def test_a_notebook_shows_the_traces_of_a_kernel():
    @kernel(block=96)
    def shown(x: Array[f32]):
        parts = shared(f32, 25, name="parts")
        parts[0] = x[0]

    assert "<table>" not in shown._repr_html_()
    text = shown.ptx(np.zeros(4, np.float32))
    page = shown._repr_html_()
    assert page.startswith("<code>&lt;kernel shown(x: &#x27;Array[f32]&#x27;) for sm_90a&gt;</code><table>")
    assert "<td>96×1×1</td>" in page
    assert "<td>100</td>" in page
    assert f"<td>{sum(line.endswith(';') for line in body(text))}</td>" in page
