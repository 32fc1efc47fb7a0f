"""The README's commands in several settings: rows, comparison and continuation, with stand-ins for the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hosts
import pytest

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two[x]"><skipped/></testcase>
<testcase classname="tests.a" name="test_three">{}</testcase>
</testsuite></testsuites>"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the script; `done` has the commands that it started, and `broken` settings fail a test."""

    def command(name, setting, arguments):
        done.append((name, arguments[-3] if "--junitxml" in arguments else arguments[-1]))
        if "--junitxml" in arguments:
            Path(arguments[-1]).write_text(REPORT.format("<failure/>" if name in broken else ""))
        return int("--junitxml" in arguments and name in broken), f"took {len(done)}.5 s", 1.0

    def script(*options):
        done.clear()
        monkeypatch.setattr(sys, "argv", ["hosts.py", *options])
        return hosts.main(), [name for name, _ in done]

    done, broken = [], set()
    monkeypatch.setattr(hosts, "run", command)
    monkeypatch.setattr(hosts, "hosts", lambda: {hosts.PLAIN: {}, "Haswell": {"A": "1"}, "Zen": {"A": "2"}})
    monkeypatch.setattr(hosts, "RESULTS", tmp_path / "whole")
    monkeypatch.setattr(hosts, "HURRIED", tmp_path / "some")
    monkeypatch.setattr(hosts, "state", lambda: "one")
    script.broken, script.done, script.folder = broken, done, tmp_path
    return script


def test_the_test_command_is_the_readmes():
    assert hosts.test_command() == [sys.executable, "-m", "pytest", "-n", "2"]


def test_settings_that_succeeded_are_not_run_again(run, monkeypatch):
    run.broken.add("Zen")
    assert run("--whole") == (1, [name for name in (hosts.PLAIN, "Haswell", "Zen") for _ in "ab"])
    seeds = {argument for _, argument in run.done if argument != "demo"}
    assert len(seeds) == 1, "the same inputs in every setting"
    written = json.loads((run.folder / "whole" / "hosts.json").read_text())
    assert [row["host"] for row in written["rows"]] == [hosts.PLAIN, "Haswell", "Zen"]
    plain, haswell, zen = (row["tests"] for row in written["rows"])
    assert (plain["passed"], plain["skipped"], plain["digest"]) == (2, 1, haswell["digest"])
    assert (zen["failures"], zen["failure"]) == (["tests.a::test_three"], 1)
    assert zen["digest"] != plain["digest"]
    run.broken.clear()
    assert run("--whole") == (0, ["Zen", "Zen"])
    assert {argument for _, argument in run.done if argument != "demo"} == seeds
    assert run("--whole") == (0, [])
    assert len(run("--whole", "--again")[1]) == 6
    monkeypatch.setattr(hosts, "state", lambda: "two")
    assert len(run("--whole")[1]) == 6


def test_some_settings_and_some_tests(run):
    assert run("--host", "Has") == (0, [hosts.PLAIN, "Haswell"])
    assert run("--host", "Has", "--", "tests/a") == (0, [hosts.PLAIN] * 2 + ["Haswell"] * 2)
    assert not (run.folder / "whole").exists()
