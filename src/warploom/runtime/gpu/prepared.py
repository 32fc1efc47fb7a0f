"""Prepared calls: a launch whose arrays are exchanged at every call, with as little work per call as possible.

A call needs only the addresses of its arrays. Everything that depends on them (parameters, tensor maps, the driver's
structures) is made when a combination of addresses is first seen, and cached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from warploom.diagnostics import Diag, WarploomError, hide_library_frames
from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.host.arrays import Buffer, Scratch, buffer_of, is_array, may_share, place_of, start_of
from warploom.host.launch import Launch, Triple
from warploom.host.structs import Struct
from warploom.host.tensor_map import TensorMap
from warploom.ptx.analysis.storage import scalar_bytes
from warploom.ptx.syntax.model import Variable
from warploom.runtime.gpu.driver import Device
from warploom.runtime.gpu.hangs import default_timeout
from warploom.runtime.gpu.launching import POINTER_BYTES, Shaped, check_room, device_for
from warploom.runtime.gpu.tensor_map_encoding import MapTemplate, template_of
from warploom.runtime.gpu.tensor_signature import Likeness, likeness_of
from warploom.runtime.gpu.workspace import (
    HOLDERS,
    Block,
    allocated,
    graph_of,
    is_captured,
    is_captured_by_torch,
    workspace,
    zero_for_a_graph,
)

_MOST_RECORDS = 4096
_OWN_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class _Place:
    """The destination of an exchanged array's address: bytes of the parameters, as a pointer or inside a tensor map."""

    at: int
    slot: int
    offset: int
    template: MapTemplate | None


@dataclass(frozen=True, slots=True)
class _Slot:
    """An array that calls exchange, as it was when the call was prepared."""

    buffer: Buffer
    start: int

    def holds(self, address: int) -> bool:
        return self.start <= address < self.start + max(self.buffer.span, 1)


@dataclass(frozen=True, slots=True)
class _Own:
    """Memory that the launch needs itself: the place of its pointer, its offset in the workspace or zeroed memory."""

    at: int
    offset: int
    starts_at_zero: bool


@dataclass(frozen=True, slots=True)
class Apart:
    """Two arrays of a call, by number, that must not overlap, unless they are identical and may be."""

    written: int
    read: int
    may_be_one: bool


