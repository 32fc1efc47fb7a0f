"""Reports for other tools: JSON, SARIF 2.1.0, JUnit XML and GitHub annotations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from warploom.checker.codes import CODES
from warploom.checker.report import Finding, Party, Report, Verdict
from warploom.diagnostics import Loc, WarploomError
from warploom.version import __version__

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_BAD_IN_XML = {code: None for code in range(32) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True, slots=True)
class Checked:
    """One kernel of a sweep: its report, or the error that prevented the check."""

    source: str
    """The launch file or the `module:function` that named it."""
    report: Report | None = None
    error: WarploomError | None = None
    suppressed: Mapping[int, str] = field(default_factory=dict)
    """Positions of suppressed findings, with the reasons of the suppression file."""

    @property
    def name(self) -> str:
        """The source, and the kernel's name where it adds something."""
        kernel = self.report.name if self.report is not None else ""
        return f"{self.source} ({kernel})" if kernel else self.source

    @property
    def verdict(self) -> str:
        return str(self.report.verdict) if self.report is not None else "ERROR"

    @property
    def standing(self) -> tuple[Finding, ...]:
        """The findings that are not suppressed."""
        if self.report is None:
            return ()
        return tuple(each for at, each in enumerate(self.report.findings) if at not in self.suppressed)


def as_json(results: Sequence[Checked]) -> str:
    """Return all of every report as one JSON document."""
    return json.dumps({"warploom": __version__, "checks": [_document(each) for each in results]}, indent=1)


def _document(each: Checked) -> dict[str, Any]:
    report = each.report
    if report is None:
        error = each.error
        return {"source": each.source, "verdict": "ERROR", "error": str(error), "code": error.code if error else ""}
    return {
        "source": each.source,
        "kernel": report.name,
        "verdict": str(report.verdict),
        "profile": report.profile,
        "covers": {
            "interleavings": report.covers.interleavings,
            "generalised": [*report.covers.generalised],
            "cases": [*report.covers.cases],
            "as_run": [*report.covers.as_run],
            "runs": report.covers.runs,
        },
        "reasons": [*report.reasons],
        "assumptions": [*report.assumptions],
        "fidelity": report.fidelity,
        "findings": [
            {**_finding(finding), **({"suppressed": each.suppressed[at]} if at in each.suppressed else {})}
            for at, finding in enumerate(report.findings)
        ],
        "lints": [_finding(finding) for finding in report.lints],
        "relaxed": [{"name": one.name, "citation": one.citation, "count": one.count} for one in report.relaxed],
        "cost": {
            "seconds": report.cost.seconds,
            "events": report.cost.events,
            "instructions": report.cost.instructions,
            "runs": report.cost.runs,
        },
    }


def _finding(finding: Finding) -> dict[str, Any]:
    witness = finding.witness
    return {
        "code": finding.code,
        "title": finding.title,
        "sentence": finding.sentence,
        "file": None if finding.loc is None else finding.loc.file,
        "line": None if finding.loc is None else finding.loc.line,
        "parties": [_party(party) for party in finding.parties],
        "ordered_by": finding.path,
        "missing": finding.missing,
        "advice": finding.advice,
        "count": finding.count,
        "excused_by": finding.excused_by,
        "notes": [*finding.notes],
        "witness": None
        if witness is None
        else {"kind": witness.kind, "text": witness.text, "confirmed": witness.confirmed, "found_by": witness.found_by},
    }


def _party(party: Party) -> dict[str, Any]:
    return {
        "who": party.who,
        "what": party.what,
        "file": party.loc.file,
        "line": party.loc.line,
        "ptx_line": party.line,
        "instruction": party.instruction,
        "number": party.number,
    }


