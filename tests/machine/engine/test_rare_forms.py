"""Forms that the reference executes until they are compiled: equal results, events and choices, and when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.machine.engine.test_engine import BODIES, FAULTS
from tests.machine.engine.test_levels import Events
from tests.machine.simt import threads

from warploom import WarploomError
from warploom.machine.core.schedule import Random, Recorded
from warploom.machine.engine import selection, store
from warploom.machine.translate.records import Table
from warploom.runtime.cache.disk import Cache

pytest.importorskip("llvmlite")

from warploom.machine.engine import native
from warploom.machine.engine.native import Engine
from warploom.machine.routines.granule_kernels import PER_GRANULE, Gather

RNG = np.random.default_rng()
NEVER = 1 << 40


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cache:
    """An empty cache, and no estimate that makes an engine compile a form before it is executed."""
    found = Cache(tmp_path)
    monkeypatch.setattr(store, "_stores", [lambda: found])
    monkeypatch.setattr(native, "_FEW", NEVER)
    monkeypatch.setenv("WARPLOOM_ENGINE", "auto")
    return found


def use(monkeypatch: pytest.MonkeyPatch, seldom: int) -> Engine:
    """Let a new engine execute what comes."""
    engine = Engine(seldom=seldom)
    monkeypatch.setattr(selection, "_made", [engine])
    monkeypatch.setattr(native, "SELDOM", seldom)
    return engine


def compiled(engine: Engine) -> dict[str, bool]:
    """The families of the forms that tables have, and whether all forms of one are compiled."""
    found: dict[str, bool] = {}
    for table in [each for each in engine.callers if isinstance(each, Table)]:
        for number, record in enumerate(table.records):
            word = int(table.words[(table.starts[number] - table.starts[0]) // 8])
            assert word == engine.escape if table.is_stale(number) else word == record.kernel.address or engine.escape
            name = getattr(record.kernel.form, "family", type(record.kernel.form).__name__)
            found[name] = found.get(name, True) and bool(record.kernel.address)
    return found


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", BODIES)
def test_nothing_depends_on_what_is_compiled(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Results, choices and events where the reference executes all rare forms, some of them, or none."""
    source = RNG.integers(0, 1 << 16, 8 * 64, dtype=np.uint32)

    def run(number: str) -> tuple[Any, ...]:
        observer, recorded, body = Events(), Recorded(Random(5)), f"{BODIES[name]} // {number}"
        ways: tuple[dict[str, Any], ...] = (
            {},
            {"schedule": recorded},
            {"schedule": "lazy"},
            {"observers": (observer,)},
        )
        results = [threads(body, block=64, words=2, source=source, grid=8, **options) for options in ways]
        return [each.tolist() for each in results], recorded.choices, recorded.steps, observer.all

    found = []
    for seldom in (NEVER, 3, 1, 0):
        engine = use(monkeypatch, seldom)
        assert threads(f"st.global.u32 [%rd0], %r1; // {name} {seldom}").tolist() == [[0]] * 32
        if seldom != 1:  # an access waits for two executions
            assert all(compiled(engine).values()) == (seldom == 0)
        found.append(run(f"rare {seldom}"))
    monkeypatch.setenv("WARPLOOM_ENGINE", "numpy")
    expected = run("rare reference")
    assert len(expected[-1]) > 64
    assert all(each == expected for each in found)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_rare_form_has_the_message_of_the_reference(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    messages = set()
    for seldom in (NEVER, 0, None):
        if seldom is None:
            monkeypatch.setenv("WARPLOOM_ENGINE", "numpy")
        else:
            use(monkeypatch, seldom)
        with pytest.raises(WarploomError) as caught:
            threads(f"{FAULTS[name]} // {seldom}", block=64)
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.usefixtures("cache")
def test_a_form_is_compiled_when_it_is_executed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = use(monkeypatch, 20)
    body = """mov.u32 %r3, 0; mul.lo.u32 %r5, %r1, 77; AGAIN: add.u32 %r3, %r3, 1; xor.b32 %r5, %r5, %r3;
     setp.lt.u32 %p1, %r3, 50; @%p1 bra AGAIN; popc.b32 %r6, %r5; st.global.v2.u32 [%rd0], {%r5, %r6};"""
    source = RNG.integers(0, 1 << 16, 32, dtype=np.uint32)
    found = threads(body, block=32, words=2, source=source)
    value = (77 * source) ^ np.bitwise_xor.reduce(np.arange(1, 51, dtype=np.uint32))
    assert np.array_equal(found[:, 0], value)
    assert found[:, 1].tolist() == [int(each).bit_count() for each in value]
    known = compiled(engine)
    assert known["xor"]
    assert not known["popc"]
    engine.end()
    assert all(compiled(engine).values())
    (table,) = [each for each in engine.callers if isinstance(each, Table)]
    assert any(table.is_stale(number) for number in range(len(table.records)))
    monkeypatch.setattr(table, "_is_complete", True)  # it gets the addresses when it comes to a record
    assert np.array_equal(threads(body, block=32, words=2, source=source), found)
    assert not any(table.is_stale(number) for number in range(len(table.records)))


@pytest.mark.usefixtures("cache")
def test_a_program_that_runs_again_has_its_forms_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were executed: the second run compiles none for a path that was not taken."""
    engine = use(monkeypatch, NEVER)
    body = """setp.ne.u32 %p1, %r1, 5; @%p1 bra END; popc.b32 %r1, %r1; END: brev.b32 %r5, %r1;
     st.global.u32 [%rd0], %r5; // runs again"""
    expected = [[int(f"{each:032b}"[::-1], 2)] for each in range(7, 39)]
    source = np.arange(7, 39, dtype=np.uint32)
    for run in range(3):
        assert threads(body, source=source).tolist() == expected
        known = compiled(engine)
        assert known["brev"] == (run > 0)
        assert not known["popc"]
    assert threads(body, source=np.full(32, 5, np.uint32)).tolist() == [[1 << 30]] * 32


def test_the_estimate_compiles_the_forms_of_loops_at_once(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    """The cache of an engine that has ended has all forms: the next one compiles none."""
    monkeypatch.setattr(native, "_FEW", 4)
    body = """mov.u32 %r3, 0; brev.b32 %r5, %r1; AGAIN: add.u32 %r3, %r3, 1; xor.b32 %r5, %r5, %r3;
     setp.lt.u32 %p1, %r3, 2; @%p1 bra AGAIN; popc.b32 %r6, %r5; st.global.v2.u32 [%rd0], {%r5, %r6};"""
    first = use(monkeypatch, 1000)
    expected = threads(f"{body} // first", block=32, words=2)
    known = compiled(first)
    assert known["xor"]
    assert not known["popc"]
    assert not known["brev"]
    first.end()
    first._objects.save(everything=True)
    assert cache.usage().entries == 1
    second = use(monkeypatch, 1000)
    monkeypatch.setattr(second, "_compile", lambda *_: pytest.fail("compiled again"))
    assert np.array_equal(threads(f"{body} // second", block=32, words=2), expected)
    assert all(compiled(second).values())


@pytest.mark.parametrize("element", sorted(PER_GRANULE))
def test_transposed_operands_are_the_same_with_quick_and_optimised_code(element: str) -> None:
    granules = RNG.integers(0, 256, (60, 16), dtype=np.uint8)
    places = RNG.permutation(48).astype(np.int64).reshape(16, 3)
    form = Gather(element, transposed=True)
    quick, best = (Engine(often=often).routines.granules.gather(granules, 5, places, form) for often in (NEVER, 0))
    rows = Engine().routines.granules.gather(granules, 5, places, Gather(element, transposed=False))
    assert quick is not None
    assert best is not None
    assert rows is not None
    assert quick.tobytes() == best.tobytes()
    assert quick.T.tobytes() == np.ascontiguousarray(rows).tobytes()


@pytest.mark.usefixtures("cache")
def test_the_forms_of_a_loop_are_compiled_when_a_group_comes_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the whole loop at once, and none of a loop that no group comes to."""
    monkeypatch.setattr(native, "_FEW", 4)
    engine, modules = use(monkeypatch, 1000), list[int]()
    compiles = engine._compile
    monkeypatch.setattr(engine, "_compile", lambda texts, level: (modules.append(len(texts)), compiles(texts, level)))
    body = """mov.u32 %r3, 0; setp.eq.u32 %p2, %r1, 1; @%p2 bra NEVER; AGAIN: add.u32 %r3, %r3, 1;
     setp.gt.u32 %p1, %r3, 5; @%p1 bra SKIP; xor.b32 %r5, %r5, %r3; SKIP: and.b32 %r6, %r5, %r0;
     setp.lt.u32 %p1, %r3, 9; @%p1 bra AGAIN; st.global.v2.u32 [%rd0], {%r5, %r6}; ret;
     NEVER: popc.b32 %r5, %r5; brev.b32 %r5, %r5; setp.ne.u32 %p1, %r5, 77; @%p1 bra NEVER; // a loop"""
    body = f"mov.u32 %r5, %r0; {body}"
    lanes = np.arange(32)
    found = threads(body, block=32, words=2, source=np.zeros(32, np.uint32))
    value = lanes ^ np.bitwise_xor.reduce(np.arange(1, 6))
    assert found.tolist() == [[each, each & lane] for each, lane in zip(value.tolist(), lanes.tolist(), strict=True)]
    known = compiled(engine)
    assert known["xor"]
    assert known["and"]
    assert not known["popc"]
    assert not known["brev"]
    assert sum(count > 1 for count in modules) <= 2  # what every kernel has, and the loop
