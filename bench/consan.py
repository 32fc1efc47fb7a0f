"""ConSan's labelled cases, from a checkout of Triton, under the checker: our verdict against their label.

    python bench/consan.py --source CHECKOUT --minutes 30 --ctas 1      # go on with bench/results/consan.json

The cases are those of `python/test/gluon/test_consan.py`, and stay in the checkout. Each test first compares the result
of a run in another process with what ConSan has to report; that comparison gives the label, and the run itself is done
here, on the emulator, with the instrumentation off. The installed Triton must be of the checkout's release: Triton 3.9.0
cannot compile 55 of the cases of release 3.8, whose names it has removed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from revision import revision  # noqa: E402

import warploom.triton  # noqa: E402
from warploom import WarploomError  # noqa: E402
from warploom.programs import launches  # noqa: E402

RESULTS = Path(os.environ.get("CONSAN", Path(__file__).parent / "results" / "consan.json"))
TARGETS = ("sm_90", "sm_100")
_UNLABELLED = ("test_cache_miss", "test_consan_uses", "test_consan_initializes")
"""Tests of ConSan's own machinery."""


_LIFETIMES = ("MBAR_LIFETIME", "TMEM_DEALLOC_EARLY", "REMOTE_AFTER_EXIT")


EXPLAINED = {
    "test_tma_tcgen05_mma_missing_multicast[4]": "Triton puts a relaxed cluster barrier into the loop, after which all MMAs are "
    "complete: the accesses are ordered in execution, which `lenient` accepts and `strict` does not",
}
"""Differences that were looked at."""


class _LabelledError(Exception):
    """The test expects an error."""


class _Environment:
    """In place of pytest's monkeypatch: no instrumentation."""

    def setenv(self, name: str, value: str) -> None:
        pass

    def setattr(self, *_: Any, **__: Any) -> None:
        pass


def imported(source: Path, target: str) -> ModuleType:
    """The test module, with its conditions for this target."""
    path = source / "python" / "test" / "gluon" / "test_consan.py"
    spec = importlib.util.spec_from_file_location(f"test_consan_{target}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with warploom.triton.machine(target=target):
        spec.loader.exec_module(module)
    return module


def skipped(test: Any) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "skip" or (mark.name == "skipif" and mark.args[0]) for mark in marks)


def cases(test: Any, ctas: list[int]) -> list[dict[str, Any]]:
    """The parameters of all cases of a test."""
    axes: list[list[dict[str, Any]]] = []
    names = test.__code__.co_varnames[: test.__code__.co_argcount]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            keys = [key.strip() for key in mark.args[0].split(",")] if isinstance(mark.args[0], str) else mark.args[0]
            values = [each if len(keys) > 1 else (each,) for each in mark.args[1]]
            axes.append([dict(zip(keys, value, strict=True)) for value in values])
    if "num_ctas" in names:
        axes.append([{"num_ctas": count} for count in ctas])
    return [functools.reduce(lambda one, other: one | other, each, {}) for each in itertools.product(*axes)]


def arguments(test: Any, given: dict[str, Any], wrapper: bool) -> dict[str, Any]:
    names = test.__code__.co_varnames[: test.__code__.co_argcount]
    fixed = {"device": "cuda", "run_wrapper": wrapper, "monkeypatch": _Environment()}
    return {name: given[name] if name in given else fixed[name] for name in names}


def label(module: ModuleType, test: Any, given: dict[str, Any]) -> str:
    """`error` if ConSan has to report one, `clean` if it must not; empty if the case is skipped."""
    import pytest

    def fails(_: Any) -> None:
        raise _LabelledError

    module.assert_expected_cuda_failure = fails  # type: ignore[attr-defined]
    module.run_in_process = lambda *_: SimpleNamespace(exc=None, driver_stderr_output="")  # type: ignore[attr-defined]
    try:
        test(**arguments(test, given, True))
    except _LabelledError:
        return "error"
    except pytest.skip.Exception:
        return ""
    except AssertionError:
        return "error"
    return "clean"


