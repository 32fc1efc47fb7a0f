"""`launch`: one call that runs a kernel, with arrays of the host on the machine, with those of a GPU there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np

from warploom.diagnostics import Diag, Fault, WarploomError, user_traceback
from warploom.hardware.targets import Machine
from warploom.hardware.targets import machine as machine_of
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.arrays import Pointers, is_array, numpy_of, place_of
from warploom.host.launch import Launch, Triple, entry_of
from warploom.host.program import Printed, Ptx, text_of
from warploom.host.tensor_map import TensorMap
from warploom.machine import instructions as meanings  # noqa: F401  (fills the registry)
from warploom.machine.copy.tensor_map_bytes import encode as encode_map
from warploom.machine.core.events import Observer
from warploom.machine.core.grid import Grid
from warploom.machine.core.schedule import Schedule, by_name
from warploom.machine.core.setup import MOST_RESIDENT_BYTES, Setup, WarpState, resident_bytes
from warploom.machine.memory.byte_memory import FlatMemory, GlobalMemory, padded
from warploom.machine.memory.static_variables import (
    in_shared_memory,
    is_dynamic_shared,
    map_static,
    on_the_stack,
    static_bytes,
)
from warploom.machine.translate.translator import Program, translate
from warploom.ptx.analysis.storage import parameter_offsets, scalar_bytes, size_of
from warploom.ptx.syntax.model import Kernel, Module, Variable
from warploom.ptx.syntax.parser import parse

_PARAM_BASE = 0x1000_0000
MOST_STATIC_BYTES = 1 << 29
"""What the global and constant variables of a module may take together: a stranger's text cannot fill memory."""


@dataclass(frozen=True)
class Run:
    """What a launch did: instructions by family, bytes moved, what was covered, and how long it took.

    A launch on a GPU is only begun when it returns: `wall_seconds` is what that took, and nothing else is known of it.
    `warps` tells of the first 65,536 warps that ended; a larger grid's others are in the sums only.
    """

    counts: Mapping[str, int]
    bytes_moved: Mapping[str, int]
    coverage: Mapping[str, frozenset[int]]
    wall_seconds: float
    warps: tuple[WarpState, ...] = ()
    schedule: Schedule | None = field(default=None, compare=False, repr=False)
    printed: str = ""
    """What the kernel's `printf` calls wrote; the first mebibyte of it."""

    @property
    def instructions(self) -> int:
        """Warp instructions executed."""
        return sum(self.counts.values())


@user_traceback
def launch(
    program: str | Module | Launch,
    *,
    grid: Triple | None = None,
    block: Triple | None = None,
    cluster: Triple = (1, 1, 1),
    shared_bytes: int = 0,
    args: Iterable[Any] = (),
    entry: str | None = None,
    schedule: str | Schedule = "eager",
    seed: int = 0,
    sms: int | None = None,
    limit: int | None = None,
    observers: Iterable[Observer] = (),
    on_progress: Callable[[int, int], None] | None = None,
    stream: Any = None,
    patience: float | None = None,
) -> Run:
    """Run a kernel; arrays among the arguments are read and written in place.

    `schedule` to `on_progress` are questions to the machine. `stream` is a GPU's: PyTorch's current one unless told.
    `patience` is for a GPU, which does not notice a deadlock as the machine does: after so many seconds a wait is given
    up, and told as the machine tells it.
    """
    start = time.perf_counter()
    if isinstance(program, Launch):
        launch_ = program
    else:
        if grid is None or block is None:
            raise Diag.BAD_LAUNCH.error(what="`grid` and `block` are needed")
        launch_ = Launch(program, grid, block, tuple(args), entry, cluster, shared_bytes)
    watching = tuple(observers)
    asked = watching or seed or sms or limit or on_progress or schedule != "eager"
    if not asked and _is_begun_again(launch_, stream, patience):
        return Run({}, {}, {}, time.perf_counter() - start)
    on_gpu = _arrays_on_gpu(launch_)
    if on_gpu:
        if asked:
            names = ("schedule", "seed", "sms", "limit", "observers", "on_progress")
            given = (schedule != "eager", seed, sms, limit, watching, on_progress)
            _verify(launch_, [name for name, value in zip(names, given, strict=True) if value])
        _begin_on_gpu(launch_, on_gpu, stream, patience)
        return Run({}, {}, {}, time.perf_counter() - start)
    if stream is not None:
        raise Diag.BAD_LAUNCH.error(what="`stream` is a GPU's, and the arguments are on the host")
    try:
        running = Grid(prepare(launch_, by_name(schedule, seed), sms, limit, watching, on_progress))
        start = time.perf_counter()
        try:
            with np.errstate(all="ignore"):
                running.run()
            return _report(running, time.perf_counter() - start)
        except Fault as fault:
            better = _without_dynamic_shared(fault, running.setup)
            if better is None:
                raise
            raise better from None
        finally:
            running.discard()
    except WarploomError:
        raise
    except MemoryError as error:
        raise Diag.OUT_OF_MEMORY.error(what=str(error).rstrip(".") or "an allocation failed") from None


