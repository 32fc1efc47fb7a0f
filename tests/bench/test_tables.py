"""Tables grow row by row, and the benchmarks that fill them run end to end on a fake GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from argparse import Namespace
from xml.etree import ElementTree as ET

import pytest
from tables import GpuLostError, Table


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


def test_a_failing_case_is_reported_and_the_others_stay(tmp_path, capsys):
    lost = []
    table = Table("some", {"on": "x"}, str, lambda rows: {"n": len(rows)}, tmp_path, is_lost=lambda: bool(lost))
    table.measure({"label": "one"}, lambda: {"us": 1.5})
    table.measure({"label": "two"}, lambda: 1 // 0)
    found = read(tmp_path, "some")
    assert found["rows"] == [{"label": "one", "us": 1.5}, {"label": "two", "error": found["rows"][1]["error"]}]
    assert "ZeroDivisionError" in found["rows"][1]["error"]
    assert (found["on"], found["summary"]) == ("x", {"n": 2})
    assert "one" in capsys.readouterr().out
    lost.append(1)
    with pytest.raises(GpuLostError):
        table.measure({"label": "three"}, lambda: {"us": 3})
    assert len(read(tmp_path, "some")["rows"]) == 3


def test_rows_of_earlier_runs_keep_their_place(tmp_path):
    for value, labels in ((1, "abc"), (2, "bd")):
        table = Table("some", {}, str, folder=tmp_path, adds=True)
        for label in labels:
            table.measure({"label": label, "shape": (1, 2)}, lambda value=value: {"us": value})
    assert [(row["label"], row["us"]) for row in read(tmp_path, "some")["rows"]] == [
        ("a", 1), ("b", 2), ("c", 1), ("d", 2),
    ]  # fmt: skip


def test_every_gemm_table_is_measured(fake_gpu, monkeypatch):
    pytest.importorskip("torch")
    import dense
    import front_door
    import matmul

    folder = fake_gpu(dense, front_door, matmul)
    monkeypatch.setattr(dense, "compiled_peer", lambda each, limit: dense.fused_peer)
    monkeypatch.setattr(matmul, "LISTED", ((130, 72, 136), (16, 200, 72)))
    monkeypatch.setattr(matmul, "ODD", ((33, 61, 50),))
    monkeypatch.setattr(matmul, "random_shapes", lambda seed, count: [(5, 64, 72)])
    given = {"quick": False, "machine": False, "shapes": None, "seed": 1, "out": folder, "add": False, "limit": 60}
    options = dense.Options(third=lambda a, b, out: lambda: out.copy_(a.float() @ b.float().t()), compiled=1)
    for kind in matmul.DENSE:
        rows = matmul.measured(kind, Namespace(**given), options).rows
        assert not [row["error"] for row in rows if "error" in row], kind
    plain, fused = (read(folder, f"matmul_{kind}") for kind in ("plain", "fused"))
    assert plain["summary"]["geometric_mean"] == pytest.approx(10 / 11)
    assert plain["summary"]["mean_to_third"] == pytest.approx(12 / 11)
    assert fused["summary"]["mean_to_compiled"] == pytest.approx(13 / 12)
    assert fused["rows"][0]["of_plain_cublas"] == pytest.approx(12 / 11)


def test_families_are_measured_through_the_public_operations(fake_gpu, monkeypatch):
    pytest.importorskip("torch")
    import front_door
    import matmul

    fake_gpu(front_door, matmul)
    for name in ("grouped", "fp8"):
        row = front_door.family_row(name, matmul.FAMILIES[name].cases[-1].small, None)
        assert row["ratio"] == pytest.approx(10 / 11), name


def test_the_ladder_is_measured_end_to_end(fake_gpu, monkeypatch):
    pytest.importorskip("torch")
    import ladder

    folder = fake_gpu(ladder)
    monkeypatch.setattr(sys, "argv", ["ladder.py", "--shapes", "100x136x72", "--rungs", "0,6,10", "--out", str(folder)])
    assert ladder.main() == 0
    rows = read(folder, "ladder")["rows"]
    assert [row["rung"] for row in rows] == [0, 6, 10]
    assert all(row["ratio"] == pytest.approx(10 / 11) for row in rows)


def test_the_roofline_is_measured_end_to_end(fake_gpu, monkeypatch):
    torch = pytest.importorskip("torch")
    import roofline
    from protocol import Timed

    folder = fake_gpu(roofline)
    monkeypatch.setattr(roofline, "READ_BYTES", 64 << 14)
    monkeypatch.setattr(roofline, "GUESSES", {"bf16": 1.0, "e4m3": 1.0})
    monkeypatch.setattr(roofline, "captured", lambda calls, count: [call() for call in calls])
    monkeypatch.setattr(roofline, "Sensors", lambda: None)
    monkeypatch.setattr(Timed, "of_graph", classmethod(lambda cls, graph, calls: cls(graph, calls, 1, [2.0], [1.0])))
    monkeypatch.setattr(roofline, "take_turns", lambda sides, protocol, rng, sensors: None)
    monkeypatch.setattr(sys, "argv", ["roofline.py", "--out", str(folder)])
    assert roofline.main() == 0
    rows = read(folder, "roofline")["rows"]
    assert [row["label"] for row in rows] == ["peak", "peak", "read", "copy"]
    assert rows[2]["alone_terabytes"] == pytest.approx((64 << 14) / 2e6)
    assert rows[2]["cool_terabytes"] == pytest.approx((64 << 14) / 1e6)
    assert torch.cuda.get_device_properties(0).multi_processor_count == 4


def test_fractions_of_the_roofline(monkeypatch, tmp_path):
    import pages

    rows = [
        {"label": "peak", "element": each, "alone_tflops": 500.0, "cool_tflops": 1000.0} for each in ("bf16", "e4m3")
    ]
    rows += [
        {"label": each, "element": "bytes", "alone_terabytes": 4.0, "cool_terabytes": 4.0} for each in ("read", "copy")
    ]
    limited = {"alone_us": 2.0, "cool_us": 2.0, "mhz": 1400}
    sides = {"shipped": limited, "cublas": {**limited, "mhz": 1980}}
    files = {
        "roofline": {"rows": rows},
        "alone": {"rows": [{"label": "", "shape": [1000, 500, 1000], "sides": sides}]},
    }  # 1 GFLOP takes 2 µs at the limit and 1 µs at the free clock; 4 MB take 1 µs
    for name, document in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document), "utf-8")
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert "| 1000×500×1000 | bf16 | tensor core | 2.0 | 500 | 1.000 | 0.500 | 0.500 | 0.500 |" in pages.roofline()


def test_pages_are_rendered_from_the_existing_results(monkeypatch, tmp_path):
    import pages

    shapes = ("8192×8192×8192", "4096×4096×4096")
    rungs = [
        {"label": label, "rung": number, "adds": adds, "ratio": 0.5 + number / 10, "tflops": 300.0 + number}
        for label in shapes
        for number, adds in enumerate(("one & only", "more < most"))
    ]
    files = {
        "ladder": {"rows": [*rungs, {"label": shapes[0], "rung": 2, "adds": "fails", "error": "x"}]},
        "sanitizer": {
            "rows": [
                {"tool": "memcheck", "case": "fp8", "errors": 0, "well": True},
                {"tool": "racecheck", "case": "fp8", "errors": 1, "well": False},
                {"tool": "memcheck", "case": "planted: it", "errors": 1, "well": True},
            ]
        },
        "dependent": {
            "summary": {"gain_alone": 1.08, "gain_cool": 1.1},
            "rows": [
                {
                    "shape": [1, 2, 3],
                    "config": "sw64x8",
                    "by_default": True,
                    "sides": {"without": {"alone": 1.01, "cool": 1.02}, "dependent": {"alone": 1.1, "cool": 1.2}},
                }
            ],
        },
    }
    for name, document in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document), "utf-8")
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    text = pages.rendered(
        "".join(f"<!-- made by bench/pages.py: {name} -->\nold\n<!-- end -->\n" for name in pages.BLOCKS)
    )
    assert "old" not in text
    assert "| + more < most | 301 (0.600) | 301 (0.600) |" in text
    assert "1 of 2 runs without a finding" in text
    assert "Not right: racecheck on fp8" in text
    assert "| 1×2×3 | `sw64x8` | 1.010 | 1.020 | 1.100 | 1.200 | yes |" in text
    assert "gain 8.0 % alone and 10.0 % cool" in text
    assert pages.rendered(text) == text
    drawn = ET.fromstring(pages.chart())
    widths = [float(each.get("width")) for each in drawn.iter("{http://www.w3.org/2000/svg}rect")][2:]
    assert widths[0] / widths[2] == pytest.approx(0.5 / 0.6, rel=1e-2)
    assert len(re.findall("TFLOP/s", pages.chart())) == 4


def test_a_compiler_that_takes_too_long_is_stopped(monkeypatch):
    pytest.importorskip("torch")
    import compiled

    with pytest.raises(TimeoutError, match="no end after 0 s"), compiled.at_most(0.05):
        time.sleep(600)
    sleeps = {(1, 1, 1): "0", (2, 2, 2): "600"}

    def started(shape, folder, threads):
        child = subprocess.Popen(["sleep", sleeps[shape]], process_group=0)
        if shape == (1, 1, 1):
            child.wait()
        return child

    monkeypatch.setattr(compiled, "_started", started)
    assert list(compiled.warmed(list(sleeps), 0.5).values()) == ["compiled", "no end in time"]


def test_scripts_of_everything_exist(monkeypatch, capsys):
    import everything

    monkeypatch.setattr(sys, "argv", ["everything.py", "--list", "--quick"])
    assert everything.main() == 0
    for line in capsys.readouterr().out.splitlines():
        assert (everything.ROOT / line.split()[1]).exists(), line
    assert len({step.name for step in everything.STEPS}) == len(everything.STEPS)
