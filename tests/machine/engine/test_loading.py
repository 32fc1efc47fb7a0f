"""When a process loads llvmlite: NumPy executes short runs, and native code goes on where it pays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tests.machine.engine.test_engine import BODIES, FAULTS
from tests.machine.engine.test_levels import Events
from tests.machine.simt import threads

import warploom
from warploom import WarploomError
from warploom.machine.engine import selection

pytest.importorskip("llvmlite")

RNG = np.random.default_rng()
LATE = (1, 40, 150, 400, 2000)
"""Instructions after which llvmlite is loaded: in the first turn, in later ones, or perhaps never."""
LOOP = """mov.u32 %r3, 0; AGAIN: add.u32 %r3, %r3, 1; xor.b32 %r1, %r1, %r3; setp.lt.u32 %p1, %r3, {passes};
 @%p1 bra AGAIN; st.global.u32 [%rd0], %r1; // {name}"""


@pytest.fixture
def load_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes this process one that has not loaded llvmlite, and will after so many instructions."""

    def begin(instructions: int) -> None:
        monkeypatch.setenv("WARPLOOM_ENGINE", "auto")
        monkeypatch.setattr(selection, "_made", [])
        monkeypatch.setattr(selection, "_executed", [0])
        monkeypatch.setattr(selection, "_LOAD_AFTER", instructions)

    return begin


def loaded() -> bool:
    """True if a launch has loaded llvmlite."""
    return bool(selection._made)


@pytest.mark.parametrize("name", BODIES)
def test_results_do_not_depend_on_when_it_is_loaded(
    load_after: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source = RNG.integers(0, 1 << 16, 8 * 96, dtype=np.uint32)
    monkeypatch.setenv("WARPLOOM_ENGINE", "numpy")
    expected = threads(BODIES[name], block=96, words=2, source=source, grid=8)
    for instructions in LATE:
        load_after(instructions)
        assert np.array_equal(threads(BODIES[name], block=96, words=2, source=source, grid=8), expected), instructions


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_after_loading_has_the_message_of_the_reference(load_after: Any, name: str) -> None:
    messages = set[str]()
    for instructions in (*LATE, 1 << 40):
        load_after(instructions)
        with pytest.raises(WarploomError) as caught:
            threads(FAULTS[name], block=64, grid=2)
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_matmul_goes_on_natively(load_after: Any, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Barriers, copies and MMAs in flight while llvmlite is loaded; the counts of the run are those of NumPy's."""
    a, b = (RNG.standard_normal(shape).astype(np.float16) for shape in ((200, 328), (328, 136)))

    def run() -> tuple[Any, ...]:
        out = np.full((200, 136), np.nan, np.float16)
        done = warploom.launch(warploom.matmul.bind(a, b, out=out, target=target))
        return out.tobytes(), done.instructions, done.counts, done.bytes_moved, done.coverage

    monkeypatch.setenv("WARPLOOM_ENGINE", "numpy")
    expected = run()
    for instructions in (*RNG.integers(1, 3000, 4).tolist(), 20_000):
        load_after(instructions)
        assert run() == expected, instructions
        assert loaded()


def test_a_long_run_loads_it_and_short_ones_do_together(load_after: Any) -> None:
    load_after(4000)
    threads(LOOP.format(passes=100, name="short"), grid=3)
    assert not loaded()
    threads(LOOP.format(passes=3000, name="long"))
    assert loaded()
    load_after(4000)
    for _ in range(20):
        threads(LOOP.format(passes=100, name="short"))
    assert loaded()


def test_a_program_that_ran_long_loads_it_at_once(load_after: Any) -> None:
    load_after(4000)
    threads(LOOP.format(passes=3000, name="known"))
    load_after(4000)
    found = list[bool]()
    native = selection.engine

    def noted() -> Any:
        found.append(selection._executed == [0])
        return native()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "engine", noted)
        threads(LOOP.format(passes=3000, name="known"))
    assert found == [True]


@pytest.mark.parametrize("options", [{"schedule": "lazy"}, {"schedule": "random", "seed": 1}, {"observers": True}])
def test_other_runs_load_it_at_once(load_after: Any, options: dict[str, Any]) -> None:
    load_after(1 << 40)
    if "observers" in options:
        options = {"observers": (Events(),)}
    threads("st.global.u32 [%rd0], %r1;", **options)
    assert loaded()


def test_a_process_with_a_short_launch_does_not_import_llvmlite() -> None:
    text = (
        "import sys; from tests.machine.simt import threads; from tests.machine.engine.test_loading import LOOP\n"
        "threads(LOOP.format(passes=int(sys.argv[1]), name='process')); print('llvmlite.binding' in sys.modules)"
    )
    environment = {**os.environ, "WARPLOOM_ENGINE": "auto"}
    for passes, expected in (("10", "False"), (str(selection._LOAD_AFTER), "True")):
        command = [sys.executable, "-c", text, passes]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