def _without_dynamic_shared(fault: Fault, setup: Setup) -> WarploomError | None:
    """A better error for an access outside shared memory where the launch forgot the kernel's dynamic shared memory."""
    space = str(fault.fields.get("space", ""))
    program = setup.program
    dynamic = [v for v in (*program.module.variables, *program.kernel.variables) if is_dynamic_shared(v)]
    if fault.diag is not Diag.OUT_OF_BOUNDS or "shared" not in space or setup.dynamic_bytes or not dynamic:
        return None
    what = fault.fields["what"]
    return Diag.NO_DYNAMIC_SHARED.error(fault.loc, fault.notes, what=what, space=space, name=dynamic[0].name)


def _arrays_on_gpu(launch_: Launch) -> list[tuple[str, Any]]:
    """The arrays of a launch and their devices, if they are on a GPU; some here and some there is an error."""
    held = [arg.array if isinstance(arg, TensorMap) else arg for arg in launch_.args]
    behind = [(number, arg.arrays) for number, arg in enumerate(held) if isinstance(arg, Pointers)]
    held += [each for _, nested in behind for each in nested]
    arrays = [(place_of(array), array) for array in held if is_array(array)]
    on_gpu = [each for each in arrays if each[0].startswith("cuda")]
    if on_gpu and len(on_gpu) != len(arrays):
        names = [
            *range(len(launch_.args)),
            *(f"{number}[{at}]" for number, nested in behind for at in range(len(nested))),
        ]
        named = zip(names, held, strict=True)
        notes = [f"argument {name} is on {place_of(each)}" for name, each in named if is_array(each)]
        raise Diag.BAD_LAUNCH.error(notes=notes, what="some arrays are on the host and some on a GPU")
    return on_gpu


_BEGUN: dict[int, tuple[ref[Launch], Callable[[Any, float | None], bool]]] = {}
"""What begins a launch on a GPU again, by the identity of the launch, for as long as that lives."""


def _is_begun_again(launch_: Launch, stream: Any, patience: float | None) -> bool:
    """Whether a launch that was begun before could be begun in the same way."""
    of, again = _BEGUN.get(id(launch_), (None, None))
    return of is not None and again is not None and of() is launch_ and again(stream, patience)


def _begin_on_gpu(launch_: Launch, arrays: list[tuple[str, Any]], stream: Any, patience: float | None) -> None:
    from warploom.runtime.gpu.launching import begin

    begun = begin(launch_, arrays, stream, patience, _verify)
    key, table = id(launch_), _BEGUN
    table[key] = (ref(launch_, lambda _: table.pop(key, None)), begun.again)


