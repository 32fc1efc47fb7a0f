"""The same bits on every host: results do not depend on BLAS, thread count or vector unit."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warploom
from warploom.machine.numerics.products import SIZES, Factor, product
from warploom.machine.tensor.elements import ELEMENTS

HERE = Path(__file__).parent
MACHINE = Path(warploom.__file__).parent / "machine"
DATA = HERE.parent / "data"
"""`host_numerics.json` and `host_families.json` are what the scripts of that name in this directory print."""
FEW_HOSTS = frozenset({"as it is", "Sandybridge", "Haswell", "SkylakeX", "no vector units"})
"""The hosts on which all kernel families run."""


def hosts() -> dict[str, dict[str, str]]:
    """Environments in which NumPy and OpenBLAS act as on other computers, as far as this CPU can execute them."""
    found: dict[str, dict[str, str]] = {"as it is": {}}
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return found
    core = np._core._multiarray_umath
    has = core.__cpu_features__
    kernels = {"Prescott": "SSE3", "Nehalem": "SSE42", "Sandybridge": "AVX", "Haswell": "AVX2", "Zen": "AVX2"}
    kernels |= {"SkylakeX": "AVX512_SKX"}
    for number, (name, feature) in enumerate(kernels.items()):
        if has.get(feature):
            found[name] = {"OPENBLAS_CORETYPE": name, "OPENBLAS_NUM_THREADS": str(1 + number % 2)}
    dispatched = [name for name in core.__cpu_dispatch__ if has.get(name)]
    if dispatched:
        found["no vector units"] = {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched)}
        found["few vector units"] = {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched[1:])}
    return {name: given for name, given in found.items() if given.get("NPY_DISABLE_CPU_FEATURES") != ""}


def printed(host: str, script: str) -> dict[str, str]:
    """Run a script in a process with the environment of a host; return the digests that it prints."""
    drop = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NPY_DISABLE_CPU_FEATURES")
    environment = {name: value for name, value in os.environ.items() if name not in drop} | hosts()[host]
    environment["PYTHONPATH"] = os.pathsep.join([str(MACHINE.parent.parent), environment.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("host", "script"),
    [(host, "host_numerics") for host in hosts()] + [(host, "host_families") for host in hosts() if host in FEW_HOSTS],
)
def test_digests_are_the_same_on_every_host(host: str, script: str) -> None:
    found, expected = printed(host, f"{script}.py"), json.loads((DATA / f"{script}.json").read_text())
    assert {name for name in expected if found.get(name) != expected[name]} == set()
    assert found.keys() == expected.keys()


def test_digests_are_of_all_families() -> None:
    """Every operation of the library is among the families, on every target that has it."""
    calls = (MACHINE.parent / "ops" / "__init__.py").read_text()
    source = (HERE / "host_families.py").read_text()
    operations = set(
        re.findall(r"^    \"(\w+(?:matmul|linear|conv2d)|conv2d|matmul|quantise_\w+)\",$", calls, re.MULTILINE)
    )
    assert len(operations) >= 12
    assert {name for name in operations if f"wl.{name}(" not in source} == set()


@pytest.mark.parametrize("element", SIZES)
def test_sizes_of_small_types(element: str) -> None:
    kind = ELEMENTS.get(f"{element}_byte", ELEMENTS[element])
    values = np.asarray(kind.decode(np.arange(256, dtype=np.uint8)), np.float32)
    ratios = [float(value).as_integer_ratio() for value in values[np.isfinite(values)]]
    units = max(denominator for _, denominator in ratios)
    assert max(abs(numerator) * units // denominator for numerator, denominator in ratios) == SIZES[element]


@pytest.mark.parametrize(("fraction", "spread"), [(7, 0), (7, 5), (10, 12), (10, 60), (23, 40)])
@pytest.mark.parametrize("order", ["C", "F"])
@np.errstate(over="ignore")
def test_dot_products_are_summed_in_ascending_order(fraction: int, spread: int, order: str) -> None:
    rng = np.random.default_rng()
    k, steps = int(rng.choice([8, 16, 32])), 3

    def matrix(rows: int) -> np.ndarray:
        significands = rng.integers(1 << fraction, 2 << fraction, (rows, k * steps)) * rng.choice([-1, 1, 0], (rows, 1))
        values = np.ldexp(significands.astype(np.float64), rng.integers(-spread, spread + 1, (rows, k * steps)))
        return np.asarray(values.astype(np.float32), order=order)

    a, b = matrix(int(rng.integers(1, 150))), matrix(int(rng.integers(1, 150)))
    left, right = Factor(a, k), Factor(b, k)
    for step in range(steps):
        total = np.zeros((len(a), len(b)))
        for at in range(step * k, step * k + k):
            total = total + a[:, at, None].astype(np.float64) * b[None, :, at].astype(np.float64)
        found = product(left, right, step, step)
        assert (found.view(np.uint32) == total.astype(np.float32).view(np.uint32)).all()


AUDITED = {"numerics/products.py", "numerics/transcendental.py"}
"""Modules that are audited by hand."""
PRODUCTS = frozenset({"matmul", "dot", "vdot", "inner", "einsum", "tensordot", "vecdot", "matvec", "vecmat", "linalg"})
PRODUCTS |= {"convolve", "correlate", "trapezoid", "interp", "polyval", "polyfit", "fft"}
FUNCTIONS = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "logaddexp",
        "logaddexp2",
        "sin",
        "cos",
        "tan",
        "arcsin",
        "arccos",
        "arctan",
        "arctan2",
        "sinh",
        "cosh",
        "tanh",
        "arcsinh",
        "arccosh",
        "arctanh",
        "asin",
        "acos",
        "atan",
        "atan2",
        "asinh",
        "acosh",
        "atanh",
        "sinc",
        "hypot",
        "power",
        "pow",
        "float_power",
        "cbrt",
        "reciprocal",
        "i0",
        "angle",
        "fsum",
        "gamma",
        "lgamma",
        "erf",
        "erfc",
        "random",
    ]
)
REDUCTIONS = frozenset(
    [
        "sum",
        "mean",
        "average",
        "prod",
        "cumsum",
        "cumprod",
        "nansum",
        "nanmean",
        "nanprod",
        "var",
        "std",
        "trace",
        "median",
    ]
)
INTEGERS = {"I32", "I64", "U32", "U64", "int32", "int64", "intp", "uint32", "uint64"}


def host_dependent(source: str) -> list[str]:
    """List the uses of functions whose results depend on the host, as `line: name`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        name = ""
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult):
            name = "@"
        elif isinstance(node, ast.Attribute):
            whose = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in PRODUCTS - {"inner", "interp"} or (
                whose in ("np", "numpy", "math", "cmath") and node.attr in FUNCTIONS | PRODUCTS
            ):
                name = node.attr
            elif node.attr in ("reduce", "reduceat") and ast.unparse(node.value) in ("np.add", "np.multiply"):
                name = ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REDUCTIONS:
            given = next((ast.unparse(word.value) for word in node.keywords if word.arg == "dtype"), "")
            if ast.unparse(node.func) != "math.prod" and given.removeprefix("np.") not in INTEGERS:
                name = f"{node.func.attr} without an integer dtype="
        elif isinstance(node, ast.ImportFrom) and node.module in ("numpy", "math", "cmath", "numpy.linalg"):
            name = ", ".join(sorted({one.name for one in node.names} & (FUNCTIONS | PRODUCTS | REDUCTIONS) - {"prod"}))
        if name:
            found.append(f"{node.lineno}: {name}")
    return found


