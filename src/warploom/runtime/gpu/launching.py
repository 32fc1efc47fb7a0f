"""Launches on a GPU: state that launches of one kernel and shape share is made once, arguments each time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.arrays import Pointers, is_array, start_of
from warploom.host.launch import Launch, Triple
from warploom.host.structs import Struct
from warploom.host.structs import check_room as room_for_struct
from warploom.host.tensor_map import TensorMap
from warploom.ptx.analysis.storage import parameter_offsets, scalar_bytes, size_of
from warploom.ptx.syntax.model import Variable
from warploom.runtime.gpu.driver import Device, current_stream, device_count, device_of, lost_context
from warploom.runtime.gpu.hangs import Watch, default_timeout
from warploom.runtime.gpu.loading import Configuration, Loaded, configuration, load
from warploom.runtime.gpu.tensor_map_encoding import template_of
from warploom.runtime.gpu.workspace import Block, holding, is_captured

POINTER_BYTES = 8
_MOST_SHAPES = 256
_SHAPES: dict[Any, tuple[object, Shaped]] = {}
"""Shapes by everything they depend on; programs that are identified by `id` are kept alive."""


class Shaped:
    """A kernel on a GPU and the shape of its launches: all of a launch but its arguments."""

    def __init__(self, launch: Launch, device: Device, seconds: float | None) -> None:
        self.device = device
        self._watch = Watch(launch, device, seconds) if seconds else None
        self.further = () if self._watch is None else (self._watch.address,)
        """Arguments after the caller's."""
        program = launch.program if self._watch is None else self._watch.program
        self.loaded: Loaded = load(program, launch.entry, device)
        self.loaded.allow(launch.shared_bytes, launch.cluster)
        self._offsets, self._size = parameter_offsets(self.loaded.kernel)
        self._params = tuple(zip(self.loaded.kernel.params, self._offsets, strict=True))
        self._bytes = ctypes.c_uint8 * max(self._size, 1)  # else ctypes makes the type each time
        self._pointers = ctypes.c_void_p * max(len(self._offsets), 1)
        self._launch = replace(launch, args=())  # does not keep arrays alive
        self._configurations: dict[int, Configuration] = {}
        self.go = device.driver.library.cuLaunchKernelEx
        self._many_gpus = device_count() > 1
        self.is_simple = self._watch is None and not self._many_gpus
        """True if a launch is one call of the driver: no bounded waits, and no other GPU whose context is current."""
        self.stream = current_stream(device)

    def resized(self, grid: Triple) -> Shaped:
        """Return the same kernel with another grid."""
        made = copy(self)
        made.set_grid(grid)
        return made

    def set_grid(self, grid: Triple) -> None:
        """Change the grid, before the first launch."""
        self._launch, self._configurations = replace(self._launch, grid=grid), {}

    @property
    def params(self) -> tuple[tuple[Variable, int], ...]:
        """The kernel's parameters, each with its offset."""
        return self._params

    @property
    def grid(self) -> Triple:
        return self._launch.grid

    def filled(self, args: tuple[Any, ...], encode: Callable[[Variable, Any, int], bytes]) -> bytearray:
        """Return the parameters of a launch: each argument as `encode` converts it."""
        if len(args) != len(self._params):
            what = f"`{self.loaded.kernel.name}` takes {len(self._params)} arguments; {len(args)} were given"
            raise Diag.BAD_LAUNCH.error(what=what)
        parameters, problems = bytearray(max(self._size, 1)), []
        for number, ((param, at), arg) in enumerate(zip(self._params, args, strict=True)):
            try:
                raw = encode(param, arg, at)
            except WarploomError:
                raise
            except (ValueError, OverflowError, TypeError) as error:
                problems.append(f"argument {number} ({arg!r:.60}) does not fit .{param.type} {param.name}: {error}")
                continue
            parameters[at : at + len(raw)] = raw
        if problems:
            raise Diag.BAD_LAUNCH.error(notes=problems, what=f"{len(problems)} problem(s)")
        return parameters

    def encoded(self, param: Variable, arg: Any, at: int) -> bytes:
        """Encode an argument that does not change."""
        if isinstance(arg, Struct):
            room_for_struct(size_of(param), arg)
            return arg.encoded(lambda part, _: self._part(part))
        if isinstance(arg, TensorMap):
            check_room(param, is_map=True)
            return self._part(arg)
        if not is_array(arg):
            if isinstance(arg, Pointers):
                raise TypeError("a prepared call takes a tensor of the addresses in its place")
            return scalar_bytes(param, arg)
        check_room(param, is_map=False)
        return self._part(arg)

    def _part(self, arg: Any) -> bytes:
        """A tensor map, or the address of an array, as bytes."""
        if isinstance(arg, TensorMap):
            return template_of(arg).at(self.device.driver, start_of(arg.array) + arg.offset)
        if isinstance(arg, Pointers):
            raise TypeError("on a GPU, a structure takes a tensor of the addresses in place of `Pointers`")
        return start_of(arg).to_bytes(POINTER_BYTES, "little")

    def record(self, parameters: bytearray, stream: int, owners: object = ()) -> tuple[Any, ...]:
        """Return the arguments of the driver's launch; they keep the parameters and their memory alive."""
        held = self._bytes.from_buffer(parameters)
        start = ctypes.addressof(held)
        pointers: Any = self._pointers(*[start + each for each in self._offsets])
        pointers.held = (held, owners)
        shape = self._configurations.get(stream)
        if shape is None:
            shape = self._configurations[stream] = configuration(self._launch, stream)
        return ctypes.byref(shape), self.loaded.function, pointers, None

    def begin(self, record: tuple[Any, ...], stream: int) -> None:
        """Launch; with bounded waits, wait for its end."""
        if self._many_gpus:
            with self.device.current():
                status = self.go(*record)
        else:
            status = self.go(*record)
        if status:
            self.again(status, record)
        if self._watch is not None and not is_captured(self.device, stream):
            self._watch.check(stream)

    def again(self, status: int, record: tuple[Any, ...]) -> None:
        """Give a context to a thread that never used CUDA; any other status is an error."""
        if lost_context(status):
            self.device.make_current()
            status = self.go(*record)
        if status:
            raise self.device.driver.refusal(status, f"to launch `{self.loaded.kernel.name}`")