def _verify(launch_: Launch, questions: Sequence[str] = ()) -> None:
    """Whether a GPU can take the shape of a launch, of which it can be asked nothing."""
    program = launch_.program
    module = program.head if isinstance(program, Printed) else _whole(program)
    kernel = entry_of(module, launch_.entry)
    hardware = machine_of(module.target[0])
    problems = [f"`{name}` is a question to the machine, and the arrays are on a GPU" for name in questions]
    problems += _shape_problems(launch_, kernel, hardware)
    if problems:
        raise Diag.BAD_LAUNCH.error(notes=problems, what=f"{len(problems)} problem(s)")
    shared = [v for v in (*module.variables, *kernel.variables) if v.space == "shared"]
    if (need := in_shared_memory(shared, launch_.shared_bytes)[1]) > hardware.shared_per_block:
        raise Diag.TOO_MUCH_SHARED.error(need=need, have=hardware.shared_per_block, target=hardware.target)


@dataclass
class _Shelf:
    """Things made before, each with its size; the oldest leave when all together outgrow `room`."""

    room: int
    _things: dict[Any, tuple[Any, int]] = field(default_factory=dict)
    _turn: Lock = field(default_factory=Lock)
    """Whose turn it is to change them: threads may launch at the same time."""

    def get(self, key: object) -> Any:
        """What was put under the key, if it is still there."""
        found = self._things.get(key)
        return None if found is None else found[0]

    def put(self, key: object, thing: Any, size: int) -> None:
        with self._turn:
            self._things[key] = (thing, size)
            while len(self._things) > 1 and sum(each for _, each in self._things.values()) > self.room:
                del self._things[next(iter(self._things))]


_MODULES = _Shelf(4 << 20)
"""Modules by their text, in characters."""
_PROGRAMS = _Shelf(1 << 16)
"""Modules with a translated kernel of theirs, in statements, each of which takes one or two kilobytes."""


def _whole(program: Ptx) -> Module:
    """The module of a program, read once."""
    if isinstance(program, Module):
        return program
    text = text_of(program)
    module: Module | None = _MODULES.get(text)
    if module is None:
        module = parse(text)
        _MODULES.put(text, module, len(text))
    return module


def _program(module: Module, kernel: Kernel, lanes_follow_x: bool) -> Program:
    key = (id(module), kernel.name, lanes_follow_x)
    known: tuple[Module, Program] | None = _PROGRAMS.get(key)
    if known is not None:
        return known[1]
    made = translate(module, kernel, lanes_follow_x=lanes_follow_x)
    _PROGRAMS.put(key, (module, made), len(made.kernel.body or ()))
    return made


def prepare(
    launch_: Launch,
    schedule: Schedule,
    sms: int | None,
    limit: int | None,
    observers: tuple[Observer, ...],
    on_progress: Callable[[int, int], None] | None,
) -> Setup:
    """Verify a launch as a whole and lay out its memories; nothing is run or written."""
    module = _whole(launch_.program)
    kernel = entry_of(module, launch_.entry)
    hardware = machine_of(module.target[0])
    problems = _shape_problems(launch_, kernel, hardware)
    program = _program(module, kernel, launch_.block[0] % 32 == 0 or launch_.block[1] == launch_.block[2] == 1)
    own = {variable.name for variable in (*kernel.params, *program.kernel.variables)}
    shared = [v for v in module.variables if v.space == "shared" and v.name not in own]
    shared += [v for v in program.kernel.variables if v.space == "shared"]
    shared_symbols, shared_total = in_shared_memory(shared, launch_.shared_bytes)
    if shared_total > hardware.shared_per_block:
        raise Diag.TOO_MUCH_SHARED.error(need=shared_total, have=hardware.shared_per_block, target=hardware.target)
    local_symbols, local_bytes = on_the_stack(program.kernel)
    problems += _size_problems(module, kernel, local_bytes, hardware)
    if sms is not None and sms < 1:
        problems.append(f"`sms` is {sms}; a machine has at least one")
    each = resident_bytes(program, launch_.block, shared_total, local_bytes, two_views=schedule.two_views)
    if (need := each * math.prod(_cluster_of(launch_, kernel))) > MOST_RESIDENT_BYTES:
        what = "the registers, shared and local memory of one cluster take"
        problems.append(f"{what} {need} bytes; at most {MOST_RESIDENT_BYTES} are to be had")
    memory = GlobalMemory()
    bank, parameters, more = _parameters(kernel, launch_.args, memory) if not problems else (None, {}, [])
    problems += more
    if problems or bank is None:
        raise Diag.BAD_LAUNCH.error(notes=problems, what=f"{len(problems)} problem(s)")
    static = {name: at for name, at in map_static(module, memory).items() if name not in own}
    symbols = static | parameters | local_symbols
    program.check_symbols(symbols.keys() | shared_symbols.keys())
    return Setup(
        program, hardware, launch_.grid, launch_.block, _cluster_of(launch_, kernel), memory, bank, symbols,
        shared_symbols, shared_total, launch_.shared_bytes, local_bytes, sms or hardware.sms, schedule, limit,
        observers,
        launch_.cluster != (1, 1, 1) or kernel.directive("reqnctapercluster") is not None, {}, on_progress,
    )  # fmt: skip