def judged(module: ModuleType, test: Any, given: dict[str, Any], target: str, profile: str) -> dict[str, Any]:
    """Our verdict on the launches of a case."""
    import pytest

    session = None
    error = ""
    try:
        with warploom.triton.machine(target=target, check=profile, limit=20_000_000) as session:
            test(**arguments(test, given, False))
    except pytest.skip.Exception:
        return {"verdict": "skipped"}
    except WarploomError as found:
        error = found.code
    except Exception as found:  # noqa: BLE001  a compiler's
        error = f"{type(found).__name__}: {str(found).strip().splitlines()[0][:100] if str(found).strip() else ''}"
    reports = [] if session is None else session.reports
    verdicts = {str(report.verdict) for report in reports}
    if not verdicts:
        return {"verdict": "none", "error": error}
    verdict = next(each for each in ("REFUTED", "INCOMPLETE", "PROVED") if each in verdicts)
    codes = sorted({finding.code for report in reports for finding in report.findings})
    reasons = sorted({reason.partition(" (")[0] for report in reports for reason in report.reasons})
    findings = sorted({_described(finding) for report in reports for finding in report.findings})
    return {"verdict": verdict, "codes": codes, "reasons": reasons, "error": error, "findings": findings}


def _described(finding: Any) -> str:
    """The code of a finding, with its memory, and whether both parties are asynchronous."""
    spaces = {party.space for party in finding.parties if party.space}
    both = len(finding.parties) > 1 and all(party.is_asynchronous for party in finding.parties)
    slot = any("tcgen05.alloc" in party.instruction for party in finding.parties)
    words = (finding.code, *sorted(spaces), "both asynchronous" if both else "", "tcgen05.alloc" if slot else "")
    return " ".join(filter(None, words))


def beyond(findings: list[str]) -> str:
    """The reason why ConSan does not report a case with only these findings; empty if it should."""
    if findings and all(each.startswith("UNINITIALISED") for each in findings):
        return "a read of memory that nothing has written, which ConSan does not look for"
    rest = [each for each in findings if not each.startswith("UNINITIALISED")]
    if rest and all(each.startswith(_LIFETIMES) for each in rest):
        return "a barrier, a CTA or TMEM ends before all operations on it are known to be complete, which ConSan does not check"
    if rest and all(each.endswith("tcgen05.alloc") for each in rest):
        return "an operand that nothing has written but tcgen05.alloc, which puts its address there, unordered with the peer CTA"
    if rest and all(" global" in each for each in rest):
        return "a race in global memory, which ConSan does not track"
    if rest and all(each.endswith("both asynchronous") and each.startswith("RACE_WAW") for each in rest):
        return "two asynchronous writes of the same bytes under way at once, which ConSan accepts"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a checkout of Triton")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ctas", type=int, nargs="+", default=[1, 2, 4], help="CTAs in a cluster (1 2 4)")
    parser.add_argument("--profile", default="lenient")
    parser.add_argument("--only", default="", help="tests whose name contains this, judged anew")
    options = parser.parse_args()
    launches.check = functools.partial(launches.check, budget=2)  # type: ignore[attr-defined]
    command = ["git", "-C", str(options.source), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    results: dict[str, Any] = {"commit": commit, "profile": options.profile, "cases": {}, "skipped": {}}
    if RESULTS.exists():
        results |= json.loads(RESULTS.read_text("utf-8"))
    end = time.monotonic() + 60 * options.minutes
    modules = {target: imported(options.source, target) for target in TARGETS}
    for name in [name for name in vars(modules["sm_90"]) if name.startswith("test_")]:
        if name.startswith(_UNLABELLED) or options.only not in name:
            continue
        target = next((each for each in TARGETS if not skipped(getattr(modules[each], name))), "")
        test = getattr(modules[target or "sm_90"], name)
        for given in cases(test, options.ctas):
            key = f"{name}[{'-'.join(str(value) for value in given.values())}]"
            if time.monotonic() > end or (not options.only and (key in results["cases"] or key in results["skipped"])):
                continue
            if not target:
                results["skipped"][key] = "for another architecture"
                continue
            wanted = label(modules[target], test, given)
            found = judged(modules[target], test, given, target, options.profile) if wanted else {"verdict": "skipped"}
            if found["verdict"] == "skipped":
                results["skipped"][key] = "skipped by the test itself"
            elif found["verdict"] == "none":
                results["skipped"][key] = f"no launch was checked: {found['error']}"
            else:
                right = found["verdict"] == ("REFUTED" if wanted == "error" else "PROVED")
                why = beyond(found["findings"]) if wanted == "clean" and not right else ""
                results["cases"][key] = found | {"label": wanted, "target": target, "right": right, "why": why}
                results["cases"][key]["revision"] = revision()
                print(key, wanted, found["verdict"], found["codes"], "" if right else "WRONG", flush=True)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
    rows = results["cases"].values()
    for name, row in results["cases"].items():
        row["explained"] = EXPLAINED.get(name, "")
        row["why"] = beyond(row["findings"]) if row["label"] == "clean" and not row["right"] else ""
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
    print(f"{sum(row['right'] for row in rows)} of {len(rows)} right, {len(results['skipped'])} not judged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
