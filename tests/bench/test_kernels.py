"""Results of the kernels that benchmarks launch: every step of the ladder, the roofline kernels, the sanitizer's cases."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ladder_kernels import RUNGS
from roofline_kernels import COLUMNS, ROWS, Multiplications, reading
from tests.assembly import assemble_ok
from tests.gpu import kernels, sanitise
from tests.gpu.cases import CASES

from warploom import launch
from warploom.host.program import text_of

SMS = 3


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.adds)
def test_each_step_of_the_ladder_is_exact_and_assembles_without_warnings(rung):
    rng = np.random.default_rng()
    for m, n, k in ((200, 264, 328), (64, 128, 64), (1, 8, 8)):
        a, b = (rng.integers(-2, 3, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
        d = np.full((m, n), np.nan, ml_dtypes.bfloat16)
        made = rung.launch(a, b, d, SMS)
        launch(made, schedule="random", seed=int(rng.integers(1 << 30)))
        assert (d == (a.astype(np.float32) @ b.astype(np.float32).T).astype(d.dtype)).all(), (m, n, k)
    assemble_ok(made)


def test_only_persistent_steps_launch_fewer_ctas_than_tiles():
    a = np.zeros((1000, 64), ml_dtypes.bfloat16)
    d = np.zeros((1000, 1000), ml_dtypes.bfloat16)
    for rung in RUNGS[:-1]:
        tile = rung.config((1000, 1000, 64)).tile
        tiles = -(-1000 // tile[0]) * -(-1000 // tile[1])
        ctas = rung.launch(a, a, d, SMS + 1).grid[0]
        assert ctas == (SMS + 1 if rung.is_persistent else tiles), rung.adds


@pytest.mark.parametrize(("element", "dtype"), [("bf16", ml_dtypes.bfloat16), ("e4m3", ml_dtypes.float8_e4m3fn)])
def test_mma_only_kernel(element, dtype):
    rng = np.random.default_rng()
    made = Multiplications(element, 2, SMS)
    a, b = (rng.integers(-2, 3, (rows, made.depth)).astype(dtype) for rows in (ROWS, COLUMNS))
    d = np.full((SMS * ROWS, COLUMNS), np.nan, np.float32)
    launched = made.launch(a, b, d)
    launch(launched, schedule="lazy")
    assert (d.reshape(SMS, ROWS, COLUMNS) == a.astype(np.float32) @ b.astype(np.float32).T).all()
    assert made.flops == 2 * 2 * SMS * ROWS * COLUMNS * made.depth
    assemble_ok(launched)


@pytest.mark.parametrize("boxes", [SMS, 37])
def test_read_only_kernel(boxes):
    source = np.arange(boxes * 4096, dtype=np.uint32).reshape(-1, 64)
    out = np.zeros((SMS, 32), np.uint32)
    made = reading(source, out, SMS)
    run = launch(made, schedule="random", seed=boxes)
    last = [max(range(cta, boxes, SMS)) for cta in range(SMS)]
    assert (out == source[[64 * box for box in last], :32]).all()
    assert run.instructions > 0
    assemble_ok(made)


@pytest.mark.parametrize("name", CASES)
def test_sanitizer_cases_are_right_on_the_emulator(name):
    assert sanitise.run_on_the_emulator(CASES[name])


def test_the_planted_race_is_a_race():
    out = np.zeros(kernels.THREADS, np.uint32)
    text = text_of(kernels.missing_barrier.bind(out, grid=(1, 1, 1), block=(kernels.THREADS, 1, 1)).program)
    assert "st.shared" in text
    assert "bar.sync" not in text


SAID = {
    "memcheck": "========= COMPUTE-SANITIZER\nresult: right\n========= ERROR SUMMARY: 0 errors\n",
    "racecheck": "result: right\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}


@pytest.mark.parametrize("text", SAID.values(), ids=SAID)
def test_tool_output_is_parsed(text):
    planted = next(iter(sanitise.PLANTED))
    assert sanitise.verdict(text, "fp8") == {"errors": 0, "well": True}
    found = text.replace(": 0 ", ": 7 ")
    assert sanitise.verdict(found, "fp8")["errors"] == 7
    assert not sanitise.verdict(found, "fp8")["well"]
    assert sanitise.verdict(found, planted)["well"]
    assert not sanitise.verdict(text, planted)["well"]
    assert not sanitise.verdict(text.replace("right", "wrong"), "fp8")["well"]
    assert sanitise.verdict("Device not supported", "fp8")["errors"] is None
