"""The thread that builds kernels: its order, errors, end, and the children of a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings

import pytest

from warploom.diagnostics import WarploomError
from warploom.runtime import background, waits
from warploom.runtime.background import SWITCH, Worker, is_enabled, worker

RUN = {"capture_output": True, "text": True, "timeout": 60}


def test_jobs_run_in_order_in_another_thread():
    made, own = Worker(), threading.get_ident()
    done: list[tuple[int, bool]] = []
    for number in range(20):
        assert made.submit(lambda number=number: done.append((number, threading.get_ident() != own)))
    assert made.wait(120)
    assert done == [(number, True) for number in range(20)]
    assert made.submit(done.clear)  # a new thread after the first has ended
    assert made.wait(120)
    assert done == []
    assert made.done == 21


def test_an_error_is_a_warning_once_and_the_next_job_runs():
    made, done = Worker(), []

    def fail():
        raise ValueError("no such kernel\nand more")

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for job in (fail, fail, lambda: done.append(1)):
            made.submit(job)
        assert made.wait(120)
    assert [str(each.message) for each in seen] == ["a kernel could not be built in the background: no such kernel"]
    assert done == [1]


def test_warnings_that_are_errors_do_not_end_the_thread(capsys):
    made, done = Worker(), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.submit(lambda: 1 / 0)
        made.submit(lambda: done.append(1))
        assert made.wait(120)
    assert done == [1]
    assert "division by zero" in capsys.readouterr().err


def test_a_closed_worker_finishes_its_job_and_begins_no_other():
    made, begun, go, done = Worker(), threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        go.wait(120)
        done.append("first")

    made.submit(slow)
    made.submit(lambda: done.append("second"))
    assert begun.wait(120)
    assert not made.wait(0.01)
    closing = threading.Thread(target=made.close)
    closing.start()
    go.set()
    closing.join(120)
    assert done == ["first"]
    assert not made.submit(lambda: None)


def test_threads_switch_more_often_while_it_works():
    made, usual, seen = Worker(), sys.getswitchinterval(), []
    made.submit(lambda: seen.append(sys.getswitchinterval()))
    assert made.wait(120)
    assert seen[0] < usual / 2
    assert sys.getswitchinterval() == pytest.approx(usual)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_a_worker_of_its_own():
    source = """
import os, threading, time
from warploom.runtime.background import worker
go = threading.Event()
worker().submit(lambda: go.wait(120))
child = os.fork()
if not child:
    done = []
    worker().submit(lambda: done.append(1))
    os._exit(0 if worker().wait(120) and done == [1] else 1)
status = os.waitpid(child, 0)[1]
go.set()
assert worker().wait(120)
print(os.waitstatus_to_exitcode(status))
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", source], check=False, **RUN)
    assert (run.stdout.strip(), run.stderr) == ("0", "")


def test_a_process_that_ends_waits_for_the_job_in_progress():
    source = """
import threading, time
from warploom.runtime.background import worker
begun = threading.Event()

def build():
    begun.set()
    while worker()._is_open:
        time.sleep(0.01)
    print("built", flush=True)

worker().submit(build)
worker().submit(lambda: print("not begun"))
begun.wait()
"""
    run = subprocess.run([sys.executable, "-c", source], check=False, **RUN)
    assert (run.stdout.split(), run.returncode, run.stderr) == (["built"], 0, "")


def test_the_environment_decides(monkeypatch):
    assert worker() is background._worker
    monkeypatch.delenv(SWITCH, raising=False)
    assert is_enabled()
    monkeypatch.setenv(SWITCH, "0")
    assert not is_enabled()
    monkeypatch.setenv(SWITCH, "no")
    with pytest.raises(WarploomError, match=SWITCH):
        is_enabled()


def test_waits_are_counted():
    waits.reset()
    assert waits.summary() == waits.Waits(0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    for ms in (5, 1, 9):
        waits.record_wait(ms / 1e3)
    waits.record_found(is_substitute=False)
    waits.record_found(is_substitute=True)
    found = waits.summary()
    assert (found.waited, found.at_hand, found.substituted) == (3, 1, 1)
    assert (found.p50_ms, found.most_ms, found.total_ms) == pytest.approx((5, 9, 15))
    assert "3 waited (p50 5.0 ms" in str(found)
    waits.reset()
