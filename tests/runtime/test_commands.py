"""`warploom ptx` with what ptxas and nvdisasm say."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from tests.runtime.kernels import ERRORS, LOCAL_AND_FENCES, sums

from warploom.cli import main
from warploom.commands.ptx import report
from warploom.diagnostics import WarploomError
from warploom.ptx.syntax.parser import parse
from warploom.runtime.toolchain.tools import find


@pytest.fixture(autouse=True)
def tools():
    try:
        find("ptxas"), find("nvdisasm")
    except WarploomError as error:
        pytest.skip(error.what)


def call(capsys, tmp_path, text, *flags):
    file = tmp_path / "kernel.ptx"
    file.write_text(text)
    status = main(["ptx", str(file), *flags])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_registers_are_a_table(capsys, tmp_path):
    status, out, _ = call(capsys, tmp_path, LOCAL_AND_FENCES, "--registers")
    assert status == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(" second")}
    assert rows["second"][-2] == str(77 * 4)
    assert "EXIT" not in out


def test_sass_is_shown_with_suspicious_instructions(capsys, tmp_path):
    status, out, _ = call(capsys, tmp_path, LOCAL_AND_FENCES, "--sass")
    assert status == 0
    assert "MEMBAR.ALL.GPU ;" in out
    assert "MEMBAR (author.py:9): " in out
    assert "\N{REPLACEMENT CHARACTER}" not in out


def test_slow_code_is_shown_and_sets_the_exit_status(capsys, tmp_path):
    status, out, _ = call(capsys, tmp_path, sums(64, 24), "--registers", "--json")
    document = json.loads(out)
    assert status == 1
    (row,) = document["assembly"]["kernels"]
    assert row["spill_stores"] > 0
    assert "sass" not in document["assembly"]
    status, out, _ = call(capsys, tmp_path, sums(8, 24), "--sass", "--json")
    assert status == 0
    assert json.loads(out)["assembly"]["counts"]["EXIT"] == 1


def test_errors_of_ptxas_are_errors_of_the_command(capsys, tmp_path):
    status, _, err = call(capsys, tmp_path, ERRORS.replace("%r99", "%r3"), "--registers")
    assert status == 3
    assert err.startswith("NOT_ASSEMBLED: ")
    assert "author.py:6" in err


@pytest.mark.parametrize(("registers", "sass"), [(False, False), (True, False), (False, True)])
def test_a_report_begins_with_ptx_that_can_be_read_again(registers, sass):
    text, stream = sums(8, 24), io.StringIO()
    assert report(text, registers=registers, sass=sass, console=Console(file=stream, width=60))
    printed = stream.getvalue()
    assert parse(printed[: len(text.rstrip())]) == parse(text)
    assert ("spilled" in printed) == registers
    assert ("EXIT" in printed) == sass


def test_a_report_says_whether_speed_was_lost():
    assert not report(sums(64, 24), registers=True, sass=False, console=Console(file=io.StringIO()))


@pytest.mark.parametrize(("missing", "flag"), [("nvdisasm", "--sass"), ("ptxas", "--registers")])
@pytest.mark.parametrize("what", ["file", "operation"])
def test_without_a_tool_nothing_is_shown_but_the_error(what, missing, flag, capsys, tmp_path, monkeypatch):
    file = tmp_path / "kernel.ptx"
    file.write_text(sums(8, 24))
    monkeypatch.setenv(f"WARPLOOM_{missing.upper()}", str(tmp_path / "nothing"))
    status = main(["ptx", *([str(file)] if what == "file" else ["matmul", "64x64x64"]), flag])
    captured = capsys.readouterr()
    assert status == 3
    assert captured.out == ""
    assert missing in captured.err
