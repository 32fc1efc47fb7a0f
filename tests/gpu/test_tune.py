"""Tuning on a Hopper GPU: candidates are measured and checked, later calls use the winners."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom
from warploom.cli import main
from warploom.heuristics import Device, choose
from warploom.ops import blockwise_matmul, grouped_matmul, linear, matmul
from warploom.ops.planning.planner import tuned
from warploom.ops.planning.prepare import plan
from warploom.runtime.gpu.driver import device
from warploom.structured.config.sm90 import HopperConfig
from warploom.trace import Array, cta_index, f32, kernel, s32, special, thread, when
from warploom.tuning import tune

pytestmark = needs_hopper


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("WARPLOOM_TUNED", raising=False)


def random(*shape, dtype=None):
    return torch.randn(shape, device="cuda").to(dtype or torch.bfloat16)


def product(m, n, k, dtype=None):
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return {"a": random(m, k, dtype=dtype), "b": random(n, k, dtype=dtype).t(), "out": out}


def held(report, count):
    """Check what every report must satisfy."""
    timed = [row for row in report.rows if row.us is not None]
    assert len(timed) >= count
    assert not [str(row) for row in report.rows if row.failure]
    assert [row.us for row in timed] == sorted(row.us for row in timed)
    assert next(row.ratio for row in timed if row.config == report.default) == pytest.approx(1.0)
    assert report.gain >= 1.0
    assert report.is_remembered


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (16, 4096, 4096), (300, 520, 4096)])
def test_gemms_are_tuned_and_the_winner_is_used(shape):
    given = product(*shape)
    report = tune(matmul, **given, most=8)
    held(report, 8)
    assert tuned(report.key, device(0).gpu) == report.best
    want = given["a"].double() @ given["b"].double()
    found = warploom.matmul(given["a"], given["b"])
    torch.testing.assert_close(found.double(), want, rtol=2e-2, atol=2e-2 * want.abs().mean().item())
    call = plan(matmul, **given)
    given["out"].fill_(float("nan"))
    call(*given.values())
    assert torch.equal(given["out"], found)


def test_times_are_plausible():
    """Half the work takes about half the time; no GEMM is faster than the tensor cores."""
    reports = [tune(matmul, **product(n, 4096, 4096), candidates=[]) for n in (4096, 2048)]
    whole, half = (report.rows[0] for report in reports)
    assert 1.6 < whole.us / half.us < 2.4
    assert 400 < whole.tflops < 990


def test_many_split_k_candidates_are_right():
    held(tune(matmul, **product(128, 256, 8192), most=40), 30)


def test_epilogues_are_tuned_too():
    given = product(512, 1024, 1024)
    out = given.pop("out")
    more = {"bias": random(1024), "activation": "gelu_tanh", "residual": random(512, 1024)}
    report = tune(matmul, **given, **more, out=out, most=10)
    held(report, 10)
    assert report.key.residual


def test_other_operations():
    ends = torch.tensor([100, 100, 640, 1000, 1024], device="cuda", dtype=torch.int32)
    b = random(5, 512, 1024).mT
    out = torch.zeros(1024, 512, device="cuda", dtype=torch.bfloat16)
    held(tune(grouped_matmul, a=random(1024, 1024), b=b, ends=ends, out=out, most=None), 5)
    narrow = {"a": random(512, 1024, dtype=torch.float8_e4m3fn), "b": random(640, 1024, dtype=torch.float8_e4m3fn)}
    scales = {"a_scale": torch.rand(8, 512, device="cuda").t() + 0.5, "b_scale": torch.rand(5, 8, device="cuda") + 0.5}
    out = torch.empty(512, 640, device="cuda", dtype=torch.bfloat16)
    held(tune(blockwise_matmul, **narrow, **scales, out=out, most=None), 5)
    held(tune(matmul, **product(512, 512, 1024, torch.float8_e4m3fn), most=6), 6)
    batched = {
        "a": random(3, 256, 512),
        "b": random(3, 512, 256),
        "out": torch.empty(3, 256, 256, device="cuda", dtype=torch.bfloat16),
    }
    held(tune(matmul, **batched, most=6), 6)


def test_a_repeated_call_uses_the_winner_too():
    """Cached launchers of PyTorch calls are planned anew."""
    x, w = random(640, 1024), random(768, 1024)
    before = warploom.linear(x, w)
    out = torch.empty_like(before)
    report = tune(
        linear, x=x, w=w, out=out, candidates=[HopperConfig(tile=(128, 64)), HopperConfig(tile=(64, 64), consumers=1)]
    )
    assert torch.allclose(warploom.linear(x, w).float(), before.float(), rtol=2e-2, atol=0.5)
    gpu = device(0).gpu
    assert tuned(report.key, gpu) == report.best
    assert report.default == choose(report.key, Device.of(gpu))


@dataclass(frozen=True)
class Rows:
    threads: int
    is_wrong: bool = False


@kernel(target="sm_90a")
def doubled(x: Array[f32], y: Array[f32], n: s32, *, config: Rows):
    i = (cta_index() * special("ntid.x") + thread()).to(s32)
    with when(i < n):
        y[i] = x[i] * (3.0 if config.is_wrong else 2.0)


def test_a_user_kernel():
    n = 1 << 22
    x, y = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")

    def bound(config):
        grid = (-(-n // config.threads), 1, 1)
        return doubled.bind(x, y, n, grid=grid, block=(config.threads, 1, 1), config=config)

    candidates = [Rows(32), Rows(128), Rows(256, is_wrong=True), Rows(1024), Rows(2048)]
    report = warploom.tune(bound, candidates=candidates, out=y, key="doubled")
    assert report.best in (Rows(128), Rows(1024))
    assert report.gain > 1.2
    failures = {row.config: row.failure for row in report.rows if row.failure}
    assert failures[Rows(256, is_wrong=True)].startswith("wrong: ")
    assert set(failures) == {Rows(256, is_wrong=True), Rows(2048)}
    assert not y.any(), "the author's arrays are left alone"
    assert warploom.tune(bound, candidates=candidates, key="doubled").best == report.best


def test_the_command(capsys, tmp_path):
    file = tmp_path / "measured.json"
    assert main(["tune", "512x512x512", "2x256x256x512", "--most", "4", "--out", str(file)]) == 0
    assert capsys.readouterr().out.count("remembered: ") == 2
    assert main(["tune", "1024x512x512", "--grouped", "4", "--most", "3"]) == 0
    assert main(["tune", "512x512x512", "--blockwise", "--bias", "--activation", "relu", "--most", "3"]) == 0
    assert main(["tune", "--fit", str(file)]) == 0
    document = json.loads(file.read_text("utf-8"))
    assert document["machine"]["sms"] == torch.cuda.get_device_properties(0).multi_processor_count
