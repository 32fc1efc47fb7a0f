"""`launch` and its options: shapes in any spelling, wrong ones with an explanation, reprs and the progress bar."""

from __future__ import annotations

import importlib
import io
import re
import time
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest
from tests.commands.test_cli import KERNEL

from warploom import Launch, LaunchError, Run, Stuck, launch, progress
from warploom.trace import Array, f32, kernel, thread, when


def twice(**options) -> tuple[np.ndarray, np.ndarray, Run]:
    x, y = np.arange(77, dtype=np.float32), np.full(77, np.nan, np.float32)
    run = launch(KERNEL, **({"grid": 3, "block": 32} | options), args=[x, y, 77])
    return x, y, run


@kernel(target="sm_90a")
def copied(x: Array[f32], y: Array[f32]):
    with when(thread() < 8):
        y[thread()] = x[thread()]


@pytest.mark.parametrize("grid", [3, (3,), (3, 1), (3, 1, 1), [3], np.int64(3), np.array([3, 1])])
@pytest.mark.parametrize("block", [32, (32,), [32, 1]])
def test_integers_and_short_tuples_are_shapes(grid, block):
    x, y, _ = twice(grid=grid, block=block, cluster=1)
    assert (y == 2 * x).all()


def test_a_launch_with_short_shapes():
    x, y = np.ones(77, np.float32), np.zeros(77, np.float32)
    launch(Launch(KERNEL, 3, (32,), (x, y, 77)))
    assert (y == 2).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": "8"}, ("`grid` is '8'", "up to three integers")),
        ({"grid": 2.5}, ("`grid` is 2.5",)),
        ({"grid": (1, 2, 3, 4)}, ("`grid` is (1, 2, 3, 4)",)),
        ({"grid": ()}, ("`grid` is ()",)),
        ({"grid": True}, ("`grid` is True",)),
        ({"grid": 0}, ("`grid` is (0, 1, 1)",)),
        ({"block": {}}, ("`block` is {}",)),
        ({"block": None}, ("`block` must be given",)),
        ({"cluster": "x"}, ("`cluster` is 'x'",)),
        ({"schedule": 3}, ("`schedule` is 3", "`lazy`", "`choose`")),
        ({"schedule": None}, ("`schedule` is None", "`hold:KIND`", "`explore`")),
        ({"schedule": "explore", "compare": 3}, ("`compare` is an int; it must be a function",)),
        ({"limit": "x"}, ("`limit` is 'x'; it must be an integer",)),
        ({"seed": 1.5}, ("`seed` is 1.5",)),
        ({"sms": "all"}, ("`sms` is 'all'",)),
        ({"observers": [1]}, ("observer 0 is 1; it has no method `on_event`",)),
        ({"observers": 1}, ("`observers` is an int",)),
        ({"on_progress": 1}, ("`on_progress` is an int",)),
        ({"limit": 0}, ("`limit` is 0; it must be at least 1",)),
        ({"shared_bytes": "a"}, ("`shared_bytes` is 'a'; it must be a number of bytes",)),
        ({"schedule": 3, "limit": "x"}, ("2 problems", "`schedule` is 3", "`limit` is 'x'")),
        (
            {"grid": "x", "block": {}, "cluster": 1.5, "shared_bytes": 2.5},
            ("4 problems", "`grid` is 'x'", "`block` is {}", "`cluster` is 1.5", "`shared_bytes` is 2.5"),
        ),
    ],
)
def test_wrong_options_are_launch_errors(options, words):
    with pytest.raises(LaunchError) as caught:
        twice(**options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (KERNEL.encode(), "program.decode()"),
        (copied, "copied.bind("),
        (Path("kernel.ptx"), "path.read_text()"),
        ("kernel.ptx", "read_text()"),
        ("k.launch.json", "Launch.load(path)"),
        (3, "the program is an int"),
        (None, "the program is a NoneType"),
    ],
)
def test_wrong_programs_are_launch_errors(program, words):
    with pytest.raises(LaunchError) as caught:
        launch(program, grid=1, block=32)
    assert words in str(caught.value)


