"""Prepared calls: a launch whose arrays are exchanged at every call, with as little work as a call can have.

What a call needs of its arrays is their addresses. All that follows from them (parameters, tensor maps, the driver's
structures) is made when a combination of addresses is first seen, and kept.
"""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from warploom.diagnostics import Diag
from warploom.facts.tensor_maps import ADDRESS_ALIGNMENT, MAP_BYTES
from warploom.ptx.arrays import Buffer, Scratch, bounds_of, buffer_of, is_array, start_of
from warploom.ptx.launch import Launch
from warploom.ptx.model import Variable
from warploom.ptx.storage import parameter_offsets, scalar_bytes, size_of
from warploom.ptx.tensor_map import TensorMap
from warploom.runtime.driver import Device, device_count, device_of, lost_context
from warploom.runtime.hangs import Watch
from warploom.runtime.hangs import patience as asked_patience
from warploom.runtime.likeness import Likeness, likeness_of
from warploom.runtime.loading import Configuration, Loaded, configuration, load
from warploom.runtime.scratch import (
    Block,
    allocated,
    graph_of,
    is_captured,
    is_captured_by_torch,
    workspace,
    zero_for_a_graph,
)
from warploom.runtime.tensor_map_encoding import MapTemplate, template_of

_MOST_RECORDS = 4096
_POINTER = 8
_OWN_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an exchanged array's address goes: into which bytes of the parameters, as a pointer or inside a map."""

    at: int
    slot: int
    offset: int
    template: MapTemplate | None


@dataclass(frozen=True, slots=True)
class _Slot:
    """An array that calls exchange, as it was when the call was prepared."""

    buffer: Buffer
    start: int
    bounds: range

    def holds(self, address: int) -> bool:
        return self.start <= address < self.start + max(self.buffer.span, 1)

    def bounds_at(self, address: int) -> range:
        """Where its elements lie if the first of them is there."""
        by = address - self.start
        return range(self.bounds.start + by, self.bounds.stop + by)


@dataclass(frozen=True, slots=True)
class _Own:
    """Memory of the launch's own: where its pointer goes, and where it lies in the workspace or among the zeros."""

    at: int
    offset: int
    starts_at_zero: bool


@dataclass(frozen=True, slots=True)
class Apart:
    """Two arrays of a call, by their numbers, that have no memory in common, unless they are and may be one."""

    written: int
    read: int
    may_be_one: bool


