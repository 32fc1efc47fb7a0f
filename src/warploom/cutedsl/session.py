"""One machine for CuTe DSL: its settings while it is active, launches that its host code makes, and what they ran."""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from warploom.cutedsl.host_memory import Bytes, HostMemory
from warploom.cutedsl.library import Callbacks, Library
from warploom.cutedsl.options import Options
from warploom.diagnostics import Diag
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.launch import Launch, Triple, entry_of
from warploom.host.tensor_map import TensorMap
from warploom.machine.copy.tensor_map_bytes import encode
from warploom.programs.launches import Launched, Launches
from warploom.programs.tensor_maps import im2col_fields, tiled_fields
from warploom.ptx.analysis.storage import size_of
from warploom.ptx.syntax.parser import parse

_SUCCESS, _FAILED = 0, 719
"""CUDA's statuses: success, and a launch that failed."""
_CONFIGURATION = struct.Struct("<6IQQQI")
"""cudaLaunchConfig_t: grid, block, bytes of dynamic shared memory, stream, attributes, their number."""
_ATTRIBUTE_BYTES, _CLUSTER = 72, 4
"""cudaLaunchAttribute: its size, and the number of cudaLaunchAttributeClusterDimension."""
_SM_COUNT, _MAJOR, _MINOR, _THREADS, _SHARED = 16, 75, 76, 39, 97
"""Numbers of cudaDeviceAttr."""
_SETTINGS = ("CUTE_DSL_LIBS", "CUTE_DSL_KEEP_PTX", "CUTE_DSL_DUMP_DIR", "CUTE_DSL_ARCH")
_ACTIVE: list[Session] = []