class Prepared:
    """A launch on a GPU; `prepared(*arrays)` runs it with other arrays in the place of those it was made with.

    The arrays it was made with may be NumPy arrays: they then only describe GPU arrays of that type, shape and strides.
    With `timeout` (seconds; by default WARPLOOM_TIMEOUT of the environment) waits are bounded, each call waits for
    its end, and a wait that times out is a DEADLOCK error.
    """

    def __init__(
        self,
        launch: Launch,
        arrays: Sequence[Any] = (),
        *,
        device: Device | None = None,
        timeout: float | None = None,
        apart: Sequence[Apart] = (),
    ) -> None:
        self._slots = tuple(_Slot(buffer_of(array), start_of(array)) for array in arrays)
        self._apart = tuple(apart)
        self.device = device or _device(launch, arrays)
        self._shaped = Shaped(launch, self.device, timeout or default_timeout())
        self.loaded = self._shaped.loaded
        self._held: list[Any] = []
        self._places: list[_Place] = []
        self._own: list[_Own] = []
        self._own_bytes = {False: 0, True: 0}
        self._template = self._shaped.filled((*launch.args, *self._shaped.further), partial(self._argument, arrays))
        self._counters: dict[tuple[int, int | None], Block] = {}
        """Memory that starts at zero, by stream, and by the graph that it was captured into."""
        self._records: defaultdict[int, dict[tuple[int, ...], tuple[Any, ...]]] = defaultdict(dict)
        """Arguments of the driver's launch, by stream and addresses."""
        if self._own:
            HOLDERS.add(self)
        self._stream, self._again = self._shaped.stream, self._shaped.again
        self._go = self._shaped.go if self._shaped.is_simple else None
        self._is_known: Likeness = likeness_of(())
        """Recognises arrays like the last ones that were checked, which need no second check."""

    def resized(
        self, rows: int, of_rows: Collection[int], grid: Triple, scalars: Mapping[int, int], scratch: Sequence[Scratch]
    ) -> Prepared:
        """Return the same call on arrays with another number of rows: `of_rows` are the arrays whose first axis it is.

        `scalars` are other values of integer parameters, by position, and `scratch` the launch's own memory, in order.
        Nothing is verified: the caller knows that the kernel takes these values.
        """
        made = copy(self)
        made.resize(rows, of_rows, grid, scalars, scratch)
        return made

    def resize(
        self, rows: int, of_rows: Collection[int], grid: Triple, scalars: Mapping[int, int], scratch: Sequence[Scratch]
    ) -> None:
        """Change the number of rows, before the first launch; see `resized`. Nothing is shared with the original."""
        self._shaped = self._shaped.resized(grid)
        self._stream, self._again, self._is_known = self._shaped.stream, self._shaped.again, likeness_of(())
        self._go = self._shaped.go if self._shaped.is_simple else None
        self._slots = tuple(
            _Slot(_with_rows(each.buffer, rows), each.start) if at in of_rows else each
            for at, each in enumerate(self._slots)
        )
        self._template = bytearray(self._template)
        for position, value in scalars.items():
            param, at = self._shaped.params[position]
            raw = scalar_bytes(param, value)
            self._template[at : at + len(raw)] = raw
        self._places = [
            replace(each, template=each.template.resized(rows)) if each.template and each.slot in of_rows else each
            for each in self._places
        ]
        own, self._own, self._own_bytes = self._own, [], {False: 0, True: 0}
        for each, array in zip(own, scratch, strict=True):
            self._add_own(each.at, array)
        self._held, self._counters, self._records = [], {}, defaultdict(dict)
        if self._own:
            HOLDERS.add(self)

    def signature(self) -> tuple[object, ...]:
        """Return all that a launch depends on but the addresses: equal for calls that launch in the same way."""
        slots = [(each.buffer.shape, each.buffer.strides) for each in self._slots]
        own = (self._own, self._own_bytes)
        return id(self.loaded), self._shaped.grid, slots, self._template, self._places, *own

    @property
    def count(self) -> int:
        """The number of arrays that a call takes."""
        return len(self._slots)

    def __call__(self, *arrays: Any, stream: Any = None) -> None:
        """Launch on a stream, by default PyTorch's current one; returns without waiting."""
        try:
            try:
                is_known = self._is_known(*arrays)
            except TypeError:  # another number of arrays, or not tensors
                is_known = False
            # Written out because it is measurable: no comprehension for few arrays, and the lines of `launch_at`.
            if not is_known:
                addresses = self._check(arrays)
            elif len(arrays) == 3:
                a, b, c = arrays
                addresses = (a.data_ptr(), b.data_ptr(), c.data_ptr())
            elif len(arrays) == 2:
                a, b = arrays
                addresses = (a.data_ptr(), b.data_ptr())
            else:
                addresses = tuple([array.data_ptr() for array in arrays])
            handle = self._stream() if stream is None else self.device.stream(stream)
            record = self._records[handle].get(addresses)
            if record is None or self._go is None or self._own:
                self.launch_at(addresses, handle)
            elif status := self._go(*record):
                self._again(status, record)
        except WarploomError as error:
            hide_library_frames(error)
            raise

    def launch_at(self, addresses: tuple[int, ...], stream: int) -> None:
        """Launch on arrays given by their addresses; their types, shapes and strides must be right."""
        record = self._records[stream].get(addresses)
        if record is None or (self._own and is_captured(self.device, stream)):
            record = self._record(addresses, stream)
        if self._go is None:
            self._shaped.begin(record, stream)
        elif status := self._go(*record):
            self._again(status, record)

    def _check(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Return the addresses of a call's arrays, or raise everything that is wrong with them."""
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
        """Return the arguments of the driver's launch for a combination of addresses."""
        for number, (address, slot) in enumerate(zip(addresses, self._slots, strict=True)):
            if (address - slot.buffer.address) % ADDRESS_ALIGNMENT:
                what = f"array {number}: its address {address:#x} is not aligned like the array it was prepared with"
                raise Diag.BAD_PLAN.error(count=1, what=what)
        self._check_apart(addresses)
        parameters = bytearray(self._template)
        for place in self._places:
            address = addresses[place.slot] + place.offset
            raw = place.template.at(self.device.driver, address) if place.template else _pointer(address)
            parameters[place.at : place.at + len(raw)] = raw
        captured = bool(self._own) and is_captured(self.device, stream)
        owners = self._place_own(parameters, stream, captured) if self._own else ()
        record = self._shaped.record(parameters, stream, owners)
        if not captured:
            records = self._records[stream]
            if len(records) >= _MOST_RECORDS:
                records.clear()
            records[addresses] = record
        elif not is_captured_by_torch():
            self._held.append(owners)
        return record

    def _check_apart(self, addresses: tuple[int, ...]) -> None:
        """Check that no output overlaps an input that is still to be read."""
        for pair in self._apart:
            written, read = addresses[pair.written], addresses[pair.read]
            shares = may_share(self._slots[pair.written].buffer, written, self._slots[pair.read].buffer, read)
            if shares and not (pair.may_be_one and written == read):
                what = f"array {pair.written}, which is written, overlaps array {pair.read}"
                raise Diag.BAD_PLAN.error(count=1, what=what)

    def release(self, device: Device, stream: int) -> None:
        """Forget the records of a stream, and the memory that they hold."""
        if device is self.device:
            self._records.pop(stream, None)
            self._counters.pop((stream, None), None)

    def _place_own(self, parameters: bytearray, stream: int, captured: bool) -> tuple[Block, ...]:
        """Write the pointers to the launch's own memory; in a graph it belongs to the graph."""
        size, zeroed = self._own_bytes[False], self._own_bytes[True]
        blocks: dict[bool, Block] = {}
        if size:
            make = partial(allocated, zero=False) if captured else workspace
            blocks[False] = make(self.device, stream, size)
        if zeroed:
            blocks[True] = self._zeros(stream, zeroed, captured)
        for own in self._own:
            raw = _pointer(blocks[own.starts_at_zero].address + own.offset)
            parameters[own.at : own.at + len(raw)] = raw
        return tuple(blocks.values())

    def _zeros(self, stream: int, size: int, captured: bool) -> Block:
        """Return the memory that starts at zero, for all launches of a stream, or of one graph."""
        key = (stream, graph_of(self.device, stream) if captured else None)
        found = self._counters.get(key)
        if found is None:
            found = zero_for_a_graph(self.device, size) if captured else allocated(self.device, stream, size, zero=True)
            self._counters[key] = found
        return found

    def _argument(self, arrays: Sequence[Any], param: Variable, arg: Any, at: int) -> bytes:
        """Return the bytes of a fixed argument; for an exchanged one nothing, and record its place."""
        array = arg.array if isinstance(arg, TensorMap) else arg
        if isinstance(arg, Struct) and any(arg.arrays()):
            raise TypeError("a prepared call cannot exchange the addresses in a structure; use `launch`")
        if not is_array(array):
            return self._shaped.encoded(param, arg, at)
        check_room(param, is_map=array is not arg)
        if isinstance(array, Scratch):
            if array is not arg:
                raise ValueError("a launch's own memory has no tensor map")
            self._add_own(at, array)
            return b""
        address = start_of(array) + (arg.offset if isinstance(arg, TensorMap) else 0)
        slot = self._slot(array, address, arrays)
        if slot is None:
            if not place_of(array).startswith("cuda"):
                raise ValueError("it lies on the host, and is none of the arrays that calls exchange")
            self._held.append(array)
            return self._shaped.encoded(param, arg, at)
        template = template_of(arg) if isinstance(arg, TensorMap) else None
        self._places.append(_Place(at, slot, address - self._slots[slot].start, template))
        return b""

    def _add_own(self, at: int, array: Scratch) -> None:
        """Reserve memory of the launch's own, whose pointer is at an offset of the parameters."""
        zero = array.starts_at_zero
        self._own.append(_Own(at, self._own_bytes[zero], zero))
        self._own_bytes[zero] += -(-array.nbytes // _OWN_ALIGNMENT) * _OWN_ALIGNMENT

    def _slot(self, array: Any, address: int, arrays: Sequence[Any]) -> int | None:
        """Return the exchanged array that an argument is, or is a part of."""
        base = getattr(array, "base", None)
        found = [number for number, each in enumerate(arrays) if each is array]
        found = found or [number for number, each in enumerate(arrays) if each is base]
        found = found or [number for number, slot in enumerate(self._slots) if slot.holds(address)]
        if len(found) > 1:
            raise ValueError(f"it is part of {len(found)} of the arrays that calls exchange")
        return found[0] if found else None


def _with_rows(buffer: Buffer, rows: int) -> Buffer:
    span = buffer.span + (rows - buffer.shape[0]) * buffer.strides[0]
    return buffer._replace(shape=(rows, *buffer.shape[1:]), span=span)


def _pointer(address: int) -> bytes:
    return address.to_bytes(POINTER_BYTES, "little")


def exchanged(launch: Launch) -> list[Any]:
    """The arrays that a launch passes on, directly or by a tensor map."""
    passed = [arg.array if isinstance(arg, TensorMap) else arg for arg in launch.args]
    return [array for array in passed if is_array(array)]


def _differences(given: Buffer, wanted: Buffer) -> list[str]:
    pairs = (
        ("dtype", given.dtype, wanted.dtype),
        ("shape", given.shape, wanted.shape),
        ("strides in bytes", _steps(given), _steps(wanted)),
    )
    return [f"its {what} {have} should be {want}" for what, have, want in pairs if have != want]


def _steps(buffer: Buffer) -> tuple[int, ...]:
    """Return the strides of axes with more than one element."""
    return tuple(stride for extent, stride in zip(buffer.shape, buffer.strides, strict=True) if extent > 1)


def _device(launch: Launch, arrays: Sequence[Any]) -> Device:
    """Return the one GPU of those arrays that are on a GPU."""
    held = [arg.array if isinstance(arg, TensorMap) else arg for arg in launch.args]
    places = [(place_of(array), array) for array in (*arrays, *held) if is_array(array)]
    return device_for(each for each in places if each[0].startswith("cuda"))