def _cluster_of(launch_: Launch, kernel: Kernel) -> Triple:
    required = kernel.directive("reqnctapercluster")
    if required and launch_.cluster == (1, 1, 1):
        x, y, z = (*required, 1, 1, 1)[:3]
        return x, y, z
    return launch_.cluster


def _shape_problems(launch_: Launch, kernel: Kernel, hardware: Machine) -> list[str]:
    out: list[str] = []
    for name, triple in (("grid", launch_.grid), ("block", launch_.block), ("cluster", launch_.cluster)):
        if len(triple) != 3 or not all(isinstance(n, int) and n >= 1 for n in triple):
            out.append(f"`{name}` is {triple}; it must be three positive integers")
    if out:
        raise Diag.BAD_LAUNCH.error(notes=out, what=f"{len(out)} problem(s)")
    for name, triple, largest in (
        ("grid", launch_.grid, hardware.largest_grid),
        ("block", launch_.block, hardware.largest_block),
    ):
        if any(n > most for n, most in zip(triple, largest, strict=True)):
            out.append(f"`{name}` is {triple}; {hardware.target} takes at most {largest}")
    threads = launch_.block[0] * launch_.block[1] * launch_.block[2]
    if threads > hardware.threads_per_block:
        out.append(f"`block` has {threads} threads; {hardware.target} takes at most {hardware.threads_per_block}")
    required = kernel.directive("reqntid")
    if required and (*required, 1, 1)[:3] != launch_.block:
        out.append(f"`block` is {launch_.block}; the kernel requires {(*required, 1, 1)[:3]} (.reqntid)")
    most = kernel.directive("maxntid")
    if most and threads > int(np.prod(most)):
        out.append(f"`block` has {threads} threads; the kernel takes at most {int(np.prod(most))} (.maxntid)")
    cluster = _cluster_of(launch_, kernel)
    wanted = kernel.directive("reqnctapercluster")
    if wanted and (*wanted, 1, 1)[:3] != cluster:
        out.append(f"`cluster` is {launch_.cluster}; the kernel requires {(*wanted, 1, 1)[:3]} (.reqnctapercluster)")
    if int(np.prod(cluster)) > hardware.cluster_size_nonportable:
        out.append(f"`cluster` has {int(np.prod(cluster))} CTAs; at most {hardware.cluster_size_nonportable}")
    if any(g % c for g, c in zip(launch_.grid, cluster, strict=True)):
        out.append(f"`grid` {launch_.grid} is not a multiple of `cluster` {cluster}")
    if launch_.shared_bytes < 0:
        out.append(f"`shared_bytes` is {launch_.shared_bytes}")
    return out