class Session:
    """A machine and the launches that it ran."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._launches = Launches(options)
        self.memory = HostMemory()
        self._error: BaseException | None = None
        self._texts: dict[Path, str] = {}
        self._folder = Path()

    @property
    def launches(self) -> list[Launched]:
        """The launches that ran to their end."""
        return self._launches.ran

    def hold(self, *arrays: Any) -> None:
        """Make arrays known to which a launch has addresses; tensors of PyTorch are found without it."""
        for array in arrays:
            self.memory.add(array)

    def check(self) -> None:
        """Raise the error of the first launch that failed, if one did."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    @contextmanager
    def active(self) -> Iterator[Session]:
        """Put the stand-in where CuTe DSL looks for its library; settings are restored at the end."""
        if _ACTIVE:
            raise Diag.BAD_LAUNCH.error(what="`warploom.cutedsl.machine` is already active: blocks do not nest")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warploom-cutedsl-")))
            self._folder = folder if self.options.ptx is None else Path(self.options.ptx)
            library = Library(folder)
            _ACTIVE.append(self)
            stack.callback(_ACTIVE.clear)
            before = {name: os.environ.get(name) for name in _SETTINGS}
            stack.callback(_set, before)
            values = (str(library.path), "1", str(self._folder), self.options.target)
            _set(dict(zip(_SETTINGS, values, strict=True)))
            library.connect(
                Callbacks(self._on_launch, self._on_tiled, self._on_im2col, self._on_attribute, self._on_unsupported)
            )
            stack.callback(library.disconnect)
            stack.enter_context(_tensors_on_host(self.options))
            try:
                yield self
            except Exception as error:
                if self._error is not None:  # mostly, what the program found wrong comes from the failed launch
                    raise self._error from error
                raise
        self.check()

    def _on_launch(self, kernel: bytes, configuration: int, arguments: Any) -> int:
        if self._error is not None:
            return _FAILED
        try:
            self._run(kernel.decode(), configuration, arguments)
        except BaseException as error:  # noqa: BLE001  no exception passes through compiled code
            self._error = error
            return _FAILED
        finally:
            self.memory.forget()
        return _SUCCESS

    def _run(self, name: str, configuration: int, arguments: Any) -> None:
        raw = ctypes.string_at(configuration, _CONFIGURATION.size)
        gx, gy, gz, bx, by, bz, shared, _, attributes, count = _CONFIGURATION.unpack(raw)
        text = self._text_of(name)
        params = entry_of(parse(text), name).params
        given = [ctypes.string_at(arguments[number], size_of(param)) for number, param in enumerate(params)]
        cluster = _cluster([ctypes.string_at(attributes + _ATTRIBUTE_BYTES * at, 24) for at in range(count)])
        whole = Launch(
            text, (gx, gy, gz), (bx, by, bz), tuple(given), name, cluster, shared,
            at_host_address=tuple(self._reached(given).values()),
        )  # fmt: skip
        self._launches.run(whole)

    def _reached(self, given: Sequence[bytes]) -> dict[int, Bytes]:
        """The memory to which the 64-bit words of the arguments lead; a tensor map begins with its address."""
        found: dict[int, Bytes] = {}
        for raw in given:
            for word in np.frombuffer(raw[: len(raw) // 8 * 8], np.uint64).tolist():
                place = self.memory.at(word) if word else None
                if place is not None:
                    found[place[0]] = place[1]
        return found

    def _text_of(self, name: str) -> str:
        """The PTX with a kernel, from the folder that CuTe DSL writes to."""
        for file in sorted(self._folder.rglob("*.ptx")):
            if file not in self._texts:
                self._texts[file] = file.read_text("utf-8").rstrip("\0")
            if f".entry {name}(" in self._texts[file] or f".entry {name}\n" in self._texts[file]:
                return self._texts[file]
        what = f"no PTX in `{self._folder}` has the kernel `{name}`; enter the block before `cutlass.cute` is imported"
        raise Diag.BAD_LAUNCH.error(what=what)

    def _on_tiled(self, map_: int, *fields: Any) -> int:
        return self._encode(tiled_fields, map_, *fields)

    def _on_im2col(self, map_: int, *fields: Any) -> int:
        return self._encode(im2col_fields, map_, *fields)

    def _encode(self, fields_of: Callable[..., dict[str, Any]], map_: int, *given: Any) -> int:
        """Write the 128 bytes of a tensor map; the status."""
        type_, rank, address, *more = given
        try:
            start, memory = self._known(address)
            made = TensorMap(memory, offset=address - start, **fields_of(type_, rank, *more))
            ctypes.memmove(map_, encode(made, start), MAP_BYTES)
        except BaseException as error:  # noqa: BLE001  no exception passes through compiled code
            self._error = self._error or error
            return _FAILED
        return _SUCCESS

    def _known(self, address: int) -> tuple[int, Bytes]:
        place = self.memory.at(address)
        if place is None:
            what = f"a tensor map begins at {address:#x}, which is in no known array; `Session.hold(array)` names one"
            raise Diag.BAD_LAUNCH.error(what=what)
        return place

    def _on_attribute(self, attribute: int) -> int:
        hardware = self.options.hardware
        major, minor = self.options.capability
        known = {
            _SM_COUNT: self.options.sm_count, _MAJOR: major, _MINOR: minor, _THREADS: hardware.threads_per_sm,
            _SHARED: hardware.shared_per_block,
        }  # fmt: skip
        return known.get(attribute, 0)

    def _on_unsupported(self, name: bytes) -> None:
        called = name.decode().lstrip("_")
        self._error = self._error or Diag.NOT_MODELLED.error(what=f"`{called}`, which the program calls,")


def _cluster(attributes: Sequence[bytes]) -> Triple:
    for raw in attributes:
        number, x, y, z = struct.unpack("<I4x3I4x", raw)
        if number == _CLUSTER:
            return x, y, z
    return 1, 1, 1


def _set(settings: dict[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _tensors_on_host(options: Options) -> Iterator[None]:
    """Map `device="cuda"` to the host, and answer `torch.cuda`, as for Triton's programs; nothing without PyTorch."""
    try:
        from warploom.triton.cuda_queries import answer
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        yield
        return
    from warploom.triton.host_tensors import HostTensors
    from warploom.triton.options import Options as GpuOptions
    from warploom.triton.patches import Patches
    from warploom.triton.storages import Addresses

    patches = Patches()
    try:
        answer(patches, GpuOptions(target=options.target, sms=options.sms))
        with HostTensors(Addresses()):
            yield
    finally:
        patches.restore()