@pytest.mark.parametrize("args", [np.zeros(3, np.float32), "xy", 3, {"x": 1}])
def test_arguments_must_be_a_list(args):
    with pytest.raises(LaunchError, match="BAD_LAUNCH") as caught:
        launch(KERNEL, grid=1, block=32, args=args)
    assert "it must be a list of the kernel's arguments" in str(caught.value)


def test_a_run_is_shown_in_one_line():
    _, _, run = twice(schedule="lazy")
    assert re.fullmatch(r"Run\(\d+ warp instructions in \d+\.\d{3} s, schedule lazy\)", repr(run))
    page = run._repr_html_()
    assert page.count("<tr>") == len(run.counts) + len(run.bytes_moved)
    assert repr(Run({}, {}, {}, 5e-6)) == "Run(started on the GPU in 5 µs)"


def test_directions_are_ascii_and_the_old_keys_are_found():
    from warploom.launcher import _BytesMoved

    moved = _BytesMoved({"global->shared": 5})
    assert moved["global→shared"] == moved["global->shared"] == 5
    for missing in ("shared→global", "none"):
        with pytest.raises(KeyError):
            moved[missing]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Slow:
    """A schedule that lets the display's threads run, until they have written or some time has passed."""

    name, convoys, two_views, preempts = "slow", False, False, True

    def __init__(self, terminal: Terminal, seconds: float) -> None:
        self.terminal, self.end = terminal, time.monotonic() + seconds

    def choose(self, kind: str, options, groups: int) -> int:
        while "instructions" not in self.terminal.getvalue() and time.monotonic() < self.end:
            time.sleep(0.01)
        return 0


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    importlib.import_module("rich.progress")  # so that a bar would appear at once
    return stream


def test_a_long_launch_shows_a_bar_on_a_terminal(terminal):
    with redirect_stderr(terminal):
        x, y, _ = twice(schedule=Slow(terminal, 300))
    assert "twice" in terminal.getvalue() or "kernel" in terminal.getvalue()
    assert "warp instructions" in terminal.getvalue()
    assert (y == 2 * x).all()


@pytest.mark.parametrize("case", ["asked not to", "in CI", "own function", "not a terminal"])
def test_no_bar(terminal, monkeypatch, case):
    options = {"asked not to": {"progress": False}, "own function": {"on_progress": lambda done, total: None}}
    if case == "in CI":
        monkeypatch.setenv("CI", "true")
    if case == "not a terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    with redirect_stderr(terminal):
        twice(schedule=Slow(terminal, 0.3), **options.get(case, {}))
    assert terminal.getvalue() == ""


def test_a_short_launch_shows_nothing(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 60.0)
    with redirect_stderr(terminal):
        twice(progress=True)
    assert terminal.getvalue() == ""


def test_the_bar_goes_when_the_launch_fails(terminal):
    with redirect_stderr(terminal), pytest.raises(Stuck, match="LIMIT"):
        twice(schedule=Slow(terminal, 300), limit=20)
    assert "warp instructions" in terminal.getvalue()
    assert not progress._TERMINAL.locked()


def test_on_progress_is_called_for_every_cluster():
    seen: list[tuple[int, int]] = []
    twice(on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


class Stopping:
    """A schedule under which the user stops the run at a choice."""

    name, convoys, two_views, preempts = "stopping", False, False, True

    def __init__(self, left: int) -> None:
        self.left = left

    def choose(self, kind: str, options, groups: int) -> int:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return 0


def test_the_user_who_stops_a_launch_sees_its_warps():
    notes: list[list[str]] = []
    for choices in range(100):
        try:
            twice(schedule=Stopping(choices))
        except KeyboardInterrupt as error:
            notes.append(error.__notes__)
        else:
            break
    assert len(notes) > 1
    assert {each[0] for each in notes} == {"in `twice` on the emulator:"}
    assert any("can run  `" in each[1] for each in notes)
    assert not any("``" in line for each in notes for line in each), "a warp at the end has no instruction"
    waiting = [each[2:] for each in notes]
    assert waiting[0] == ["2 clusters have not started"]
    assert ["1 cluster has not started"] in waiting
