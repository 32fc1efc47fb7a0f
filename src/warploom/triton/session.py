"""One machine: what it replaces in Triton and PyTorch while it is active, and what it ran."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import triton
from triton.backends import backends
from triton.runtime import driver as driver_config

from warploom.checker.check import check
from warploom.checker.report import Report, Verdict
from warploom.diagnostics import Diag, WarploomError
from warploom.host.launch import Launch
from warploom.launcher import launch
from warploom.triton.benchmarks import quieten, tune_once
from warploom.triton.compiled_graphs import compile_graphs
from warploom.triton.cubins import assemble_on_demand
from warploom.triton.cuda_queries import answer
from warploom.triton.driver import Call, Driver, driver_class, flag
from warploom.triton.host_blas import answer_blas
from warploom.triton.host_operators import redirect_operators
from warploom.triton.host_tensors import HostTensors, keep_in_backward
from warploom.triton.kernel_caches import keep_apart
from warploom.triton.options import Options
from warploom.triton.patches import Patches
from warploom.triton.releases import release_of
from warploom.triton.storages import Addresses, tables

_ACTIVE: list[Session] = []
"""The active session, if there is one."""


def active_session() -> Session:
    """The session that runs launches now."""
    if not _ACTIVE:
        what = "a kernel compiled for the emulator was called outside `with warploom.triton.machine():`"
        raise Diag.BAD_LAUNCH.error(what=what)
    return _ACTIVE[0]


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch that ran to its end."""

    kernel: str
    grid: tuple[int, int, int]
    instructions: int
    seconds: float
    schedules: int = 1
    """The schedules under which it ran: more than one if they are explored."""
    remarks: tuple[str, ...] = ()
    """Results that differ between schedules and are not wrong: sums whose rounding depends on the order."""


class Session:
    """A machine and the launches that it ran."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.release = release_of(triton.__version__)
        self.addresses = Addresses()
        self.launches: list[Launched] = []
        self.reports: list[Report] = []
        """The reports of the launches, if they are checked."""
        self.dry = False
        """True if launches are prepared but not run, while an autotuner looks for a configuration that fits."""

    @contextmanager
    def active(self) -> Iterator[Session]:
        """Make the emulator Triton's GPU; everything is restored at the end, after an error too."""
        if _ACTIVE:
            what = "`warploom.triton.machine` is already active; leave its `with` block first: blocks do not nest"
            raise Diag.BAD_LAUNCH.error(what=what)
        patches = Patches()
        try:
            _ACTIVE.append(self)
            self._replace(patches)
            tensors = HostTensors(self.addresses)
            keep_in_backward(patches, tensors)
            with tensors:
                yield self
        finally:
            patches.restore()
            _ACTIVE.clear()

    def _replace(self, patches: Patches) -> None:
        driver = Driver(self)
        for name in self.release.driver_fields:
            patches.set(driver_config, name, driver)
        patches.set_item(backends, "nvidia", replace(backends["nvidia"], driver=driver_class(driver)))
        compiler = backends["nvidia"].compiler
        add_stages = compiler.add_stages

        def with_ptx_as_binary(backend: Any, stages: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            add_stages(backend, stages, *args, **kwargs)
            stages["cubin"] = lambda ptx, metadata: ptx.encode()

        patches.set(compiler, "add_stages", with_ptx_as_binary)
        assemble_on_demand(patches)
        # The key of Triton's cache on disk: a GPU must not find PTX where it expects a cubin.
        patches.set(compiler, "hash", lambda backend: f"warploom-ptx-{backend.target.arch}")
        keep_apart(patches, f"{self.options.target} {self.options.sm_count}")
        answer(patches, self.options)
        answer_blas(patches)
        redirect_operators(patches)
        compile_graphs(patches, self.options)
        tune_once(patches, self.options, lambda: flag(self, "dry"))
        if not self.options.bench:
            quieten(patches)

    def run(self, call: Call) -> None:
        """Run one call on the emulator, record it if asked to, and print what the kernel printed."""
        if self.dry:
            return
        for words in tables(call.parameters):
            call.storages.reach(words)
        whole = Launch(
            call.function.ptx,
            call.grid,
            (call.threads, 1, 1),
            tuple(each.argument() for each in call.parameters),
            call.function.name,
            call.cluster,
            call.function.shared_bytes,
            at_host_address=tuple(each.bytes for each in call.storages.reached.values()),
        )
        options = self.options
        if options.profile is not None:
            self.reports.append(check(whole, profile=options.profile, sms=options.sms))
        number = len(self.launches)
        try:
            with self._recorded(call, number):
                run = launch(
                    whole, schedule=options.schedule, seed=options.seed, sms=options.sms, limit=options.limit,
                    budget=options.budget,
                )  # fmt: skip
        except WarploomError as error:
            sys.stdout.write(error.printed)
            self._save(getattr(error, "schedule", None), call, number)
            raise
        launched = (call.function.name, call.grid, run.instructions, run.wall_seconds)
        self.launches.append(Launched(*launched, run.schedules, run.remarks))
        if run.printed:
            sys.stdout.write(run.printed)
        if run.failure is not None:
            kept = self._save(run.failure.schedule, call, number)
            notes = [f"replayed by `warploom run {kept[0]} --schedule {kept[1]}`"] if kept else []
            raise Diag.SCHEDULE_DEPENDENT.error(notes=notes, kernel=call.function.name, what=run.failure)

    def _save(self, schedule: Any, call: Call, number: int) -> tuple[Path, Path] | None:
        """Write a schedule that exploring found next to the launch's recording, if there is one; both paths."""
        if self.options.record is None or schedule is None:
            return None
        from warploom.launch_file.writing import save_schedule
        from warploom.triton.recording import path_of

        path = path_of(call, self.options.record, number)
        return path, save_schedule(schedule, path)

    def raise_refuted(self) -> None:
        """Raise `CheckError` with the reports that are REFUTED, each kernel's once."""
        texts = dict.fromkeys(str(each) for each in self.reports if each.verdict is Verdict.REFUTED)
        if texts:
            count = sum(each.verdict is Verdict.REFUTED for each in self.reports)
            what = f"{count} of {len(self.reports)} checked launches are REFUTED:\n" + "\n".join(texts)
            raise Diag.NOT_PROVED.error(what=what)

    @contextmanager
    def _recorded(self, call: Call, number: int) -> Iterator[None]:
        if self.options.record is None:
            yield
            return
        from warploom.triton.recording import recorded

        with recorded(call, self.options.record, number):
            yield
