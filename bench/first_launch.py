"""Cost of the first launch of a kernel in a process: the Triton kernels of the corpus, against another checkout.

A fresh process launches each kernel once. The first process of a checkout has an *empty* cache on disk; the second finds
compiled native code there, but has *new* texts, with another comment; those after it find everything (*warm*). A row
has the CPU time of a launch; the import of the package is a row of its own, and so is the end of the process, when the
cache is written. Sides alternate, and a row is the best of N processes. Every result is compared with the reference of
its case. Python finds bytecode of all modules, as in a package that pip has installed.

With --alone each kernel has a process of its own, with an empty cache or a warm one, and a row has the CPU time of its
import, launch and end, and of the whole process with the start of Python.

    python bench/first_launch.py [--baseline DIR] [--engine numpy] [--kernels WORD …] [--alone] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import atexit
import json
import math
import os
import pickle
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

HERE = Path(__file__).resolve().parent


def argument(spec: tuple[str, Any], arrays: dict[str, Any]) -> Any:
    """An argument of a launch from its description."""
    import warploom

    kind, value = spec
    if kind == "map":
        buffer, box, swizzle = value
        return warploom.TensorMap(arrays[buffer], box=box, swizzle=swizzle)
    return arrays[value] if kind == "array" else value


def child(folder: Path, comment: str) -> None:
    """Launch the cases of a folder once each; print the CPU time of the import, of each launch and of the end."""
    import ml_dtypes  # noqa: F401  (registers the dtypes of the arrays)

    found: dict[str, Any] = {}
    ended = [0.0]

    @atexit.register  # registered before the package is imported, it runs after the package's functions
    def report() -> None:
        print(json.dumps({**found, "end": time.process_time() - ended[0]}))

    cases = {file.stem: pickle.loads(file.read_bytes()) for file in sorted(folder.glob("*.case"))}
    start = time.process_time()
    import warploom
    from warploom import TensorMap, launch  # noqa: F401  (imported at first use)

    found["import"] = time.process_time() - start
    for name, case in cases.items():
        arrays = case["arrays"]
        start = time.process_time()
        text = f"{case['ptx']}\n// {comment}\n"
        try:
            warploom.launch(text, args=[argument(each, arrays) for each in case["args"]], **case["options"])
        except Exception as error:  # noqa: BLE001  (an older checkout may not execute it)
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        found[name] = time.process_time() - start
        (folder / f"{name}.out").write_bytes(pickle.dumps(arrays))
    ended[0] = time.process_time()


def described(value: Any) -> tuple[str, Any]:
    """The description of an argument that a process without the corpus can read."""
    from tests.corpus.case import Map

    if isinstance(value, Map):
        return "map", (value.buffer, value.box, value.swizzle)
    return ("array", value) if isinstance(value, str) else ("value", value)


def write_case(case: Any, file: Path) -> Any:
    """Compile a case of the corpus and write its launch; return it."""
    prepared = case.prepare()
    compiled = prepared.compiled
    options = {
        "entry": compiled.entry,
        "grid": prepared.grid,
        "block": compiled.block,
        "cluster": compiled.cluster,
        "shared_bytes": compiled.shared_bytes,
    }
    args = [described(each) for each in prepared.args]
    file.write_bytes(pickle.dumps({"ptx": compiled.ptx, "args": args, "arrays": prepared.arrays, "options": options}))
    return prepared


def run(root: Path, cache: Path, folder: Path, comment: str) -> dict[str, Any]:
    """Launch the cases of a folder in a process of its own, with the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "WARPLOOM_CACHE_DIR": str(cache)}
    environment["XDG_CACHE_HOME"] = str(cache)
    environment["PYTHONPYCACHEPREFIX"] = str(folder.parent / "bytecode")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(HERE / "first_launch.py"), "--child", str(folder), comment]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(done.stdout), "process": spent}


def check(case: Any, prepared: Any, launches: Path) -> None:
    """Compare the outputs of a launch with the reference of its case, if it ended without an error."""
    out = launches / f"{case.name}.out"
    if out.exists():
        case.check(prepared.arrays, pickle.loads(out.read_bytes()))
        out.unlink()


