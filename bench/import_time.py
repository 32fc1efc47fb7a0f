"""CPU time to start: `import warploom`, the first use of an operation, and `warploom --help`, against NumPy and ml_dtypes.

    python bench/import_time.py [FILE.json]

Each program runs in a process of its own, several times in turn, with bytecode cached; the median of user plus system
time is printed and, with a file name, written as JSON. The bound of the project: `import warploom` at most twice the
time of `import numpy, ml_dtypes`, and `warploom --help` at most 0.1 s more than it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

REPEATS = 9
PROGRAMS = {
    "python": ["-c", "pass"],
    "import numpy, ml_dtypes": ["-c", "import numpy, ml_dtypes"],
    "import warploom": ["-c", "import warploom"],
    "import warploom; warploom.linear": ["-c", "import warploom; warploom.linear"],
    "warploom --help": ["-m", "warploom", "--help"],
}


def cpu_seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """User and system time of one process."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def modules(program: list[str], environment: dict[str, str]) -> int:
    """The modules that a program loads."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", *program], env=environment, capture_output=True, text=True, check=True
    )
    return sum(line.startswith("import time:") for line in run.stderr.splitlines()) - 1


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for arguments in PROGRAMS.values():
            cpu_seconds(arguments, environment)
        times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
        for _ in range(REPEATS):
            for name, arguments in PROGRAMS.items():
                times[name].append(cpu_seconds(arguments, environment))
        loaded = {name: modules(arguments, environment) for name, arguments in PROGRAMS.items()}
    median = {name: statistics.median(each) for name, each in times.items()}
    for name, seconds in median.items():
        print(f"{name:34} {seconds:6.3f} s CPU  {loaded[name]:4} modules")
    base = median["import numpy, ml_dtypes"]
    result = {
        "python": platform.python_version(),
        "cpu": platform.processor() or platform.machine(),
        "repeats": REPEATS,
        "median_cpu_seconds": median,
        "modules": loaded,
        "import_over_numpy": median["import warploom"] / base,
        "help_minus_numpy_seconds": median["warploom --help"] - base,
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
