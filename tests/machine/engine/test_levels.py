"""Quick and optimised code: equal results, and when kernels are optimised."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.machine.engine.test_engine import BODIES
from tests.machine.simt import threads

from warploom.machine.core import texts
from warploom.machine.engine import selection, store
from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.objects import OPTIMISED, QUICK, Objects
from warploom.machine.routines.call_lists import Sequence, base_of
from warploom.machine.routines.product_kernels import Multiply
from warploom.machine.translate import translator
from warploom.machine.translate.records import Table
from warploom.runtime.cache.disk import Cache

pytest.importorskip("llvmlite")

from warploom.machine.engine.native import Engine

RNG = np.random.default_rng()
NEVER = 1 << 62


class Events:
    """The events of a run, as text."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def on_events(self, batch: Any) -> None:
        self.all += [repr(event) for event in batch.events()]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cache:
    """An empty cache; executions are counted after every turn."""
    found = Cache(tmp_path)
    monkeypatch.setattr(store, "_stores", [lambda: found])
    monkeypatch.setattr(texts, "_COUNT_AFTER", 1)
    monkeypatch.setattr(translator, "_COUNTED_TOGETHER", 1)
    monkeypatch.setenv("WARPLOOM_ENGINE", "native")
    return found


def use(monkeypatch: pytest.MonkeyPatch, often: int) -> Engine:
    """Let a new engine execute what comes."""
    engine = Engine(often=often)
    monkeypatch.setattr(selection, "_made", [engine])
    return engine


