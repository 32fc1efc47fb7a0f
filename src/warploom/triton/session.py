"""One machine: what it replaces in Triton and PyTorch while it is active, and what it ran."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import triton
from triton.backends import backends
from triton.runtime import driver as driver_config

from warploom.checker.report import Report
from warploom.diagnostics import Diag
from warploom.host.launch import Launch
from warploom.launcher import launch
from warploom.programs.launches import Launched, Launches
from warploom.triton.autocast import map_autocast
from warploom.triton.benchmarks import quieten, tune_once
from warploom.triton.compiled_graphs import compile_graphs
from warploom.triton.cubins import assemble_on_demand
from warploom.triton.cuda_graphs import answer_graphs, capturing
from warploom.triton.cuda_queries import answer
from warploom.triton.driver import Call, Driver, driver_class
from warploom.triton.gpu_functions import answer_blas
from warploom.triton.host_operators import redirect_operators
from warploom.triton.host_tensors import HostTensors, compare_values_only, keep_in_callbacks, map_subclasses
from warploom.triton.kernel_caches import keep_apart
from warploom.triton.options import Options
from warploom.triton.patches import Patches
from warploom.triton.releases import release_of
from warploom.triton.storages import Addresses, tables
from warploom.triton.streams import answer_streams
from warploom.triton.threads import map_in_threads

_ACTIVE: list[Session] = []
"""The active session, if there is one."""


def active_session() -> Session:
    """The session that runs launches now."""
    if not _ACTIVE:
        what = "a kernel compiled for the emulator was called outside `with warploom.triton.machine():`"
        raise Diag.BAD_LAUNCH.error(what=what)
    return _ACTIVE[0]


class _ThreadState(threading.local):
    """The part of a session that each thread has for itself."""

    is_dry = False


class Session:
    """A machine and the launches that it ran."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.release = release_of(triton.__version__)
        self.addresses = Addresses()
        self.raises_at_launch = False
        """True if a launch that is REFUTED is an error at once, and not at the end of the block."""
        self._launches = Launches(options)
        self._state = _ThreadState()
        self._one_at_a_time = threading.Lock()

    @property
    def is_dry(self) -> bool:
        """True if this thread's launches are prepared but not run."""
        return self._state.is_dry

    @contextmanager
    def dry(self) -> Iterator[None]:
        """Prepare this thread's launches and do not run them: an autotuner looks for a configuration that fits."""
        before, self._state.is_dry = self._state.is_dry, True
        try:
            yield
        finally:
            self._state.is_dry = before

    @property
    def launches(self) -> list[Launched]:
        """The launches that ran to their end."""
        return self._launches.ran

    @property
    def reports(self) -> list[Report]:
        """The reports of the launches, if they are checked."""
        return self._launches.reports

    @contextmanager
    def active(self) -> Iterator[Session]:
        """Make the emulator Triton's GPU; everything is restored at the end, after an error too."""
        if _ACTIVE:
            what = "`warploom.triton.machine` is already active; leave its `with` block first: blocks do not nest"
            raise Diag.BAD_LAUNCH.error(what=what)
        patches = Patches()
        try:
            _ACTIVE.append(self)
            tensors = HostTensors(self.addresses)
            patches.later(tensors.retire)
            self._replace(patches, tensors)
            with tensors:
                yield self
        finally:
            patches.restore()
            _ACTIVE.clear()

    def _replace(self, patches: Patches, tensors: HostTensors) -> None:
        keep_in_callbacks(patches, tensors)
        compare_values_only(patches)
        map_subclasses(patches)
        map_in_threads(patches, tensors)
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
        map_autocast(patches)
        answer_streams(patches)
        answer_graphs(patches)
        answer_blas(patches)
        redirect_operators(patches, tensors)
        compile_graphs(patches, self.options, tensors)
        tune_once(patches, self.options, self.dry)
        if not self.options.bench:
            quieten(patches)

    def run(self, call: Call) -> None:
        """Run one call on the emulator, record it if asked to, and print what the kernel printed."""
        if self.is_dry:
            return
        if (graph := capturing()) is not None:
            memory = [each.bytes for each in call.storages]
            graph.add_launch(memory, lambda: self._try(call), lambda: self.run(call))
            return
        with self._one_at_a_time:
            self._run(call)

    def _try(self, call: Call) -> None:
        """Run a call that is captured, for its results only."""
        with self._one_at_a_time:
            launch(_launch_of(call), sms=self.options.sms, limit=self.options.limit)

    def _run(self, call: Call) -> None:
        whole = _launch_of(call)
        self._launches.check(whole)
        if self.raises_at_launch:
            self.raise_refuted()
        record, number = self.options.record, len(self.launches)
        if record is None:
            self._launches.run(whole)
            return
        from warploom.triton.recording import path_of, recorded

        self._launches.run(whole, recording=recorded(call, record, number), file=path_of(call, record, number))

    def raise_refuted(self) -> None:
        """Raise `CheckError` with the reports that are REFUTED, each kernel's once."""
        if (error := self._launches.refuted()) is not None:
            raise error


def _launch_of(call: Call) -> Launch:
    """The launch of a call, with the memory that its pointer tables lead to."""
    for words in tables(call.parameters):
        call.storages.reach(words)
    return Launch(
        call.function.ptx,
        call.grid,
        (call.threads, 1, 1),
        tuple(each.argument() for each in call.parameters),
        call.function.name,
        call.cluster,
        call.function.shared_bytes,
        at_host_address=tuple(each.bytes for each in call.storages.reached.values()),
        labels=call.labels,
    )
