"""Native kernels against the functions on arrays, form by form: two lowerings of the same semantics."""

from __future__ import annotations

import itertools
import platform

import numpy as np
import pytest
from tests.machine.engine.every_form import Case, cases, results

from warploom.machine.engine import store
from warploom.machine.semantics.forms import FAMILIES

pytest.importorskip("llvmlite")

from warploom.machine.engine.native import Engine

_PER_FAMILY = 4
_LANES = 1024


@pytest.fixture(scope="module", params=("quick", "optimised"))
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(often=0) if request.param == "optimised" else Engine()


def _sample(random: np.random.Generator) -> list[Case]:
    """Some forms of each family, others in each run; bench/engine_forms.py compares all of them."""
    found = []
    for _, group in itertools.groupby(sorted(cases(), key=str), key=lambda case: case.family):
        some = list(group)
        chosen = random.choice(len(some), min(len(some), _PER_FAMILY), replace=False)
        found += [some[at] for at in chosen]
    return found


def test_native_results_are_the_references(engine: Engine) -> None:
    random = np.random.default_rng()
    wrong, native, families = [], 0, set()
    for case in _sample(random):
        found = results(engine, case, _LANES, random)
        native += found.native is not None
        families.add(case.family)
        if difference := found.differences():
            wrong.append(f"{case}: {difference}")
    assert wrong == []
    assert native > 100
    assert families >= FAMILIES - {"mov", "mov.pack", "mov.unpack"}


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="levels of x86-64")
@pytest.mark.parametrize(("processor", "features"), [("x86-64", ""), ("haswell", "+sse4.1,+avx2,+fma")])
def test_kernels_for_lesser_processors(monkeypatch: pytest.MonkeyPatch, processor: str, features: str) -> None:
    """The results do not depend on the width of vectors, nor on a fused multiply-add in hardware."""
    monkeypatch.setattr(store, "_stores", [])
    lesser, random = Engine(processor, features), np.random.default_rng()
    forms = [case for case in cases() if case.family in ("add", "mul", "fma", "ex2", "cvt", "rem", "min", "div")]
    fused = Case("fma", (("rnd", "rn"), ("type", "f32")), ("f32", "f32", "f32"), "f32")
    for case in (fused, *(forms[at] for at in random.choice(len(forms), 25, replace=False))):
        assert results(lesser, case, _LANES, random).differences() == "", case


def test_a_difference_is_found(engine: Engine) -> None:
    """The comparison reports a kernel of another rounding."""
    random = np.random.default_rng(1)
    case = Case("add", (("rnd", "rz"), ("type", "f32")), ("f32", "f32"), "f32")
    found = results(engine, case, _LANES, random)
    assert found.differences() == ""
    nearest = Case("add", (("rnd", "rn"), ("type", "f32")), ("f32", "f32"), "f32")
    found.expected = results(engine, nearest, _LANES, np.random.default_rng(1)).expected
    assert found.differences()