def levels(engine: Engine) -> set[int]:
    """The levels of the kernels that tables call; they call them where they are."""
    found = set()
    for table in [each for each in engine.callers if isinstance(each, Table)]:
        at = [(start - table.starts[0]) // 8 for start in table.starts[:-1]]
        assert table.words[at].tolist() == [record.kernel.address for record in table.records]
        found |= {record.kernel.level for record in table.records}
    return found


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", BODIES)
def test_nothing_depends_on_the_level(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Results, counts and events with code of either level, with kernels that are optimised during the run, and with an
    empty cache or a full one."""
    source = RNG.integers(0, 1 << 16, 8 * 64, dtype=np.uint32)

    def run(number: int) -> tuple[list[Any], list[str]]:
        """Results and events; with another comment, because a text keeps the table that was made for it."""
        observer, body = Events(), f"{BODIES[name]} // {number}"
        ways: tuple[dict[str, Any], ...] = ({}, {"schedule": "random", "seed": 5}, {"observers": (observer,)})
        results = [threads(body, block=64, words=2, source=source, grid=8, **options) for options in ways]
        return [each.tolist() for each in results], observer.all

    found = []
    for number, often in enumerate((NEVER, NEVER, 100, 0)):
        engine = use(monkeypatch, often)
        found.append(run(number))
        assert levels(engine) in {NEVER: ({QUICK},), 0: ({OPTIMISED},)}.get(often, ({OPTIMISED}, {QUICK, OPTIMISED}))
    monkeypatch.setenv("WARPLOOM_ENGINE", "numpy")
    expected = run(9)
    assert len(expected[1]) > 64
    assert all(each == expected for each in found)


@pytest.mark.usefixtures("cache")
def test_a_long_run_optimises_its_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = use(monkeypatch, 2000)
    body = """mov.u32 %r3, 0; mul.lo.u32 %r5, %r1, 77; AGAIN: add.u32 %r3, %r3, 1; xor.b32 %r5, %r5, %r3;
     setp.lt.u32 %p1, %r3, 3000; @%p1 bra AGAIN; popc.b32 %r6, %r5; st.global.v2.u32 [%rd0], {%r5, %r6};"""
    source = RNG.integers(0, 1 << 16, 32, dtype=np.uint32)
    found = threads(body, block=32, words=2, source=source)
    value = (77 * source) ^ np.bitwise_xor.reduce(np.arange(1, 3001, dtype=np.uint32))
    assert np.array_equal(found[:, 0], value)
    by_family = {
        getattr(record.kernel.form, "family", ""): record.kernel.level
        for table in engine.callers
        if isinstance(table, Table)
        for record in table.records
    }
    assert by_family["xor"] == OPTIMISED
    assert by_family["popc"] == QUICK


def test_executions_are_remembered(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    """Processes that each execute a little optimise the code when one ends, for later ones."""
    seen = []
    for number in range(12):
        engine = use(monkeypatch, 150)
        threads(f"{BODIES['guards']} // remembered {number}", block=32, words=2, grid=8)
        seen.append(levels(engine))
        engine.end()
        engine._objects.save(everything=True)
    assert seen[0] == {QUICK}
    assert OPTIMISED in seen[-1]
    assert cache.usage().entries == 1


@pytest.mark.usefixtures("cache")
def test_routines_are_optimised() -> None:
    """A list of calls, in which a routine may be several times, calls the optimised code from then on."""
    per_call = 64 * 8 * 16 // Multiply().per_execution
    engine = Engine(often=4 * per_call)
    a, b, d = RNG.integers(-9, 9, (64, 16)).astype(float), RNG.integers(-9, 9, (16, 8)).astype(float), np.zeros((64, 8))
    words, sequence = d.astype(np.float32).view(np.uint32), Sequence(1)
    for _ in range(2):
        engine.routines.products.multiply(
            sequence,
            (address_of(a), 16),
            (address_of(b), 8),
            (64, 8, 16, 1),
            ((0, 1), 8),
            accumulate=True,
            negative=False,
        )
    sequence.needs(1, words.nbytes)
    prepared, seen = sequence.prepared(), []
    for count in range(1, 4):
        assert engine.routines.calls.run(prepared, base_of(words))
        assert np.array_equal(words.view(np.float32), 2 * count * (a @ b))
        seen.append({each.level for each in prepared.routines})
        assert prepared.entries[:, 0].tolist() == [each.address for each in prepared.routines]
    assert seen == [{QUICK}, {OPTIMISED}, {OPTIMISED}]
    assert sum(prepared.executions.values()) == 2 * per_call > 0


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("columns", "calls"), [(8, 32), (64, 4), (128, 2)])
def test_a_long_call_counts_more_than_a_short_one(columns: int, calls: int) -> None:
    """The optimised code comes after as many products, in calls of any length."""
    engine = Engine(often=(64 * 256 * 16) // Multiply().per_execution)
    a, b = RNG.integers(-9, 9, (64, 16)).astype(float), RNG.integers(-9, 9, (16, columns)).astype(float)
    for count in range(1, calls + 1):
        d = np.zeros((64, columns), np.float32)
        engine.routines.products.add(a, b, 1, d.view(np.uint32), accumulate=False)
        assert np.array_equal(d, a @ b)
        assert (engine.routine(Multiply()).level == OPTIMISED) == (count == calls)


def test_optimised_code_of_another_process_stays(cache: Cache) -> None:
    one, other = Objects("version", 10), Objects("version", 10)
    assert one.get("a") is None
    assert other.get("a") is None
    one.add({"a": (), "b": ("table",)}, OPTIMISED, b"good")
    one.save(everything=True)
    other.add({"a": (), "c": ()}, QUICK, b"quick")
    other.save(everything=True)
    later = Objects("version", 10)
    for name, level, content, tables in (
        ("a", OPTIMISED, b"good", ()),
        ("b", OPTIMISED, b"good", ("table",)),
        ("c", QUICK, b"quick", ()),
    ):
        code = later.get(name)
        assert code is not None
        assert (code.level, later.file(code.object).content, code.tables) == (level, content, tables)
    assert cache.usage().entries == 1


def test_a_little_code_is_saved_at_the_end(cache: Cache) -> None:
    objects = Objects("version", 10)
    objects.get("a")
    objects.add({"a": ()}, QUICK, bytes(1_000_000))
    objects.save()
    assert Objects("version", 10).get("a") is not None
    objects.add({"b": ()}, QUICK, bytes(200_000))
    objects.save()
    assert Objects("version", 10).get("b") is None
    objects.save(everything=True)
    assert Objects("version", 10).get("b") is not None
    assert cache.usage().entries == 1


@pytest.mark.usefixtures("cache")
def test_threads_that_launch_at_once_share_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM lets other threads run while it compiles what they need too, and Python lets them at any point: a second
    kernel of a form was then called without an address.
    """
    use(monkeypatch, 100)
    source = RNG.integers(0, 1 << 16, 8 * 64, dtype=np.uint32)

    def run(number: int) -> list[list[int]]:
        body = f"{BODIES['transcendental functions']} // thread {number}"
        return threads(body, block=64, words=2, source=source, grid=8).tolist()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(run, range(12)))
    finally:
        sys.setswitchinterval(interval)
    monkeypatch.setenv("WARPLOOM_ENGINE", "numpy")
    expected = run(99)
    assert all(each == expected for each in found)