def as_sarif(results: Sequence[Checked]) -> str:
    """Return a SARIF 2.1.0 log: a result for each finding, lint and incomplete check."""
    found: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    for each in results:
        if each.report is None:
            failures.append({"level": "error", "message": {"text": f"{each.source}: {each.error}"}})
            continue
        found += [_result(each, finding, "error", each.suppressed.get(at)) for at, finding in enumerate(each.report)]
        found += [_result(each, lint, "note", None) for lint in each.report.lints]
        if each.report.verdict is Verdict.INCOMPLETE:
            text = f"{each.name}: the check is incomplete: {'; '.join(each.report.reasons)}"
            where = [{"physicalLocation": _location(Loc(each.source, 1))}]
            found.append({"ruleId": "INCOMPLETE", "level": "warning", "message": {"text": text}, "locations": where})
    used = sorted({one["ruleId"] for one in found})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CODES[code].title if code in CODES else "the check is incomplete"},
            **({"help": {"text": CODES[code].advice}} if code in CODES and CODES[code].advice else {}),
        }
        for code in used
    ]
    run = {
        "tool": {"driver": {"name": "warploom", "version": __version__, "rules": rules}},
        "invocations": [{"executionSuccessful": not failures, "toolExecutionNotifications": failures}],
        "results": found,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _result(each: Checked, finding: Finding, level: str, reason: str | None) -> dict[str, Any]:
    first = finding.loc or Loc(each.source, 1)
    lines = [finding.sentence, *(f"{party.who} {party.what} ({party.loc})" for party in finding.parties)]
    lines += [f"missing: {finding.missing}"] if finding.missing else []
    lines += [finding.advice] if finding.advice else []
    locs = [party.loc for party in finding.parties] or [each for each in (finding.at,) if each is not None]
    places = "|".join(f"{loc.file}:{loc.line}" for loc in locs)
    digest = hashlib.sha256(f"{finding.code}|{each.name}|{places}".encode()).hexdigest()
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": level,
        "message": {"text": "\n".join(lines)},
        "locations": [{"physicalLocation": _location(first)}],
        "relatedLocations": [
            {"id": at, "physicalLocation": _location(party.loc), "message": {"text": f"{party.who} {party.what}"}}
            for at, party in enumerate(finding.parties)
        ],
        "partialFingerprints": {"warploom/v1": digest[:32]},
        "properties": {"kernel": each.name, "count": finding.count},
    }
    if reason is not None:
        result["suppressions"] = [{"kind": "external", "justification": reason}]
    return result


def _location(loc: Loc) -> dict[str, Any]:
    return {"artifactLocation": {"uri": quote(_uri(loc.file))}, "region": {"startLine": max(loc.line, 1)}}


def _uri(file: str) -> str:
    """Return the path relative to the working directory where it is below that: what code-scanning tools want."""
    try:
        return Path(file).resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return Path(file).as_posix()


def as_junit(results: Sequence[Checked]) -> str:
    """Return JUnit XML: a test case for each kernel; REFUTED is a failure, INCOMPLETE is skipped."""
    seconds = sum(each.report.cost.seconds for each in results if each.report is not None)
    failures = sum(bool(each.standing) for each in results)
    errors = sum(each.report is None for each in results)
    skipped = sum(each.report is not None and each.report.verdict is Verdict.INCOMPLETE for each in results)
    counts = {"tests": len(results), "failures": failures, "errors": errors, "skipped": skipped}
    marks = {"name": "warploom check", "time": f"{seconds:.3f}", **{name: str(count) for name, count in counts.items()}}
    suite = Element("testsuite", marks)
    for each in results:
        time = each.report.cost.seconds if each.report is not None else 0.0
        case = SubElement(suite, "testcase", classname="warploom.check", name=_xml(each.name), time=f"{time:.3f}")
        if each.report is None:
            SubElement(case, "error", message=_xml(str(each.error).splitlines()[0])).text = _xml(str(each.error))
        elif each.standing:
            message = f"REFUTED: {', '.join(dict.fromkeys(one.code for one in each.standing))}"
            SubElement(case, "failure", message=_xml(message)).text = _xml(str(each.report))
        elif each.report.verdict is Verdict.INCOMPLETE:
            SubElement(case, "skipped", message=_xml("; ".join(each.report.reasons)))
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, "unicode")


def _xml(text: str) -> str:
    """Return text without the characters that XML 1.0 does not allow."""
    return text.translate(_BAD_IN_XML)


def as_github(results: Sequence[Checked]) -> str:
    """Return workflow commands that GitHub shows as annotations of the changed lines."""
    lines = []
    for each in results:
        if each.report is None:
            lines.append(_command("error", Loc(each.source, 1), "warploom check", str(each.error)))
            continue
        for finding in each.standing:
            loc = finding.loc or Loc(each.source, 1)
            lines.append(_command("error", loc, f"{finding.code}: {finding.title}", str(finding)))
        if each.report.verdict is Verdict.INCOMPLETE:
            text = "; ".join(each.report.reasons)
            lines.append(_command("warning", Loc(each.source, 1), f"INCOMPLETE: {each.name}", text))
    return "\n".join(lines)


def _command(level: str, loc: Loc, title: str, text: str) -> str:
    def escaped(value: str, more: str = "") -> str:
        for each in "%\r\n" + more:
            value = value.replace(each, f"%{ord(each):02X}")
        return value

    place = f"file={escaped(_uri(loc.file), ':,')},line={max(loc.line, 1)},title={escaped(title, ':,')}"
    return f"::{level} {place}::{escaped(text)}"


FORMATS: Mapping[str, Callable[[Sequence[Checked]], str]] = {
    "json": as_json,
    "sarif": as_sarif,
    "junit": as_junit,
    "github": as_github,
}
