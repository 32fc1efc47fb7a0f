"""The README's two commands as on other computers: BLAS kernels of other CPUs, and NumPy without its vector code.

    python bench/hosts.py [--host WORD …] [--whole] [--again] [-- PYTEST OPTIONS …]
    python bench/hosts.py --under 'qemu-aarch64-static -L ROOT ROOT/usr/bin/python3.11' --wheels DIR

For each setting that this CPU can execute, `warploom demo` runs; with `--whole` also the README's test command, with
this Python; with options of pytest (`-- -n 2 tests/machine/numerics`) some tests. All settings get the same random
inputs. `--whole` writes a row for each setting to bench/results/hosts.json, other runs to build/bench. A row counts the
tests by outcome and names those that failed; the digests of the demo's text and of all outcomes must be the same in
every setting. Started again, the script leaves out settings in which everything succeeded with the same files, unless
`--again` is given. The exit status is 1 if a command fails or a digest differs.

`--under` takes the Python of another processor, for example one of an unpacked Debian for arm64, with unpacked wheels of
NumPy, ml_dtypes and llvmlite for it, and compares the stored digests of tests/machine/data with those of both engines
there. It writes bench/results/other_processors.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

from revision import revision
from tables import HURRIED, RESULTS, ROOT, Row, Table

sys.path.insert(0, str(ROOT))

from tests.machine.numerics.test_host_independence import hosts

PLAIN = "as it is"
_TIMES = re.compile(r" *\b[\d,]+(?:\.\d+)?(?: ?(?:s|ms|µs|seconds)\b|(?= +right))")
"""Times, and the column of milliseconds in the demo's table."""
_WIDTHS = re.compile(r"[\s\u2500-\u257f]+")
"""Blanks, rules and line ends, which depend on the width of the times."""
_OWN = "tests.machine.numerics.test_host_independence"
"""Its cases are the settings that NumPy reports, so they are not the same in every setting."""
_PERCENT = re.compile(r"\[ *(\d+)%\]")


def test_command() -> list[str]:
    """The README's test command without its installation, for this Python."""
    found = re.search(r"<!-- test command -->\n```sh\n(.*)\n", (ROOT / "README.md").read_text("utf-8"))
    assert found, "README.md has no test command"
    return [sys.executable, *shlex.split(found[1].rpartition("&&")[2])[1:]]


def state() -> str:
    """A digest of the files that the commands execute."""
    found = hashlib.sha256()
    for folder in ("src", "tests", "examples", "docs"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                found.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:12]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run(name: str, setting: dict[str, str], command: list[str]) -> tuple[int, str, float]:
    """Exit status, output and CPU seconds of a command in a setting; progress goes to the terminal."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | setting
    before, text, began = sum(os.times()[2:4]), "", time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            text += line
            if percent := _PERCENT.search(line):
                print(
                    f"{name}: {percent[1]} % in {time.monotonic() - began:.0f} s", end="\r", file=sys.stderr, flush=True
                )
    return process.returncode, text, sum(os.times()[2:4]) - before


def demo(name: str, setting: dict[str, str]) -> Row:
    status, text, seconds = run(name, setting, [sys.executable, "-m", "warploom", "demo"])
    return {
        "status": status,
        "digest": digest(_WIDTHS.sub(" ", _TIMES.sub("", text))),
        "cpu_seconds": round(seconds, 1),
    }


def tests(name: str, setting: dict[str, str], command: list[str]) -> Row:
    """Run the tests: how many ended how, the names of those that failed, and a digest of all outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        status, text, seconds = run(name, setting, [*command, "--junitxml", str(report)])
        outcomes = read_outcomes(report) if report.exists() else {}
    own = [f"{test} {outcome}" for test, outcome in sorted(outcomes.items()) if not test.startswith(_OWN)]
    failures = [test for test, outcome in outcomes.items() if outcome in ("failure", "error")]
    row = {"status": status, **Counter(outcomes.values()), "digest": digest("\n".join(own)), "failures": failures}
    row |= {"output": text[-4000:]} if status else {}
    return {**row, "cpu_seconds": round(seconds, 1)}