def check_room(param: Variable, *, is_map: bool) -> None:
    """Return True if a parameter is as large as a tensor map, or as a pointer."""
    if (param.type, param.count) == (("b8", MAP_BYTES) if is_map else ("u64", None)):
        return
    if size_of(param) != (MAP_BYTES if is_map else POINTER_BYTES):
        takes = f"a tensor map takes {MAP_BYTES} bytes" if is_map else "an array is passed as a 64-bit pointer"
        raise ValueError(f"on a GPU {takes}; the parameter has {size_of(param)}")


@dataclass(slots=True)
class Begun:
    """A launch that was made: while its arrays keep their addresses, it is repeated with the same parameters."""

    shaped: Shaped
    seconds: float | None
    parameters: bytearray
    addresses: list[Callable[[], int]]
    """Functions that return the address of each array."""
    places: list[int]
    addressed: list[Block]
    """Addresses that arguments point to, in memory of one stream; with any, a launch is not repeated."""
    records: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def again(self, stream: Any, seconds: float | None) -> bool:
        """Repeat the launch if nothing has changed; return False if an option or an address differs."""
        if self.addressed or (seconds or default_timeout()) != self.seconds:
            return False
        if [address() for address in self.addresses] != self.places:
            return False
        self.begin(stream)
        return True

    def begin(self, stream: Any) -> None:
        """Launch on a stream, by default PyTorch's current one."""
        shaped = self.shaped
        handle = shaped.stream() if stream is None else shaped.device.stream(stream)
        record = self.records.get(handle)
        if record is None:
            record = self.records[handle] = shaped.record(self.parameters, handle, self.addressed)
        shaped.begin(record, handle)


def begin(
    launch: Launch,
    arrays: Sequence[tuple[str, Any]],
    stream: Any,
    seconds: float | None,
    verify: Callable[[Launch], None],
) -> Begun:
    """Launch on the GPU of the arrays, which come with their devices; `verify` checks a new shape."""
    seconds = seconds or default_timeout()
    shaped = _shaped(launch, device_for(arrays), seconds, verify)
    addresses = [_address_of(array) for _, array in arrays]
    places = [address() for address in addresses]
    addressed: list[Block] = []
    encode = partial(_encoded, shaped, stream, addressed)
    parameters = shaped.filled((*launch.args, *shaped.further), encode)
    begun = Begun(shaped, seconds, parameters, addresses, places, addressed)
    begun.begin(stream)
    return begun


def _encoded(shaped: Shaped, stream: Any, addressed: list[Block], param: Variable, arg: Any, at: int) -> bytes:
    """Return an argument of one launch; the addresses of `Pointers` get memory of its stream."""
    if not isinstance(arg, Pointers):
        return shaped.encoded(param, arg, at)
    check_room(param, is_map=False)
    handle = shaped.stream() if stream is None else shaped.device.stream(stream)
    if is_captured(shaped.device, handle):
        raise ValueError("a graph may outlive it; pass a tensor of the addresses in its place")
    addressed.append(holding(shaped.device, handle, arg.words(lambda _, array: start_of(array))))
    return addressed[-1].address.to_bytes(POINTER_BYTES, "little")


def device_for(arrays: Iterable[tuple[str, Any]]) -> Device:
    """Return the one GPU of arrays, each given with the name of its device."""
    found = {device_of(place, start_of(array)) for place, array in arrays}
    if len(found) != 1:
        names = ", ".join(sorted(f"cuda:{each.index}" for each in found)) or "none"
        raise Diag.BAD_LAUNCH.error(what=f"the arrays of a launch are on one GPU, and these are on {names}")
    return found.pop()


def _address_of(array: Any) -> Callable[[], int]:
    address: Callable[[], int] = array.data_ptr if hasattr(array, "data_ptr") else partial(start_of, array)
    return address


def _shaped(launch: Launch, device: Device, seconds: float | None, verify: Callable[[Launch], None]) -> Shaped:
    program, lasts = launch.program, True
    shape = (launch.grid, launch.block, launch.cluster, launch.shared_bytes, launch.dependent)
    key = (program if isinstance(program, str) else id(program), launch.entry, device, seconds, shape)
    try:
        found = _SHAPES.get(key)
    except TypeError:  # for example a grid that is a list
        found, lasts = None, False
    if found is not None:
        return found[1]
    verify(launch)
    made = Shaped(launch, device, seconds)
    if lasts:
        if len(_SHAPES) >= _MOST_SHAPES:
            _SHAPES.clear()
        _SHAPES[key] = (program, made)
    return made
