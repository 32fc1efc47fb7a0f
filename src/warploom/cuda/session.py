"""One run of a CUDA program: its device memory, the launches that it makes, and what they ran."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warploom.checker.check import check
from warploom.checker.report import Report, Verdict
from warploom.cuda.build import Built
from warploom.cuda.library import Callbacks, Runtime, call_main
from warploom.cuda.memory import Bytes, DeviceMemory
from warploom.cuda.options import Options
from warploom.cuda.recording import recorded
from warploom.cuda.tensor_maps import im2col_fields, tiled_fields
from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.launch import Launch, Triple, entry_of
from warploom.host.tensor_map import TensorMap
from warploom.launch_file.writing import recorded_path, save_schedule
from warploom.launcher import launch
from warploom.machine.copy.tensor_map_bytes import encode
from warploom.ptx.analysis.storage import size_of
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.symbols import readable

_SUCCESS, _FAILED = 0, 719
"""CUDA's statuses: success, and a launch that failed."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch that ran to its end."""

    kernel: str
    grid: Triple
    instructions: int
    seconds: float
    schedules: int = 1
    """The schedules under which it ran: more than one if they are explored."""
    remarks: tuple[str, ...] = ()
    """Results that differ between schedules and are not wrong: sums whose rounding depends on the order."""


class Session:
    """A run of a program, with the launches that it made."""

    def __init__(self, options: Options, built: Built) -> None:
        self.options = options
        self.memory = DeviceMemory()
        self.launches: list[Launched] = []
        self.reports: list[Report] = []
        """The reports of the launches, if they are checked: one for each kernel, shape and arguments."""
        self.skipped = 0
        """Launches of timing loops that were not run."""
        self.error: BaseException | None = None
        """The error of the first launch that failed; the program sees that launch and all later ones fail."""
        self._built = built
        self._texts = [path.read_text("utf-8").rstrip("\0") for path in built.texts]
        self._maps: dict[bytes, dict[str, Any]] = {}
        self._checked: set[Any] = set()
        self._last: Any = None
        self._repeats = 0

    def run(self, arguments: list[str], at_exit: Callable[[int], int]) -> int:
        """Call the program's `main`; its status.

        A program that calls `exit` ends the process, with the status that `at_exit` makes of its own.
        """
        hardware = self.options.hardware
        major, minor = divmod(int(self.options.target.removeprefix("sm_").rstrip("af")), 10)
        numbers = (
            major, minor, self.options.sm_count, hardware.threads_per_sm, hardware.shared_per_block,
            hardware.shared_per_sm, hardware.registers_per_sm,
        )  # fmt: skip

        def end(status: int) -> None:
            status = at_exit(status)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

        runtime = Runtime(self._built.runtime)
        runtime.connect(Callbacks(self._on_launch, self._on_tiled, self._on_im2col, self.memory.note, end), numbers)
        try:
            return call_main(self._built.program, arguments)
        finally:
            runtime.disconnect()

    def _on_launch(self, kernel: bytes, shape: Any, shared: int, arguments: Any) -> int:
        try:
            self._run(self._launch(kernel.decode(), [int(shape[at]) for at in range(9)], shared, arguments))
        except BaseException as error:  # noqa: BLE001  no exception passes through compiled code
            self.error = self.error or error
            return _FAILED
        return _SUCCESS

    def _launch(self, name: str, shape: list[int], shared: int, arguments: Any) -> Launch:
        text = self._text_of(name)
        params = entry_of(parse(text), name).params
        given = [ctypes.string_at(arguments[number], size_of(param)) for number, param in enumerate(params)]
        grid, block, cluster = ((shape[at], shape[at + 1], shape[at + 2]) for at in (0, 3, 6))
        return Launch(
            text, grid, block, tuple(given), name, cluster, shared, at_host_address=tuple(self.memory.all().values())
        )

    def _run(self, whole: Launch) -> None:
        options, key = self.options, (whole.entry, whole.grid, whole.block, whole.cluster, whole.args)
        name = readable(whole.entry or "")
        if 0 in whole.grid:
            return
        self._repeats = self._repeats + 1 if key == self._last else 1
        self._last = key
        if options.repeats is not None and self._repeats > options.repeats:
            self.skipped += 1
            return
        if options.profile is not None and key not in self._checked:
            self._checked.add(key)
            self.reports.append(check(whole, profile=options.profile, sms=options.sms))
        path = options.record and recorded_path(options.record, len(self.launches), name)
        try:
            with self._recorded(whole, path):
                run = launch(
                    whole, schedule=options.schedule, seed=options.seed, sms=options.sms, limit=options.limit,
                    budget=options.budget,
                )  # fmt: skip
        except WarploomError as error:
            sys.stdout.write(error.printed)
            sys.stdout.flush()
            if path and (schedule := getattr(error, "schedule", None)) is not None:
                save_schedule(schedule, path)
            raise
        self.launches.append(Launched(name, whole.grid, run.instructions, run.wall_seconds, run.schedules, run.remarks))
        sys.stdout.write(run.printed or "")
        sys.stdout.flush()
        if run.failure is not None:
            kept = save_schedule(run.failure.schedule, path) if path else None
            notes = [f"replayed by `warploom run {path} --schedule {kept}`"] if kept else []
            raise Diag.SCHEDULE_DEPENDENT.error(notes=notes, kernel=name, what=run.failure)

    @contextmanager
    def _recorded(self, whole: Launch, path: Path | None) -> Iterator[None]:
        if path is None:
            yield
            return
        with recorded(whole, path, self.memory, self._maps):
            yield

    def _text_of(self, name: str) -> str:
        for text in self._texts:
            if f".entry {name}(" in text or f".entry {name}\n" in text:
                return text
        raise Diag.NO_SUCH_ENTRY.error(entry=name, entries="others; the program has no PTX of this one")

    def _on_tiled(self, map_: int, *given: Any) -> int:
        return self._encode(tiled_fields, map_, *given)

    def _on_im2col(self, map_: int, *given: Any) -> int:
        return self._encode(im2col_fields, map_, *given)

    def _encode(self, fields_of: Callable[..., dict[str, Any]], map_: int, *given: Any) -> int:
        """Write the 128 bytes of a tensor map; the status."""
        type_, rank, address, *more = given
        try:
            start, array = self._known(address or 0)
            fields = fields_of(type_, rank, *more)
            raw = encode(TensorMap(array, offset=address - start, **fields), start)
            self._maps[raw] = fields
            ctypes.memmove(map_, raw, MAP_BYTES)
        except BaseException as error:  # noqa: BLE001  no exception passes through compiled code
            self.error = self.error or error
            return _FAILED
        return _SUCCESS

    def _known(self, address: int) -> tuple[int, Bytes]:
        place = self.memory.at(address)
        if place is None:
            what = f"a tensor map begins at {address:#x}, which is in no allocation of the program"
            raise Diag.BAD_LAUNCH.error(what=what)
        return place

    def refuted(self) -> WarploomError | None:
        """The error with the reports that are REFUTED, each once."""
        texts = dict.fromkeys(str(each) for each in self.reports if each.verdict is Verdict.REFUTED)
        if not texts:
            return None
        count = sum(each.verdict is Verdict.REFUTED for each in self.reports)
        what = f"{count} of {len(self.reports)} checked launches are REFUTED:\n" + "\n".join(texts)
        return Diag.NOT_PROVED.error(what=what)