def read_outcomes(report: Path) -> dict[str, str]:
    """`passed`, `skipped`, `failure` or `error` of each test in a JUnit report."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        ends = [each.tag for each in case if each.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}::{case.get('name')}"] = ends[0] if ends else "passed"
    return found


def line_of(row: Row) -> str:
    parts = [f"{row['host']:18}"]
    for name in ("demo", "tests"):
        if each := row.get(name):
            counts = "".join(
                f" {each[kind]} {kind}," for kind in ("passed", "skipped", "failure", "error") if kind in each
            )
            parts.append(
                f"{name}: status {each['status']},{counts} digest {each['digest']}, {each['cpu_seconds']} CPU s"
            )
    return "  ".join(parts) if len(parts) > 1 else f"{parts[0]}{row.get('error')}"


def is_right(row: Row, plain: Row) -> bool:
    """Both commands succeeded, with the demo's text and the outcomes of the plain setting."""
    return all(
        name in row and row[name]["status"] == 0 and row[name]["digest"] == plain.get(name, {}).get("digest")
        for name in ("demo", "tests")
        if name in plain
    )


def under(python: list[str], wheels: str) -> int:
    """Compare the stored digests with those that another Python computes; return the number of those that differ."""
    about = "import json, platform as p; print(json.dumps([p.machine(), p.python_version()]))"
    path = {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT), wheels))}
    _, text, _ = run("about", path, [*python, "-c", about])
    machine, version = json.loads(text)
    file, wrong = RESULTS / "other_processors.json", 0
    rows = json.loads(file.read_text("utf-8"))["rows"] if file.exists() else []
    rows = [row for row in rows if row["processor"] != machine]
    for engine in ("numpy", "native"):
        for name in ("host_numerics", "host_families"):
            script = ROOT / "tests" / "machine" / "numerics" / f"{name}.py"
            status, text, seconds = run(engine, {**path, "WARPLOOM_ENGINE": engine}, [*python, str(script)])
            stored = json.loads((ROOT / "tests" / "machine" / "data" / f"{name}.json").read_text("utf-8"))
            found = json.loads(text[text.index("{") :]) if status == 0 else {}
            differing = [key for key in stored if found.get(key) != stored[key]]
            wrong += len(differing)
            row = {"processor": machine, "python": version, "engine": engine, "digests": name, "count": len(stored)}
            rows.append({**row, "differing": differing, "cpu_seconds": round(seconds, 1)})
            print(rows[-1], flush=True)
            file.write_text(json.dumps({"revision": revision(), "rows": rows}, indent=1) + "\n", "utf-8")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", nargs="+", default=[""], metavar="WORD", help="settings that contain one of these")
    parser.add_argument("--whole", action="store_true", help="run the README's test command in every setting")
    parser.add_argument("--again", action="store_true", help="run settings that have a row, too")
    parser.add_argument("--under", help="the command of another processor's Python: compare the stored digests there")
    parser.add_argument("--wheels", default="", metavar="DIR", help="the packages of that Python")
    parser.add_argument("options", nargs="*", help="options of pytest")
    options = parser.parse_args()
    if options.under:
        return int(bool(under(shlex.split(options.under), options.wheels)))
    is_kept = options.whole and not options.options
    folder, now, known = RESULTS if is_kept else HURRIED, state(), {}
    if (folder / "hosts.json").exists():
        known = json.loads((folder / "hosts.json").read_text("utf-8"))
    seed = known["seed"] if known.get("state") == now else secrets.randbits(32)
    command = [*test_command(), *options.options] if options.whole or options.options else []
    about = {"state": now, "seed": seed, "python": platform.python_version(), "cpu": platform.machine()}
    about["tests"] = shlex.join(["python", *command[1:]]) if command else ""
    if options.again or any(known.get(name) != about[name] for name in ("state", "tests")):
        (folder / "hosts.json").unlink(missing_ok=True)
    table = Table("hosts", about, line_of, folder=folder, limit=6 * 3600, adds=True)
    done = {row["host"]: row for row in table.rows}
    chosen = [name for name in hosts() if name == PLAIN or any(word in name for word in options.host)]
    for name in chosen:
        setting = hosts()[name]

        def measured(name: str = name, setting: dict[str, str] = setting) -> Row:
            found = {"setting": setting, "demo": demo(name, setting)}
            return found | ({"tests": tests(name, setting, [*command, "--seed", str(seed)])} if command else {})

        if name in done and is_right(done[name], done[name]):
            print(f"{line_of(done[name])}  (already there)")
        else:
            done[name] = table.measure({"host": name}, measured)
    return int(not all(is_right(done[name], done[PLAIN]) for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
