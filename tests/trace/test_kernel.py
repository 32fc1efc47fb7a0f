"""Kernels as objects: parameters, arguments, kept traces, directives, versions, places."""

from __future__ import annotations

import numpy as np
import pytest
from tests.pace import cost
from tests.trace.harness import accepted, body, run

from warploom import TensorMap, launch
from warploom.diagnostics import Fault, TraceError
from warploom.ptx.syntax.printer import print_module
from warploom.trace import Array, Operands, Sizes, Variable, bf16, emit, f32, kernel, loop, s32, s64, thread, u8, when

ONE = {"grid": (1, 1, 1), "block": (32, 1, 1)}


def test_scalars_of_every_type():
    @kernel
    def store(out, a: s32, b: s64, c: f32, d: u8, e: bf16):
        with when(thread() == 0):
            out.store([a.to("f64"), b.to("f64"), c.to("f64"), d.to("f64")], 0)
            out[4] = e.to("f64")

    out = np.zeros(5)
    run(store, out, -5, 2**40, 0.5, 255, np.float32(1.5))
    assert out.tolist() == [-5, 2**40, 0.5, 255, 1.5]


def test_integers_by_name():
    @kernel
    def store(out: Array[s32], sizes: Sizes, factors: Operands):
        with when(thread() == 0):
            out[0] = sizes["rows"] * 2 + sizes["first"]
            out[1] = (factors["half"] * 8).to("s32", rounding="rzi")

    out = np.zeros(2, np.int32)
    run(store, out, {"rows": 2**24 + 1, "first": -3}, {"half": 0.5})
    assert out.tolist() == [2**25 - 1, 4]
    with pytest.raises(TraceError, match=r"`sizes_rows` is a \.s32, not 0\.5"):
        run(store, out, {"rows": 0.5, "first": 1}, {"half": 0.5})


def test_none_for_an_optional_parameter():
    @kernel
    def scaled(out: Array[f32], factors: Array[f32] | None, n: s32 | None):
        found = out[thread()] if factors is None else out[thread()] * factors[thread()]
        out[thread()] = found if n is None else found + n.to("f32")

    out, factors = np.ones(32, np.float32), np.full(32, 3, np.float32)
    for given, added, expected in ((None, None, 1), (factors, None, 3), (factors, 4, 13), (None, -6, 7)):
        run(scaled, out, given, added)
        assert (out == expected).all()
    with pytest.raises(TraceError, match="`out` is an array"):
        scaled.bind(None, None, None, **ONE)


def test_annotations_as_names_or_types():
    def plain(x: Array, y: Array["f32"], m: TensorMap, n: "s32", free, *, constant: int = 3):  # noqa: UP037
        assert constant == 4
        assert free == "text"
        assert m.geometry.box == (8, 16)
        x[thread()] = y[thread()] * constant + n.to("f32")

    x, y = np.zeros(32, np.float32), np.arange(32, dtype=np.float32)
    box = TensorMap(np.zeros((16, 16), np.float32), box=(8, 16))
    bound = kernel(plain).bind(x, y, box, 7, "text", constant=4, **ONE)
    launch(bound)
    accepted(bound)
    np.testing.assert_array_equal(x, y * 4 + 7)
    assert len(bound.args) == 4


def test_all_argument_problems_come_at_once():
    @kernel
    def many(x: Array[f32], m: TensorMap, n: s32, k: s32, scale: f32, y):
        raise AssertionError

    with pytest.raises(TraceError) as caught:
        many.bind(np.zeros(3, np.int32), np.zeros(3), 1.5, 2**40, "two", np.zeros(3, np.complex64), **ONE)
    text = str(caught.value)
    for problem in (
        "`x` is an array of f32, not of int32",
        "`m` is a TensorMap, not an array of float64",
        "`n` is a .s32, not 1.5",
        f"`k` = {2**40} does not fit in a .s32",
        "`scale` is a .f32, not a str",
        "`y` has dtype complex64",
    ):
        assert problem in text
    with pytest.raises(TraceError, match="BAD_KERNEL") as caught:
        many.bind(1, **ONE)
    assert "missing a required argument" in str(caught.value)
    with pytest.raises(TraceError) as caught:
        many(1)
    assert "or `.bind(…)`" in str(caught.value)


