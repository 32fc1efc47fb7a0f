"""`launch`: one call that runs a kernel; NumPy arguments run on the machine."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from warploom.diagnostics import Diag, Loc
from warploom.facts.machines import machine as machine_of
from warploom.facts.tensor_maps import MAP_BYTES
from warploom.machine import meanings  # noqa: F401  (fills the registry)
from warploom.machine.events import Observer
from warploom.machine.grid import Grid, Setup
from warploom.machine.memory import FlatMemory, GlobalMemory, padded
from warploom.machine.schedule import Schedule, by_name
from warploom.machine.tensor_record import encode as encode_map
from warploom.machine.translate import Program, translate
from warploom.ptx.isa.table import BITS
from warploom.ptx.launch import Launch, Triple, entry_of
from warploom.ptx.model import Kernel, Module, Symbol, Variable
from warploom.ptx.parse import parse
from warploom.ptx.tensor_map import TensorMap

_PARAM_BASE = 0x1000_0000


@dataclass(frozen=True, slots=True)
class WarpState:
    """One warp at the end of a run: whose it was, and how many instructions it executed."""

    cta: Triple
    warp: int
    instructions: int


@dataclass(frozen=True)
class Run:
    """What a launch did: instructions by family, bytes moved, what was covered, and how long it took."""

    counts: Mapping[str, int]
    bytes_moved: Mapping[str, int]
    coverage: Mapping[str, frozenset[int]]
    wall_seconds: float
    warps: tuple[WarpState, ...] = ()
    schedule: Schedule | None = field(default=None, compare=False, repr=False)

    @property
    def instructions(self) -> int:
        """Warp instructions executed."""
        return sum(self.counts.values())


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
) -> Run:
    """Run a kernel; arrays among the arguments are read and written in place."""
    if isinstance(program, Launch):
        launch_ = program
    else:
        if grid is None or block is None:
            raise Diag.BAD_LAUNCH.error(what="`grid` and `block` are needed")
        launch_ = Launch(program, grid, block, tuple(args), entry, cluster, shared_bytes)
    setup = prepare(launch_, by_name(schedule, seed), sms, limit, tuple(observers), on_progress)
    running = Grid(setup)
    start = time.perf_counter()
    with np.errstate(all="ignore"):
        running.run()
    return _report(running, time.perf_counter() - start)


@lru_cache(maxsize=64)
def _parsed(text: str) -> Module:
    return parse(text)


_PROGRAMS: dict[tuple[int, str, bool], tuple[Module, Program]] = {}


def _program(module: Module, kernel: Kernel, lanes_follow_x: bool) -> Program:
    key = (id(module), kernel.name, lanes_follow_x)
    if key not in _PROGRAMS:
        if len(_PROGRAMS) >= 64:
            _PROGRAMS.pop(next(iter(_PROGRAMS)))
        _PROGRAMS[key] = (module, translate(module, kernel, lanes_follow_x=lanes_follow_x))
    return _PROGRAMS[key][1]


def prepare(
    launch_: Launch,
    schedule: Schedule,
    sms: int | None,
    limit: int | None,
    observers: tuple[Observer, ...],
    on_progress: Callable[[int, int], None] | None,
) -> Setup:
    """Verify a launch as a whole and lay out its memories; nothing is run or written."""
    module = _parsed(launch_.program) if isinstance(launch_.program, str) else launch_.program
    kernel = entry_of(module, launch_.entry)
    hardware = machine_of(module.target[0])
    problems = _shape_problems(launch_, kernel, hardware)
    static = [v for v in (*module.variables, *kernel.variables) if v.space == "shared"]
    program = _program(module, kernel, launch_.block[0] % 32 == 0 or launch_.block[1] == launch_.block[2] == 1)
    static += [v for v in program.kernel.variables if v.space == "shared" and v not in static]
    shared_symbols, shared_total = _shared_layout(static, launch_.shared_bytes)
    if shared_total > hardware.shared_per_block:
        raise Diag.TOO_MUCH_SHARED.error(need=shared_total, have=hardware.shared_per_block, target=hardware.target)
    memory = GlobalMemory()
    bank, symbols, more = _parameters(kernel, launch_.args, memory)
    problems += more
    if problems:
        raise Diag.BAD_LAUNCH.error(notes=problems, what=f"{len(problems)} problem(s)")
    symbols |= _module_variables(module, memory)
    local_symbols, local_bytes = _stack(program.kernel)
    return Setup(
        program, hardware, launch_.grid, launch_.block, _cluster_of(launch_, kernel), memory, bank, symbols | local_symbols,
        shared_symbols, shared_total, launch_.shared_bytes, local_bytes, sms or hardware.sms, schedule, limit, observers,
        launch_.cluster != (1, 1, 1) or kernel.directive("reqnctapercluster") is not None, {}, on_progress,
    )  # fmt: skip


def _cluster_of(launch_: Launch, kernel: Kernel) -> Triple:
    required = kernel.directive("reqnctapercluster")
    if required and launch_.cluster == (1, 1, 1):
        x, y, z = (*required, 1, 1, 1)[:3]
        return x, y, z
    return launch_.cluster


def _shape_problems(launch_: Launch, kernel: Kernel, hardware: Any) -> list[str]:
    out: list[str] = []
    for name, triple in (("grid", launch_.grid), ("block", launch_.block), ("cluster", launch_.cluster)):
        if len(triple) != 3 or not all(isinstance(n, int) and n >= 1 for n in triple):
            out.append(f"`{name}` is {triple}; it must be three positive integers")
    if out:
        raise Diag.BAD_LAUNCH.error(notes=out, what=f"{len(out)} problem(s)")
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


def _shared_layout(variables: list[Variable], dynamic: int) -> tuple[dict[str, int], int]:
    symbols: dict[str, int] = {}
    offset = 0
    for variable in variables:
        if variable.linkage != "extern" and variable.count != 0:
            offset = _aligned(offset, variable)
            symbols[variable.name] = offset
            offset += _size(variable)
    outer = [v for v in variables if v.linkage == "extern" or v.count == 0]
    for variable in outer:
        start = _aligned(offset, variable)
        symbols[variable.name] = start
    end = max([offset, *(symbols[v.name] for v in outer)]) if outer else offset
    return symbols, end + dynamic


def _aligned(offset: int, variable: Variable) -> int:
    align = max(variable.align, BITS.get(variable.type, 8) // 8, 1)
    return (offset + align - 1) // align * align


def _size(variable: Variable) -> int:
    return max(BITS.get(variable.type, 8) // 8, 1) * (1 if variable.count is None else variable.count)


def _stack(kernel: Kernel) -> tuple[dict[str, int], int]:
    """Addresses of local variables and of the parameters of inlined calls, private to each thread."""
    symbols: dict[str, int] = {}
    offset = 0
    for variable in kernel.variables:
        if variable.space in ("local", "param"):
            offset = _aligned(offset, variable)
            symbols[variable.name] = offset
            offset += _size(variable)
    return symbols, offset


def _module_variables(module: Module, memory: GlobalMemory) -> dict[str, int]:
    symbols: dict[str, int] = {}
    later: list[tuple[Variable, Any]] = []
    for variable in module.variables:
        if variable.space in ("global", "const") and variable.linkage != "extern":
            data = padded(_size(variable))[: max(_size(variable), 1)]
            data[:] = 0
            region = memory.add(data, variable.name)
            symbols[variable.name] = region.base
            later.append((variable, data))
    for variable, data in later:
        width = max(BITS.get(variable.type, 8) // 8, 1)
        for at, value in enumerate(variable.initial or ()):
            number = symbols.get(value.name, 0) + value.offset if isinstance(value, Symbol) else value
            data[at * width : (at + 1) * width] = np.frombuffer((number & ((1 << 8 * width) - 1)).to_bytes(width, "little"), np.uint8)
    return symbols


def _parameters(
    kernel: Kernel, args: tuple[Any, ...], memory: GlobalMemory
) -> tuple[FlatMemory, dict[str, int], list[str]]:
    """The parameter bank, where each parameter lies in it, and what is wrong."""
    problems: list[str] = []
    offsets: dict[str, int] = {}
    offset = 0
    for param in kernel.params:
        offset = _aligned(offset, param)
        offsets[param.name] = _PARAM_BASE + offset
        offset += _size(param)
    data = padded(max(offset, 16))
    data[:] = 0
    if len(args) != len(kernel.params):
        raise Diag.BAD_LAUNCH.error(
            notes=[f"parameter {i}: .{p.type}{f'[{p.count}]' if p.count else ''} {p.name}" for i, p in enumerate(kernel.params)],
            what=f"`{kernel.name}` takes {len(kernel.params)} arguments; {len(args)} were given",
        )
    for number, (param, arg) in enumerate(zip(kernel.params, args, strict=True)):
        try:
            raw = _encode(param, arg, memory, f"argument {number}")
        except (ValueError, OverflowError, TypeError, struct.error) as error:
            problems.append(f"argument {number} ({arg!r:.60}) does not fit .{param.type} {param.name}: {error}")
            continue
        start = offsets[param.name] - _PARAM_BASE
        data[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    return FlatMemory(data, _PARAM_BASE, offset, "parameter"), offsets, problems


def _encode(param: Variable, arg: Any, memory: GlobalMemory, name: str) -> bytes:
    size = _size(param)
    if isinstance(arg, TensorMap):
        record = encode_map(arg, memory.map_array(arg.array, name))
        if size == 8:
            held = padded(MAP_BYTES)
            held[:] = np.frombuffer(record, np.uint8)
            return memory.add(held, f"tensor map of {name}").base.to_bytes(8, "little")
        if size != MAP_BYTES:
            raise ValueError(f"a tensor map takes a parameter of {MAP_BYTES} bytes or a pointer, this one has {size}")
        return record
    if isinstance(arg, np.ndarray):
        if size != 8:
            raise ValueError(f"an array is passed as a 64-bit pointer, the parameter has {size} bytes")
        return memory.map_array(arg, name).to_bytes(8, "little")
    if isinstance(arg, bytes | bytearray):
        if len(arg) != size:
            raise ValueError(f"{len(arg)} bytes given, {size} needed")
        return bytes(arg)
    if isinstance(arg, np.generic) and arg.dtype.itemsize == size and not isinstance(arg, np.bool_):
        return arg.tobytes()
    if param.count is not None:
        raise ValueError(f"an aggregate of {size} bytes takes `bytes` or a tensor map")
    if isinstance(arg, bool | np.bool_):
        arg = int(arg)
    if param.type in ("f32", "f64"):
        return struct.pack("<f" if size == 4 else "<d", float(arg))
    if param.type in ("f16", "bf16"):
        return bytes(np.array(arg, np.float16 if param.type == "f16" else ml_dtypes.bfloat16).tobytes())
    if isinstance(arg, float):
        if param.type.startswith("b") and size in (4, 8):
            return struct.pack("<f" if size == 4 else "<d", arg)
        raise ValueError("a float for an integer parameter")
    value = int(arg)
    if not -(1 << (8 * size - 1)) <= value < 1 << (8 * size):
        raise ValueError(f"{value} does not fit in {8 * size} bits")
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _report(grid: Grid, seconds: float) -> Run:
    counts: dict[str, int] = {}
    covered: dict[str, set[int]] = {}
    totals = [0] * len(grid.program.flow.blocks)
    costs = grid.program.costs
    warps: list[WarpState] = []
    for cta in grid.ended_ctas:
        executed = [0] * len(cta.live)
        for group in cta.all_groups:
            own = 0
            for index, count in enumerate(group.counts):
                totals[index] += count * group.warps
                own += count * costs[index]
            for warp in range(group.first_warp, group.first_warp + group.warps):
                executed[warp] += own
        warps += [WarpState(cta.index, warp, count) for warp, count in enumerate(executed)]
    for block, total in zip(grid.program.flow.blocks, totals, strict=True):
        if total:
            for op in block.ops:
                counts[op.family] = counts.get(op.family, 0) + total
                loc = op.instruction.loc or Loc(grid.program.file, op.instruction.line)
                covered.setdefault(loc.file, set()).add(loc.line)
    coverage = {file: frozenset(lines) for file, lines in covered.items()}
    return Run(counts, dict(grid.moved), coverage, seconds, tuple(warps), grid.schedule)
