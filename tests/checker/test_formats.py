"""JSON, SARIF, JUnit XML and GitHub annotations of real reports; suppression files; the command's options."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from tests.checker import launches
from tests.checker.kernels import kernel

import warploom
from warploom.checker.formats import FORMATS, Checked
from warploom.checker.suppressions import Suppression, load_suppressions, suppressed_in
from warploom.cli import main
from warploom.commands.console import output
from warploom.diagnostics import Diag, InputError, WarploomError

BOTH = "tests.checker.launches:both"
SARIF_SHAPE = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "results": {
                        "items": {
                            "required": ["ruleId", "level", "message", "locations"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {"required": ["text"]},
                                "locations": {
                                    "items": {
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation", "region"],
                                                "properties": {"region": {"properties": {"startLine": {"minimum": 1}}}},
                                            }
                                        }
                                    }
                                },
                            },
                        }
                    }
                },
            },
        },
    },
}
"""The parts of the SARIF 2.1.0 schema that readers rely on."""


@pytest.fixture(scope="module")
def results():
    error = Diag.UNREADABLE_FILE.error(file="gone.json", what="does not exist")
    made = {name: Checked(name, warploom.check(launch, budget=2)) for name, launch in launches.both().items()}
    return [*made.values(), Checked("gone.json", error=error)]


def test_json_has_every_finding(results):
    right, wrong, gone = json.loads(FORMATS["json"](results))["checks"]
    assert (right["verdict"], wrong["verdict"], gone["verdict"]) == ("PROVED", "REFUTED", "ERROR")
    assert right["findings"] == []
    found = {finding["code"] for finding in wrong["findings"]}
    assert "RACE_WAW" in found
    assert all(party["line"] >= 1 for finding in wrong["findings"] for party in finding["parties"])
    assert gone["code"] == "UNREADABLE_FILE"


def test_sarif_is_valid_and_names_both_parties(results):
    log = json.loads(FORMATS["sarif"](results))
    jsonschema.validate(log, SARIF_SHAPE)
    (run,) = log["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {each["ruleId"] for each in run["results"]}
    race = next(each for each in run["results"] if each["ruleId"] == "RACE_WAW")
    assert race["level"] == "error"
    assert len(race["relatedLocations"]) == 2
    assert not run["invocations"][0]["executionSuccessful"]


def test_junit_counts_failures_and_errors(results):
    suite = ET.fromstring(FORMATS["junit"](results)).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "RACE_WAW" in failure.get("message", "")


def test_github_annotations_are_one_line_each(results):
    lines = FORMATS["github"](results).splitlines()
    findings = sum(len(each.standing) for each in results)
    assert len(lines) == findings + 1
    assert all(line.startswith("::error file=") for line in lines)


def test_suppressions_hide_findings_and_give_reasons(results, tmp_path, capsys):
    report = results[1].report
    codes = sorted({finding.code for finding in report.findings})
    entries = "".join(f'[[suppress]]\ncode = "{code}"\nkernel = "k"\nreason = "known"\n' for code in codes)
    file = tmp_path / "known.toml"
    file.write_text(entries + '[[suppress]]\ncode = "DEADLOCK"\nreason = "unused"\n', "utf-8")
    assert len(suppressed_in(report, load_suppressions(file))) == len(report.findings)
    assert main(["check", BOTH, "--suppress", str(file)]) == 0
    shown = capsys.readouterr()
    assert "suppressed by" in shown.out
    assert "nothing matches DEADLOCK" in shown.err


def test_a_suppression_of_another_line_matches_nothing(results):
    finding = results[1].report.findings[0]
    assert not Suppression(code=finding.code, reason="x", line=999).matches(finding, "k")
    assert not Suppression(code=finding.code, reason="x", kernel="other").matches(finding, "k")


def test_everything_wrong_with_a_suppression_file_is_reported(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text('other = 1\n[[suppress]]\ncode = "NO_SUCH"\nline = "x"\n', "utf-8")
    with pytest.raises(WarploomError) as caught:
        load_suppressions(file)
    for part in ("unknown key `other`", "`reason` is missing", "no code `NO_SUCH`", "`line` must be an integer"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("fail_on", "status"), [("any", 1), ("lenient", 1), ("never", 0)])
def test_fail_on(fail_on, status):
    assert main(["check", BOTH, "--fail-on", fail_on]) == status


def test_a_function_that_returns_several_launches(tmp_path):
    out = tmp_path / "report.json"
    assert main(["check", BOTH, "--format", "json", "--out", str(out), "--witness", str(tmp_path / "w")]) == 1
    checks = json.loads(out.read_text("utf-8"))["checks"]
    assert [each["source"] for each in checks] == [f"{BOTH}[clean]", f"{BOTH}[race]"]
    confirmed = sum(bool(one["witness"] and one["witness"]["confirmed"]) for one in checks[1]["findings"])
    assert len(list((tmp_path / "w").glob("*.schedule.json"))) == confirmed


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tests.checker.launches:missing", "has no attribute"),
        ("tests.no_such_module:f", "there is no module"),
        ("tests.checker.launches:number", "returned int"),
        ("tests.checker.launches:broken", "broken() raised RuntimeError: no such size at "),
    ],
)
def test_wrong_targets(target, message, capsys):
    assert main(["check", target]) == 3
    assert message in capsys.readouterr().err


def test_an_error_is_reported_and_the_other_targets_are_checked(capsys):
    assert main(["check", "gone.launch.json", "tests.checker.launches:clean"]) == 3
    shown = capsys.readouterr()
    assert "PROVED" in shown.out
    assert "gone.launch.json" in shown.err


def test_suppression_errors_are_input_errors(tmp_path):
    file = tmp_path / "not.toml"
    file.write_text("[[", "utf-8")
    with pytest.raises((WarploomError, InputError), match="is not TOML"):
        load_suppressions(file)


def test_names_are_printed_as_they_are(capsys):
    """`:clean:` or `:one:` are not names of pictures."""
    output().print("k:one: PROVED", markup=False)
    assert capsys.readouterr().out.strip() == "k:one: PROVED"


@pytest.fixture
def race_file(tmp_path):
    """A launch file without `compare`, whose kernel races."""
    (tmp_path / "race.ptx").write_text(kernel(launches.RACE), "utf-8")
    parts = {
        "ptx": "race.ptx", "entry": "k", "grid": [1, 1, 1], "block": [64, 1, 1],
        "buffers": {"out": {"dtype": "uint32", "shape": [64], "output": True}}, "args": [{"pointer": "out"}],
    }  # fmt: skip
    path = tmp_path / "race.launch.json"
    path.write_text(json.dumps(parts), "utf-8")
    return path


def test_printed_commands_replay_the_witnesses_to_a_wrong_number(race_file, tmp_path, capsys):
    """Of a launch file that compares nothing, and of one of several launches of a function."""
    assert main(["check", str(race_file), BOTH, "--witness", str(tmp_path / "w")]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("witness: ")]
    assert len(lines) >= 2
    for line in lines:
        program, *arguments = shlex.split(line.removeprefix("witness: "))
        assert program == "warploom"
        assert main(arguments) == 1
        shown = capsys.readouterr().out
        assert "MISMATCH  disagreement under" in shown
        assert "nothing compared" not in shown


def test_witnesses_of_files_of_one_name_are_kept(race_file, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    for path in (race_file, race_file.with_name("race.ptx")):
        (other / path.name).write_text(path.read_text("utf-8"), "utf-8")
    assert main(["check", str(race_file), str(other / race_file.name), "--witness", str(tmp_path / "w")]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("witness: ")]
    assert len({shlex.split(line)[-1] for line in lines}) == len(lines) == len(list((tmp_path / "w").iterdir()))


def test_a_replay_needs_the_options_of_the_check(race_file, tmp_path, capsys):
    arguments = ["--data-seed", "3", "--limit", "1000", "--max-bytes", "4096"]
    assert main(["check", str(race_file), "--witness", str(tmp_path / "w"), *arguments]) == 1
    err = capsys.readouterr().err
    assert all(line.endswith(" ".join(arguments)) for line in err.splitlines() if line.startswith("witness: "))


def test_faults_and_reasons_name_the_file_of_the_ptx(race_file, capsys):
    atomic = "atom.global.add.u32 %r7, [%rd1], 1; setp.eq.u32 %p2, %r7, 0; @%p2 st.shared.u32 [%r5], %r1;"
    race_file.with_name("race.ptx").write_text(kernel(atomic), "utf-8")
    assert main(["check", str(race_file)]) == 6
    assert f"({race_file.with_name('race.ptx')}:" in capsys.readouterr().out.replace("\n", "")
    race_file.with_name("race.ptx").write_text(kernel("st.global.u32 [%rd3+4096], %r1;"), "utf-8")
    assert main(["check", str(race_file)]) == 1
    shown = capsys.readouterr().out
    assert f"OUT_OF_BOUNDS at {race_file.with_name('race.ptx')}:" in shown
    assert "<ptx>" not in shown


def test_one_of_the_launches_of_a_function(capsys):
    assert main(["check", f"{BOTH}[clean]"]) == 0
    assert capsys.readouterr().out.startswith(f"{BOTH}[clean]: PROVED")
    assert main(["check", f"{BOTH}[none]"]) == 3
    assert f"returned {BOTH}[clean], {BOTH}[race]" in capsys.readouterr().err


def test_a_deadlock_has_a_line() -> None:
    body = (
        "@%p1 mbarrier.init.shared.b64 [%r3], 2; bar.sync 0; @%p1 mbarrier.arrive.shared.b64 _, [%r3];\n"
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT;"
    )
    report = warploom.check(launches.made(body), budget=0)
    (finding,) = report
    assert finding.code == "DEADLOCK"
    assert finding.loc is not None
    line = 1 + kernel(body)[: kernel(body).index("mbarrier.try_wait")].count("\n")
    assert finding.loc.line == line
    results = [Checked("module:function", report)]
    (result,) = json.loads(FORMATS["sarif"](results))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "%3Cptx%3E"}, "region": {"startLine": line}}
    assert f"line={line}," in FORMATS["github"](results)
    assert json.loads(FORMATS["json"](results))["checks"][0]["findings"][0]["line"] == line
    assert Suppression(code="DEADLOCK", reason="known", file="<ptx>", line=line).matches(finding, "k")
    assert not Suppression(code="DEADLOCK", reason="known", file="<ptx>", line=line + 1).matches(finding, "k")


@pytest.mark.parametrize(("name", "returned"), [("no_launches", "no launch"), ("nothing", "NoneType")])
def test_a_function_without_launches_is_an_error(name: str, returned: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"tests.checker.launches:{name}"]) == 3
    assert f"it returned {returned}; it must return a Launch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_dependency\n", "raised ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("import sys\nsys.exit(0)\n", "raised SystemExit: 0"),
        ("def launches():\n    raise SystemExit(0)\n", "launches() raised SystemExit: 0"),
    ],
    ids=["missing dependency", "exit", "exit of the function"],
)
def test_a_module_that_fails_is_a_sentence(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"fails_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", f"{name}:launches"]) == 3
    assert words in capsys.readouterr().err
