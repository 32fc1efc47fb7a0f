"""One run of a CUDA program: its device memory, the launches that it makes, and what they ran."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from warploom.cuda.build import Built
from warploom.cuda.library import Callbacks, Runtime, call_main, flush_c
from warploom.cuda.memory import DeviceMemory
from warploom.cuda.options import Options
from warploom.cuda.recording import recorded
from warploom.cuda.signals import answered
from warploom.cuda.variables import ProgramVariables
from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.launch import Launch, entry_of
from warploom.host.tensor_map import TensorMap
from warploom.launch_file.writing import recorded_path
from warploom.machine.copy.tensor_map_bytes import encode
from warploom.programs.launches import Launches
from warploom.programs.tensor_maps import im2col_fields, tiled_fields
from warploom.ptx.analysis.storage import size_of
from warploom.ptx.syntax.symbols import readable

_SUCCESS, _FAILED = 0, 719
"""CUDA's statuses: success, and a launch that failed."""


class _Anywhere:
    """All addresses as an array: a map of it is checked by the rules of the driver's encoder, and by no others."""

    __cuda_array_interface__: ClassVar = {"shape": (1 << 62,), "typestr": "|u1", "data": (0, False), "version": 3}


class Session:
    """A run of a program, with the launches that it made."""

    def __init__(self, options: Options, built: Built) -> None:
        self.options = options
        self.memory = DeviceMemory()
        self.launches = Launches(options)
        """The launches that ran, and reports: one for each kernel, shape and arguments."""
        self.skipped = 0
        """Launches of timing loops that were not run."""
        self.error: BaseException | None = None
        """The error of the first launch that failed; the program sees that launch and all later ones fail."""
        self._built = built
        self._texts = [path.read_text("utf-8").rstrip("\0") for path in built.texts]
        self._variables = ProgramVariables(self._texts, self.memory)
        self._maps: dict[bytes, dict[str, Any]] = {}
        self._checked: set[Any] = set()
        self._last: Any = None
        self._repeats = 0
        self._callbacks = 0
        """The callbacks that are running: 0 in the program's own code."""
        self._end: Callable[[int], None] | None = None

    def run(self, arguments: list[str], at_exit: Callable[[int], int]) -> int:
        """Call the program's `main`; its status.

        A program that calls `exit` ends the process, with the status that `at_exit` makes of its own.
        """
        hardware = self.options.hardware
        numbers = (
            *self.options.capability, self.options.sm_count, hardware.threads_per_sm, hardware.shared_per_block,
            hardware.shared_per_sm, hardware.registers_per_sm,
        )  # fmt: skip

        def end(status: int) -> None:
            status = at_exit(status)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

        runtime, self._end = Runtime(self._built.runtime), end
        functions: tuple[Callable[..., Any], ...] = (
            self._on_launch, self._on_tiled, self._on_im2col, self.memory.note, self._on_variable, end,
        )  # fmt: skip
        runtime.connect(Callbacks(*(self._counted(each) for each in functions)), numbers)
        try:
            with answered(lambda: self._callbacks > 0, self._stop):
                return call_main(self._built.program, arguments)
        finally:
            runtime.disconnect()

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A callback that is known to be running while it is."""

        def call(*arguments: Any) -> Any:
            self._callbacks += 1
            try:
                return function(*arguments)
            finally:
                self._callbacks -= 1

        return call

    def _stop(self, error: BaseException) -> None:
        """End the program: the user, or its time limit, does not wait for it."""
        if self._callbacks == 0:
            note = "in the program's own code, on the host"
            if isinstance(error, WarploomError):
                error.notes += (note,)
            else:
                error.add_note(note)
        self.error = self.error or error
        if self._end is not None:
            flush_c()
            self._end(1)

    def _on_launch(self, kernel: bytes, shape: Any, shared: int, arguments: Any) -> int:
        try:
            self._run(self._launch(kernel.decode(), [int(shape[at]) for at in range(10)], shared, arguments))
        except BaseException as error:  # noqa: BLE001  no exception passes through compiled code
            self.error = self.error or error
            if isinstance(error, KeyboardInterrupt) or (
                isinstance(error, WarploomError) and error.diag is Diag.TIMEOUT
            ):
                self._stop(error)
            return _FAILED
        return _SUCCESS

    def _launch(self, name: str, shape: list[int], shared: int, arguments: Any) -> Launch:
        text = self._text_of(name)
        variables = self._variables.of(text)
        kernel = entry_of(variables.module, name)
        given = [ctypes.string_at(arguments[number], size_of(param)) for number, param in enumerate(kernel.params)]
        grid, block, cluster = ((shape[at], shape[at + 1], shape[at + 2]) for at in (0, 3, 6))
        own = {array.ctypes.data for array in variables.arrays.values()}
        others = tuple(array for start, array in self.memory.all().items() if start not in own)
        return Launch(
            text, grid, block, tuple(given), name, cluster, shared, at_host_address=others,
            variables=tuple(variables.arrays.items()), dependent=bool(shape[9]),
        )  # fmt: skip

    def _run(self, whole: Launch) -> None:
        options, key = self.options, (whole.entry, whole.grid, whole.block, whole.cluster, whole.args, whole.dependent)
        name = readable(whole.entry or "")
        self._repeats = self._repeats + 1 if key == self._last else 1
        self._last = key
        if options.repeats is not None and self._repeats > options.repeats:
            self.skipped += 1
            return
        if key not in self._checked:
            self._checked.add(key)
            self.launches.check(whole)
        file = recorded_path(options.record, len(self.launches.ran), name) if options.record else None
        recording = None
        if file is not None:
            text = self._variables.of(str(whole.program)).text(str(whole.program))
            recording = recorded(replace(whole, program=text), file, self.memory, self._maps)
        self.launches.run(whole, recording=recording, file=file)

    def _text_of(self, name: str) -> str:
        for text in self._texts:
            if f".entry {name}(" in text or f".entry {name}\n" in text:
                return text
        raise Diag.NO_SUCH_ENTRY.error(entry=name, entries="others; the program has no PTX of this one")

    def _on_variable(self, name: bytes) -> int | None:
        try:
            return self._variables.address(name.decode())
        except BaseException as error:  # noqa: BLE001  no exception passes through compiled code
            self.error = self.error or error
            return None

    def _on_tiled(self, map_: int, *given: Any) -> int:
        return self._encode(tiled_fields, map_, *given)

    def _on_im2col(self, map_: int, *given: Any) -> int:
        return self._encode(im2col_fields, map_, *given)

    def _encode(self, fields_of: Callable[..., dict[str, Any]], map_: int, *given: Any) -> int:
        """Write the 128 bytes of a tensor map; the status."""
        type_, rank, address, *more = given
        try:
            fields = fields_of(type_, rank, *more)
            raw = encode(TensorMap(_Anywhere(), offset=address or 0, **fields), 0)
            if self._holds(address or 0, fields):
                self._maps[raw] = fields
            ctypes.memmove(map_, raw, MAP_BYTES)
        except BaseException as error:  # noqa: BLE001  no exception passes through compiled code
            self.error = self.error or error
            return _FAILED
        return _SUCCESS

    def _holds(self, address: int, fields: Mapping[str, Any]) -> bool:
        """True if the tensor of a map lies in memory of the program. The driver does not ask: kernels of grouped GEMMs
        change the address and the sizes of a map before they use it. A use of a map whose tensor does not is a fault.
        """
        place = self.memory.at(address)
        if place is None:
            return False
        with suppress(WarploomError):
            TensorMap(place[1], offset=address - place[0], **fields)
            return True
        return False
