"""Sweeps: order, errors, executors, and worker processes that die."""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.checker import launches

import warploom
from warploom import LaunchError, Verdict


def test_reports_come_in_the_order_of_the_jobs():
    jobs = [launches.clean, launches.race(), launches.race, launches.clean()]
    with ThreadPoolExecutor(2) as executor:
        verdicts = [report.verdict for report in warploom.sweep(jobs, executor=executor, budget=0)]
    assert verdicts == [Verdict.PROVED, Verdict.REFUTED, Verdict.REFUTED, Verdict.PROVED]


def test_a_job_that_raises_is_incomplete_and_the_others_are_checked():
    wrong = warploom.Launch("not PTX", (1, 1, 1), (32, 1, 1), ())
    with ThreadPoolExecutor(1) as executor:
        jobs = [launches.broken, launches.number, wrong, launches.clean]
        raised, returned, invalid, right = warploom.sweep(jobs, executor=executor)
    assert raised.reasons == ("the job raised RuntimeError: no such size",)
    assert "returned int" in returned.reasons[0]
    assert invalid.verdict is Verdict.INCOMPLETE
    assert invalid.error is not None
    assert invalid.error.code == "SYNTAX"
    assert right.verdict is Verdict.PROVED


def test_an_executor_that_loses_a_job():
    class Losing(ThreadPoolExecutor):
        def submit(self, *args, **kwargs):
            lost = Future()
            lost.set_exception(ConnectionError("worker gone"))
            return lost

    with Losing(1) as executor:
        (report,) = warploom.sweep([launches.clean], executor=executor)
    assert report.verdict is Verdict.INCOMPLETE
    assert report.reasons == ("the executor lost the job: ConnectionError: worker gone",)


def test_a_dead_worker_is_replaced_and_its_jobs_run_again(tmp_path):
    once = functools.partial(launches.dies_once, str(tmp_path / "died"))
    jobs = [launches.clean, launches.dies, once, launches.race]
    right, dead, again, wrong = warploom.sweep(jobs, workers=2, budget=0)
    assert (right.verdict, again.verdict, wrong.verdict) == (Verdict.PROVED, Verdict.PROVED, Verdict.REFUTED)
    assert dead.verdict is Verdict.INCOMPLETE
    assert dead.reasons == ("its worker process died 3 times",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "relaxed"}, "`profile` is 'relaxed'"),
        ({"workers": 0}, "`workers` is 0"),
        ({"workers": 2, "executor": ThreadPoolExecutor(1)}, "an executor has its own"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(LaunchError, match=message):
        warploom.sweep([launches.clean], **options)


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_and_a_killed_worker(tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    patience = dict.fromkeys(("distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp"), "600s")
    dask = pytest.importorskip("dask")
    with (
        dask.config.set(patience),
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
    ):
        once = functools.partial(launches.dies_once, str(tmp_path / "died"))
        executor = client.get_executor(retries=2)
        reports = list(warploom.sweep([launches.clean, once, launches.race], executor=executor, budget=0))
    assert [report.verdict for report in reports] == [Verdict.PROVED, Verdict.PROVED, Verdict.REFUTED]
    assert (tmp_path / "died").exists()


def test_a_job_that_exits_ends_no_other_job() -> None:
    exits, clean = warploom.sweep([launches.exits, launches.clean], workers=1)
    assert exits.verdict is Verdict.INCOMPLETE
    assert exits.reasons == ("the job raised SystemExit: 3",)
    assert clean.verdict is Verdict.PROVED


def test_an_executor_can_take_jobs() -> None:
    with pytest.raises(warploom.WarploomError, match="`executor` is 3; it must be"):
        warploom.sweep([launches.clean], executor=3)  # type: ignore[arg-type]