def measure_alone(cases: list[Any], sides: dict[str, Path], folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Processes that launch one kernel, with an empty cache and with a warm one."""
    rows = []
    for case in cases:
        launches = folder / "cases"
        launches.mkdir()
        prepared = write_case(case, launches / f"{case.name}.case")
        row: dict[str, Any] = {"row": case.name}
        for state in ("bytecode", *["empty"] * repeats, *["warm"] * repeats):
            for side, root in sides.items():
                if state != "warm":
                    shutil.rmtree(folder / side, ignore_errors=True)
                found = run(root, folder / side, launches, "a")
                check(case, prepared, launches)
                if state == "bytecode":  # Python has written it
                    continue
                for name, value in found.items():
                    key = f"{side}_{state}_{'launch' if name == case.name else name}_ms"
                    row[key] = value if isinstance(value, str) else round(min(row.get(key, math.inf), 1e3 * value), 2)
        rows.append(row)
        shutil.rmtree(launches)
    return rows


def measure(cases: list[Any], sides: dict[str, Path], folder: Path, repeats: int) -> list[dict[str, Any]]:
    """The launches of the cases in all states of the cache, on every side in turn."""
    launches = folder / "cases"
    launches.mkdir()
    prepared = {case.name: write_case(case, launches / f"{case.name}.case") for case in cases}
    rows: dict[str, dict[str, Any]] = {name: {"row": name} for name in ("import", *prepared, "end", "process")}
    for side, root in sides.items():
        run(root, folder / side, launches, "")  # Python writes its bytecode
    for state in (*["empty", "new"] * repeats, *["warm"] * repeats):
        for side, root in sides.items():
            if state == "empty":
                shutil.rmtree(folder / side, ignore_errors=True)
            for name, value in run(root, folder / side, launches, "a" if state == "empty" else "b").items():
                row = rows[name]
                if isinstance(value, str):
                    row[f"{side}_error"] = value
                    continue
                key = f"{side}_{state}_ms"
                row[key] = round(min(row.get(key, math.inf), 1e3 * value), 2)
            for case in cases:
                check(case, prepared[case.name], launches)
    return list(rows.values())


def ratio(row: dict[str, Any], key: str) -> float | None:
    """The time of the baseline divided by ours."""
    baseline, here = row.get(f"baseline_{key}"), row.get(f"here_{key}")
    return baseline / here if baseline and here else None


def summary(rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """The ratio of the sums (with the import and the end), the geometric mean of the ratios, and the lowest with its kernel."""
    timed = [row for row in rows if row["row"] != "process" and ratio(row, key)]
    found = [(value, row["row"]) for row in timed if row["row"] not in ("import", "end") and (value := ratio(row, key))]
    if not found:
        return {}
    total = [sum(row[f"{side}_{key}"] for row in timed) for side in ("baseline", "here")]
    mean = math.exp(sum(math.log(value) for value, _ in found) / len(found))
    lowest = min(found)
    return {
        "kernels": len(found),
        "sums_ms": [round(each, 1) for each in total],
        "of_sums": round(total[0] / total[1], 3),
        "mean": round(mean, 3),
        "lowest": round(lowest[0], 3),
        "lowest_kernel": lowest[1],
        "slower": sum(value < 1 for value, _ in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="another checkout of this repository")
    parser.add_argument("--engine", choices=("auto", "native", "numpy"), default="auto", help="WARPLOOM_ENGINE")
    parser.add_argument("--kernels", nargs="*", default=[""], metavar="WORD", help="kernels that contain one of these")
    parser.add_argument("--alone", action="store_true", help="a process for each kernel")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Path(options.child[0]), options.child[1])
        return
    sys.path.insert(0, str(HERE.parent))
    sys.path.insert(0, str(HERE))
    from revision import revision
    from tests.corpus.case import Pointers
    from tests.corpus.cases import CASES

    os.environ["WARPLOOM_ENGINE"] = options.engine
    sides = {"baseline": options.baseline.resolve()} if options.baseline else {}
    sides["here"] = HERE.parent
    named = [case for case in CASES if case.language == "triton" and any(word in case.name for word in options.kernels)]
    chosen = [case for case in named if not any(isinstance(each, Pointers) for each in case.args)]
    with tempfile.TemporaryDirectory() as name:
        rows = (measure_alone if options.alone else measure)(chosen, sides, Path(name), options.repeats)
    for row in rows:
        value = ratio(row, "warm_process_ms" if options.alone else "warm_ms")
        shown = "  ".join(f"{key[:-3]} {row[key]}" for key in row if key.endswith("_ms"))
        print(f"{row['row']:44} {'' if value is None else format(value, '6.2f')}  {shown}")
    states = ("empty", "new", "warm")
    if options.alone:
        states = ("empty_launch", "empty_process", "warm_launch", "warm_process")
    found = {key: summary(rows, f"{key}_ms") for key in states}
    print(json.dumps(found, indent=1))
    if options.json:
        data = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "engine": options.engine,
            "revision": revision(),
            "unit": "milliseconds of CPU time in a fresh process, best of the processes of each state",
            "repeats": options.repeats,
            "summary": found,
            "rows": rows,
        }
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