def test_traces_are_kept_by_what_they_depend_on():
    traces = []

    @kernel
    def kept(x, n: s32, *, factor=2, table=()):
        traces.append((x.shape, factor))
        x[thread()] = (n * factor).to("f32")

    x = np.zeros(32, np.float32)
    first = kept.bind(x, 1, **ONE)
    assert kept.bind(np.ones(32, np.float32), 2, **ONE).program is first.program
    assert len(traces) == 1
    kept.bind(x, 1, factor=3, **ONE)
    kept.bind(np.zeros(33, np.float32), 1, **ONE)
    kept.bind(x[::-1][::-1], 1, **ONE)
    kept.bind(np.zeros(64, np.float32)[::2], 1, **ONE)
    kept.bind(x, 1, grid=(1, 1, 1), block=(64, 1, 1))
    assert len(traces) == 5
    kept.bind(x, 1, table=[1], **ONE)
    kept.bind(x, 1, table=[1], **ONE)
    assert len(traces) == 7, "what cannot be hashed cannot be looked up"
    kept.bind(x, 1, factor=True, **ONE)
    kept.bind(x, 1, factor=1, **ONE)
    assert len(traces) == 9, "True and 1 are different constants"


def test_directives_and_versions():
    @kernel(target="sm_90a", maxnreg=64)
    def plain(x):
        x[thread()] = 1.0

    x = np.zeros(32, np.float32)
    text = plain.ptx(x, block=(32, 1, 1), cluster=(2, 1, 1))
    assert text.startswith(".version 8.0\n.target sm_90a\n")
    for directive in (".reqntid 32, 1, 1", ".reqnctapercluster 2, 1, 1", ".maxnreg 64"):
        assert directive in text
    accepted(plain.bind(x, grid=(2, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1)))

    @kernel(target="sm_90a")
    def newer(x):
        x[thread()] = 1.0
        emit("fence.acquire.sync_restrict::shared::cluster.cluster")

    assert newer.ptx(x, block=(32, 1, 1)).startswith(".version 8.6\n")
    accepted(newer.bind(x, **ONE))


def test_instructions_carry_the_authors_line():
    @kernel
    def lines(x):
        i = thread()
        x[i] = x[i] + 1.0

    bound = lines.bind(np.zeros(32, np.float32), **ONE)
    module = bound.program
    assert dict(module.files) == {1: __file__}
    start = lines.__wrapped__.__code__.co_firstlineno
    found = {each.opcode: each.loc.line - start for each in module.kernels[0].instructions}
    assert found["mov.u32"] == 2
    assert found["ld.global.f32"] == found["st.global.f32"] == 3
    assert found["ld.param.u64"] == found["ret"] == 0


def test_faults_name_the_authors_line():
    @kernel
    def outside(x):
        x[thread()] = 1.0

    with pytest.raises(Fault) as caught:
        launch(outside.bind(np.zeros(8, np.float32), **ONE))
    assert caught.value.loc.file == __file__
    assert caught.value.loc.line == outside.__wrapped__.__code__.co_firstlineno + 2


def test_unused_parameters_stay_in_the_signature():
    @kernel
    def idle(x, n: s32, y):
        x[0] = 1.0

    x = np.zeros(4, np.float32)
    lines = body(run(idle, x, 3, x.copy()))
    assert x[0] == 1
    assert sum(line.startswith("ld.param") for line in lines) == 1


def test_tracing_is_fast():
    @kernel
    def long(x):
        i = thread()
        total = Variable("f32", 0.0)
        for row in range(125):
            for _ in loop(2):
                total += x[row, i] * 2.0
            x[row, i] = total + 1.0

    x = np.zeros((125, 32), np.float32)
    bound = long.bind(x, **ONE)
    assert len(bound.program.kernels[0].instructions) > 1000
    print_module(bound.program)
    others = iter(range(33, 36))
    assert cost(lambda: long.bind(np.zeros((125, next(others)), np.float32), **ONE)) < 60