def _size_problems(module: Module, kernel: Kernel, local_bytes: int, hardware: Machine) -> list[str]:
    """What is declared larger than the machine has; told before anything is allocated."""
    bounds = (
        (parameter_offsets(kernel)[1], hardware.parameter_bytes, "the parameters take"),
        (local_bytes, hardware.local_per_thread, "each thread's local variables take"),
        (static_bytes(module), MOST_STATIC_BYTES, "the module's global and constant variables take"),
    )
    return [f"{what} {need} bytes; at most {most} are to be had" for need, most, what in bounds if need > most]


def _parameters(
    kernel: Kernel, args: tuple[Any, ...], memory: GlobalMemory
) -> tuple[FlatMemory, dict[str, int], list[str]]:
    """The parameter bank, where each parameter lies in it, and what is wrong."""
    problems: list[str] = []
    offsets, size = parameter_offsets(kernel)
    data = padded(max(size, 16), zero=True)
    if len(args) != len(kernel.params):
        raise Diag.BAD_LAUNCH.error(
            notes=[
                f"parameter {i}: .{p.type}{f'[{p.count}]' if p.count else ''} {p.name}"
                for i, p in enumerate(kernel.params)
            ],
            what=f"`{kernel.name}` takes {len(kernel.params)} arguments; {len(args)} were given",
        )
    for number, (param, arg, start) in enumerate(zip(kernel.params, args, offsets, strict=True)):
        try:
            raw = _encode(param, arg, memory, f"argument {number}, {param.name}")
        except WarploomError:
            raise
        except (ValueError, OverflowError, TypeError) as error:
            problems.append(f"argument {number} ({arg!r:.60}) does not fit .{param.type} {param.name}: {error}")
            continue
        data[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    places = {param.name: _PARAM_BASE + start for param, start in zip(kernel.params, offsets, strict=True)}
    return FlatMemory(data, _PARAM_BASE, size, "parameter"), places, problems


def _encode(param: Variable, arg: Any, memory: GlobalMemory, name: str) -> bytes:
    size = size_of(param)
    if isinstance(arg, TensorMap):
        record = encode_map(arg, memory.map_array(numpy_of(arg.array), name))
        if size == 8:
            held = padded(MAP_BYTES)
            held[:] = np.frombuffer(record, np.uint8)
            return memory.add(held, f"tensor map of {name}").base.to_bytes(8, "little")
        if size != MAP_BYTES:
            raise ValueError(f"a tensor map takes a parameter of {MAP_BYTES} bytes or a pointer, this one has {size}")
        return record
    if is_array(arg) or isinstance(arg, Pointers):
        if size != 8:
            raise ValueError(f"an array is passed as a 64-bit pointer, the parameter has {size} bytes")
        return _place(arg, memory, name).to_bytes(8, "little")
    return scalar_bytes(param, arg)


def _place(arg: Any, memory: GlobalMemory, name: str) -> int:
    """Where the machine has an array, or the addresses of several."""
    if not isinstance(arg, Pointers):
        return memory.map_array(numpy_of(arg), name)
    words = arg.words(lambda number, array: _place(array, memory, f"{name}[{number}]"))
    held = padded(len(words))[: len(words)]
    held[:] = np.frombuffer(words, np.uint8)
    return memory.add(held, name, writeable=False).base


def _report(grid: Grid, seconds: float) -> Run:
    counts: dict[str, int] = {}
    covered: dict[str, set[int]] = {}
    for block, total in zip(grid.program.flow.blocks, grid.executed, strict=True):
        if total:
            for op in block.ops:
                counts[op.family] = counts.get(op.family, 0) + total
                loc = grid.loc_of(op)
                covered.setdefault(loc.file, set()).add(loc.line)
    coverage = {file: frozenset(lines) for file, lines in covered.items()}
    return Run(
        counts, dict(grid.moved), coverage, seconds, tuple(grid.warps), grid.schedule, "".join(grid.printed.pieces)
    )