class Prepared:
    """A launch on a GPU; `prepared(*arrays)` runs it with other arrays in the place of those it was made with.

    The arrays it was made with may be NumPy's: they then only stand for GPU arrays of that type, shape and strides.
    With `patience` (seconds; the environment's WARPLOOM_PATIENCE unless told) waits are bounded, each call waits for
    its end, and a wait that runs out is a DEADLOCK error.
    """

    def __init__(
        self,
        launch: Launch,
        arrays: Sequence[Any] = (),
        *,
        device: Device | None = None,
        patience: float | None = None,
        apart: Sequence[Apart] = (),
    ) -> None:
        self._slots = tuple(_Slot(buffer_of(array), start_of(array), bounds_of(array)) for array in arrays)
        self._apart = tuple(apart)
        self.device = device or _device(launch, arrays)
        patience = patience or asked_patience()
        self._watch = Watch(launch, self.device, patience) if patience else None
        if self._watch is not None:
            launch = replace(launch, program=self._watch.program, args=(*launch.args, self._watch.address))
        self.launch = launch
        self.loaded: Loaded = load(launch.program, launch.entry, self.device)
        self.loaded.allow(launch.shared_bytes, launch.cluster)
        self._held: list[Any] = []
        self._places: list[_Place] = []
        self._own: list[_Own] = []
        self._own_bytes = {False: 0, True: 0}
        self._offsets, size = parameter_offsets(self.loaded.kernel)
        self._template = bytearray(max(size, 1))
        self._fill(arrays)
        self._counters: dict[tuple[int, int | None], Block] = {}
        """What starts at zero, by stream, and by the graph that it was captured into."""
        self._configurations: dict[int, Configuration] = {}
        self._records: defaultdict[int, dict[tuple[int, ...], tuple[Any, ...]]] = defaultdict(dict)
        """What the driver takes, by stream and addresses."""
        self._go = self.device.driver.library.cuLaunchKernelEx
        self._stream = current_stream(self.device)
        self._many_gpus = device_count() > 1
        self._is_known: Likeness = likeness_of(())
        """Whether arrays are like the last that were checked: then they need no second look."""

    @property
    def count(self) -> int:
        """How many arrays a call takes."""
        return len(self._slots)

    def __call__(self, *arrays: Any, stream: Any = None) -> None:
        """Launch on a stream, PyTorch's current one unless told; returns without waiting."""
        try:
            is_known = self._is_known(*arrays)
        except TypeError:  # there are more or fewer, or they are no tensors
            is_known = False
        addresses = tuple([array.data_ptr() for array in arrays]) if is_known else self._check(arrays)
        self.launch_at(addresses, self._stream() if stream is None else self.device.stream(stream))

    def launch_at(self, addresses: tuple[int, ...], stream: int) -> None:
        """Launch on arrays of which only the addresses are told: their types, shapes and strides must be right."""
        record = self._records[stream].get(addresses)
        if record is None or (self._own and is_captured(self.device, stream)):
            record = self._record(addresses, stream)
        if self._many_gpus:
            with self.device.current():
                status = self._go(*record)
        else:
            status = self._go(*record)
        if status:
            self._again(status, record)
        if self._watch is not None and not is_captured(self.device, stream):
            self._watch.check(stream)

    def _again(self, status: int, record: tuple[Any, ...]) -> None:
        """A thread that never used CUDA has no context: give it one. Anything else is an error."""
        if lost_context(status):
            self.device.make_current()
            status = self._go(*record)
        if status:
            raise self.device.driver.refusal(status, f"to launch `{self.loaded.kernel.name}`")

    def _check(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """All that is wrong with the arrays of a call; their addresses where nothing is."""
        faults: list[str] = []
        if len(arrays) != len(self._slots):
            faults.append(f"{len(arrays)} arrays were given, it takes {len(self._slots)}")
        buffers = [buffer_of(array) for array in arrays]
        for number, (given, slot) in enumerate(zip(buffers, self._slots, strict=False)):
            faults += [f"array {number}: {fault}" for fault in _differences(given, slot.buffer)]
            if given.device not in ("cuda", f"cuda:{self.device.index}"):
                faults.append(f"array {number}: it is on {given.device}, not on cuda:{self.device.index}")
        if faults:
            raise Diag.BAD_PLAN.error(notes=faults[1:], count=len(faults), what=faults[0])
        self._is_known = likeness_of(arrays)
        return tuple(buffer.address for buffer in buffers)

    def _record(self, addresses: tuple[int, ...], stream: int) -> tuple[Any, ...]:
        """The arguments of the driver's launch for a combination of addresses."""
        for number, (address, slot) in enumerate(zip(addresses, self._slots, strict=True)):
            if (address - slot.buffer.address) % ADDRESS_ALIGNMENT:
                what = f"array {number}: its address {address:#x} is not aligned as that of the array it stands for"
                raise Diag.BAD_PLAN.error(count=1, what=what)
        self._check_apart(addresses)
        parameters = (ctypes.c_uint8 * len(self._template)).from_buffer_copy(self._template)
        start = ctypes.addressof(parameters)
        for place in self._places:
            address = addresses[place.slot] + place.offset
            raw = place.template.at(self.device.driver, address) if place.template else address.to_bytes(8, "little")
            ctypes.memmove(start + place.at, raw, len(raw))
        captured = bool(self._own) and is_captured(self.device, stream)
        owners = self._place_own(start, stream, captured) if self._own else ()
        pointers: Any = (ctypes.c_void_p * max(len(self._offsets), 1))(*(start + offset for offset in self._offsets))
        pointers.held = (parameters, owners)
        shape = self._configurations.get(stream)
        if shape is None:
            shape = self._configurations[stream] = configuration(self.launch, stream)
        record = (ctypes.byref(shape), self.loaded.function, pointers, None)
        if not captured:
            records = self._records[stream]
            if len(records) >= _MOST_RECORDS:
                records.clear()
            records[addresses] = record
        elif not is_captured_by_torch():
            self._held.append(owners)
        return record

    def _check_apart(self, addresses: tuple[int, ...]) -> None:
        """Whether what is written is where something else is still to be read."""
        bounds = [slot.bounds_at(address) for slot, address in zip(self._slots, addresses, strict=True)]
        for pair in self._apart:
            written, read = bounds[pair.written], bounds[pair.read]
            if max(written.start, read.start) < min(written.stop, read.stop) and not (
                pair.may_be_one and written == read
            ):
                what = f"array {pair.written}, which is written, overlaps array {pair.read}"
                raise Diag.BAD_PLAN.error(count=1, what=what)

    def _place_own(self, start: int, stream: int, captured: bool) -> tuple[Block, ...]:
        """Write pointers to the launch's own memory; in a graph it is the graph's."""
        size, zeroed = self._own_bytes[False], self._own_bytes[True]
        blocks: dict[bool, Block] = {}
        if size:
            make = partial(allocated, zero=False) if captured else workspace
            blocks[False] = make(self.device, stream, size)
        if zeroed:
            blocks[True] = self._zeros(stream, zeroed, captured)
        for own in self._own:
            raw = (blocks[own.starts_at_zero].address + own.offset).to_bytes(_POINTER, "little")
            ctypes.memmove(start + own.at, raw, _POINTER)
        return tuple(blocks.values())

    def _zeros(self, stream: int, size: int, captured: bool) -> Block:
        """What started at zero, for all launches of a stream, or of one that go into the same graph."""
        key = (stream, graph_of(self.device, stream) if captured else None)
        found = self._counters.get(key)
        if found is None:
            found = zero_for_a_graph(self.device, size) if captured else allocated(self.device, stream, size, zero=True)
            self._counters[key] = found
        return found

    def _fill(self, arrays: Sequence[Any]) -> None:
        """The parameters that stay, and where those go that do not."""
        kernel, args = self.loaded.kernel, self.launch.args
        if len(args) != len(kernel.params):
            what = f"`{kernel.name}` takes {len(kernel.params)} arguments; {len(args)} were given"
            raise Diag.BAD_LAUNCH.error(what=what)
        problems = []
        for number, (param, arg, at) in enumerate(zip(kernel.params, args, self._offsets, strict=True)):
            try:
                raw = self._argument(param, arg, at, arrays)
            except (ValueError, OverflowError, TypeError) as error:
                problems.append(f"argument {number} ({arg!r:.60}) does not fit .{param.type} {param.name}: {error}")
                continue
            self._template[at : at + len(raw)] = raw
        if problems:
            raise Diag.BAD_LAUNCH.error(notes=problems, what=f"{len(problems)} problem(s)")

    def _argument(self, param: Variable, arg: Any, at: int, arrays: Sequence[Any]) -> bytes:
        """The bytes of an argument that stays; nothing, and a place, for one that is exchanged."""
        if not isinstance(arg, TensorMap) and not is_array(arg):
            return scalar_bytes(param, arg)
        template = template_of(arg) if isinstance(arg, TensorMap) else None
        array = arg.array if isinstance(arg, TensorMap) else arg
        if size_of(param) != (MAP_BYTES if template else _POINTER):
            takes = f"a tensor map takes {MAP_BYTES} bytes" if template else "an array is passed as a 64-bit pointer"
            raise ValueError(f"on a GPU {takes}; the parameter has {size_of(param)}")
        if isinstance(array, Scratch):
            if template is not None:
                raise ValueError("a launch's own memory has no tensor map")
            zero = array.starts_at_zero
            self._own.append(_Own(at, self._own_bytes[zero], zero))
            self._own_bytes[zero] += -(-array.nbytes // _OWN_ALIGNMENT) * _OWN_ALIGNMENT
            return b""
        address = start_of(array) + (arg.offset if isinstance(arg, TensorMap) else 0)
        slot = self._slot(array, address, arrays)
        if slot is not None:
            self._places.append(_Place(at, slot, address - self._slots[slot].start, template))
            return b""
        if not buffer_of(array).is_on_gpu:
            raise ValueError("it lies on the host, and is none of the arrays that calls exchange")
        self._held.append(array)
        return template.at(self.device.driver, address) if template else address.to_bytes(_POINTER, "little")

    def _slot(self, array: Any, address: int, arrays: Sequence[Any]) -> int | None:
        """Which exchanged array an argument is, or is a part of."""
        found = [number for number, each in enumerate(arrays) if each is array]
        found = found or [number for number, slot in enumerate(self._slots) if slot.holds(address)]
        if len(found) > 1:
            raise ValueError(f"it is part of {len(found)} of the arrays that calls exchange")
        return found[0] if found else None


def exchanged(launch: Launch, arrays: Sequence[Any]) -> set[int]:
    """Which of the arrays a launch passes on: not those that it got as a copy, or does not read."""
    starts = [(start_of(array), max(buffer_of(array).span, 1)) for array in arrays]
    passed = [arg.array if isinstance(arg, TensorMap) else arg for arg in launch.args]
    found = {start_of(array) for array in passed if is_array(array)}
    return {
        number for number, (start, span) in enumerate(starts) if any(start <= each < start + span for each in found)
    }


def _differences(given: Buffer, wanted: Buffer) -> list[str]:
    pairs = (
        ("dtype", given.dtype, wanted.dtype),
        ("shape", given.shape, wanted.shape),
        ("strides in bytes", _steps(given), _steps(wanted)),
    )
    return [f"its {what} {have} should be {want}" for what, have, want in pairs if have != want]


def _steps(buffer: Buffer) -> tuple[int, ...]:
    """The strides of axes along which anyone steps."""
    return tuple(stride for extent, stride in zip(buffer.shape, buffer.strides, strict=True) if extent > 1)


def _device(launch: Launch, arrays: Sequence[Any]) -> Device:
    """The one GPU on which all arrays are."""
    held = [arg.array if isinstance(arg, TensorMap) else arg for arg in launch.args]
    buffers = [buffer_of(array) for array in (*arrays, *held) if is_array(array)]
    found = {device_of(buffer.device, buffer.address) for buffer in buffers if buffer.is_on_gpu}
    if len(found) != 1:
        names = ", ".join(sorted(f"cuda:{each.index}" for each in found)) or "none"
        raise Diag.BAD_LAUNCH.error(what=f"the arrays of a launch are on one GPU, and these are on {names}")
    return found.pop()


def current_stream(device: Device) -> Callable[[], int]:
    """What tells PyTorch's current stream of a GPU fastest; the default stream where PyTorch is not used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return device.stream
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001  what compiled PyTorch code calls too
    return partial(raw, device.index) if raw else device.stream
