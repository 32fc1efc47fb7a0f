"""A pytest plugin: the fixture `warploom_check`, and a marker of that name for tests whose launches are checked.

    def test_gemm(warploom_check):
        warploom_check(launch, profile="lenient")     # fails unless the verdict is PROVED

    @pytest.mark.warploom_check(profile="lenient", allow_incomplete=True)
    def test_program():
        run_my_program()                              # every launch on the emulator is checked before it runs

It is installed with the package; nothing of the emulator is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from warploom.checker.report import Report
    from warploom.host.launch import Launch

_NAME = "warploom_check"
_OPTIONS = {"profile", "budget", "limit", "allow_incomplete"}
_SHOWN = 3
"""Findings in the text of a failed test; the report has all of them."""


def pytest_configure(config: pytest.Config) -> None:
    text = f"{_NAME}(profile='strict', allow_incomplete=False): check every launch of the test on the emulator"
    config.addinivalue_line("markers", text)


@pytest.fixture(name=_NAME)
def _fixture() -> Callable[..., Report]:
    """Check a launch as `warploom.check` does, and fail the test unless it is PROVED; returns the report."""
    from warploom.checker.check import check

    def checked(*args: Any, allow_incomplete: bool = False, **options: Any) -> Report:
        __tracebackhide__ = True
        report = check(*args, **options)
        _fail_unless_proved([report], allow_incomplete=allow_incomplete)
        return report

    return checked


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Check the launches of a marked test."""
    marker = item.get_closest_marker(_NAME)
    if marker is None:
        return (yield)
    unknown = sorted(set(marker.kwargs) - _OPTIONS)
    if marker.args or unknown:
        wrong = ", ".join([*map(repr, marker.args), *unknown])
        pytest.fail(f"pytest.mark.{_NAME} takes {', '.join(sorted(_OPTIONS))} by keyword, not {wrong}", pytrace=False)
    options = dict(marker.kwargs)
    allow_incomplete = options.pop("allow_incomplete", False)
    from warploom.checker.check import check

    launcher: Any = import_module("warploom.launcher")

    reports: list[Report] = []
    prepare = launcher.prepare

    def checked(launch: Launch, *args: Any) -> Any:
        reports.append(check(launch, **options))
        return prepare(launch, *args)

    launcher.prepare = checked
    try:
        result = yield
    finally:
        launcher.prepare = prepare
    _fail_unless_proved(reports, allow_incomplete=allow_incomplete)
    return result


def _fail_unless_proved(reports: list[Report], *, allow_incomplete: bool) -> None:
    """Fail with the verdicts and the first findings: a few lines, not the whole report."""
    __tracebackhide__ = True
    from warploom.checker.report import Verdict

    accepted = (Verdict.PROVED, Verdict.INCOMPLETE) if allow_incomplete else (Verdict.PROVED,)
    lines: dict[str, None] = {}
    for report in reports:
        if report.verdict in accepted:
            continue
        lines |= dict.fromkeys([f"{report.verdict} {report.name} (profile {report.profile})", *_short(report)])
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def _short(report: Report) -> Iterator[str]:
    yield from (f"  because {reason}" for reason in report.reasons)
    for finding in report.findings[:_SHOWN]:
        yield f"  {finding.code}: {finding.sentence}"
        yield from (f"    {party}" for party in finding.parties)
        if finding.missing:
            yield f"    missing: {finding.missing}"
    if len(report.findings) > _SHOWN:
        yield f"  and {len(report.findings) - _SHOWN} more findings"