@pytest.mark.parametrize("path", sorted(MACHINE.rglob("*.py")), ids=lambda path: path.relative_to(MACHINE).as_posix())
def test_only_audited_modules_call_host_dependent_functions(path: Path) -> None:
    if path.relative_to(MACHINE).as_posix() not in AUDITED:
        assert host_dependent(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "a @ b",
        "a @= b",
        "np.matmul(a, b)",
        "a.dot(b)",
        "np.einsum('ij->i', a)",
        "np.linalg.norm(a)",
        "a.sum()",
        "np.sum(a)",
        "a.mean(axis=1)",
        "a.sum(axis=1, dtype=np.float64)",
        "np.exp2(a)",
        "f = np.tanh",
        "math.exp(1.0)",
        "np.power(a, b)",
        "from numpy import exp2, sqrt",
        "from math import sin",
        "np.add.reduce(a)",
        "np.cumsum(a)",
        "x = {'ex2': np.exp2}",
    ],
)
def test_host_dependent_calls_are_found(line: str) -> None:
    assert host_dependent(line)


@pytest.mark.parametrize(
    "line", ["a.sum(dtype=np.int64)", "math.prod(shape)", "np.sqrt(a)", "np.maximum.reduce(a)", "np.add.accumulate(a)"]
)
def test_host_independent_calls_are_not_found(line: str) -> None:
    assert not host_dependent(line)


def test_audited_modules_exist() -> None:
    assert all((MACHINE / name).is_file() for name in AUDITED)
