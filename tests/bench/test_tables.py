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
    plain, fused, dependent = (read(folder, f"matmul_{kind}") for kind in ("plain", "fused", "dependent"))
    assert plain["summary"]["geometric_mean"] == pytest.approx(10 / 11)
    assert plain["summary"]["mean_to_third"] == pytest.approx(12 / 11)
    assert fused["summary"]["mean_to_compiled"] == pytest.approx(13 / 12)
    assert fused["rows"][0]["of_plain_cublas"] == pytest.approx(12 / 11)
    assert dependent["rows"][0]["ratio"] == pytest.approx(10 / 12)
    assert dependent["rows"][0]["ratio_to_plain"] == pytest.approx(11 / 12)


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
    pytest.importorskip("torch")
    import dense
    import front_door
    import roofline

    folder = fake_gpu(dense, front_door, roofline)
    monkeypatch.setattr(roofline, "READ_BYTES", 64 << 14)
    monkeypatch.setattr(roofline, "GUESSES", {"bf16": 1.0, "e4m3": 1.0})
    monkeypatch.setattr(roofline, "LISTED", ((130, 72, 136), (16, 200, 72)))
    monkeypatch.setattr(roofline, "LONG_US", 0)
    monkeypatch.setattr(sys, "argv", ["roofline.py", "--out", str(folder)])
    monkeypatch.setattr(roofline, "FAMILIES", {"fp8": _smaller(roofline.FAMILIES["fp8"])})
    assert roofline.main() == 0
    rows = read(folder, "roofline")["rows"]
    assert [row["label"] for row in rows] == ["peak", "peak", "read", "copy", "130×72×136", "16×200×72", "132×304×256"]
    assert all(row["fraction"] > 0 for row in rows[4:])


def _smaller(family):
    from dataclasses import replace

    case = family.cases[-1]
    return replace(family, cases=(replace(case, shape=case.small),))


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
        "matmul_dependent": {
            "rows": [{"shape": [1, 2, 3], "us": 1.25, "ratio_to_plain": 1.1, "ratio": 1.2, "plain_ratio": 1.09}]
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
    assert "| 1×2×3 | 1.2 | 1.100 | 1.200 | 1.090 |" in text
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
