"""`launch`: runs a kernel on the emulator if its arrays are in host memory, on the GPU if they are there."""

from __future__ import annotations

import html
import math
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import numpy as np

from warploom.diagnostics import Diag, Fault, Loc, WarploomError, user_traceback
from warploom.hardware.targets import Machine
from warploom.hardware.targets import machine as machine_of
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.arrays import Pointers, is_array, numpy_of, place_of
from warploom.host.launch import Launch, Triple, entry_of, together, with_triples
from warploom.host.program import Printed
from warploom.host.structs import Struct, check_room
from warploom.host.tensor_map import TensorMap
from warploom.machine import instructions as meanings  # noqa: F401  (fills the registry)
from warploom.machine.copy.tensor_map_bytes import encode as encode_map
from warploom.machine.core.deadlock_report import saying_where
from warploom.machine.core.exploration import (
    DEFAULT_BUDGET,
    Failure,
    Shrunk,
    Writes,
    adds_floats,
    check_budget,
    parting_event,
    portfolio,
    shrunk,
)
from warploom.machine.core.grid import Grid
from warploom.machine.core.schedule import Eager, Random, Recorded, Schedule, Weak, by_name
from warploom.machine.core.setup import MOST_RESIDENT_BYTES, Setup, WarpState, resident_bytes
from warploom.machine.engine.store import keep_in
from warploom.machine.memory.byte_memory import FlatMemory, GlobalMemory, padded
from warploom.machine.memory.exact_sums import ExactSums
from warploom.machine.memory.static_variables import (
    in_shared_memory,
    is_dynamic_shared,
    map_static,
    on_the_stack,
    static_bytes,
)
from warploom.machine.observers.events import AnyObserver
from warploom.machine.translate.prepared import keep_programs, module_of, prepared_program
from warploom.progress import Bar, is_wanted
from warploom.ptx.analysis.storage import parameter_offsets, scalar_bytes, size_of
from warploom.ptx.analysis.uniformity import follows_x
from warploom.ptx.syntax.model import Kernel, Module, Variable
from warploom.ptx.syntax.pickling import without_collection
from warploom.runtime.cache.disk import user_cache
from warploom.runtime.cache.fingerprint import source_version

Extents = int | tuple[int, ...] | Sequence[int]
"""A shape as `launch` takes it: along x, or along x and y, or along x, y and z."""
_PARAM_BASE = 0x1000_0000
MOST_STATIC_BYTES = 1 << 29
"""A bound on the global and constant variables of a module: an untrusted text cannot fill memory."""

keep_in(user_cache)  # kernels that the emulator's engine compiles
keep_programs(user_cache, source_version)


class _BytesMoved(dict[str, int]):
    """Bytes by direction, `global->shared`; the keys of 0.1, with the arrow `→`, are still found."""

    def __missing__(self, key: str) -> int:
        spelled = key.replace("→", "->")
        if spelled == key:
            raise KeyError(key)
        return self[spelled]


@dataclass(frozen=True, repr=False)
class Run:
    """The result of a launch: instructions by family, bytes moved, lines covered, and the time it took.

    A launch on a GPU has only started when it returns: `wall_seconds` is the time to start it, and the rest is empty.
    `warps` has the first 65,536 warps that ended; the others of a larger grid are in the sums only.
    """

    counts: Mapping[str, int]
    bytes_moved: Mapping[str, int]
    coverage: Mapping[str, frozenset[int]]
    wall_seconds: float
    warps: tuple[WarpState, ...] = ()
    schedule: Schedule | None = field(default=None, compare=False, repr=False)
    schedules: int = 1
    """The schedules that were tried."""
    failure: Failure | None = field(default=None, compare=False)
    """The failure under one of them, if `launch` explored and found one."""
    remarks: tuple[str, ...] = ()
    """Results that may differ between schedules and are not wrong: sums whose rounding depends on the order."""
    barriers: tuple[str, ...] = ()
    """The names of the mbarriers that were initialised."""
    printed: str = ""
    """Output of the kernel's `printf` calls, at most one mebibyte."""

    @property
    def instructions(self) -> int:
        """Warp instructions executed."""
        return sum(self.counts.values())

    def __repr__(self) -> str:
        if not self.counts:
            return f"Run(started on the GPU in {self.wall_seconds * 1e6:.0f} µs)"
        schedule = f", schedule {self.schedule.name}" if self.schedule is not None else ""
        return f"Run({self.instructions:,} warp instructions in {self.wall_seconds:.3f} s{schedule})"

    def _repr_html_(self) -> str:
        """A table for notebooks: instructions by family, then bytes moved."""
        rows = [*sorted(self.counts.items(), key=lambda item: -item[1])]
        rows += [(f"bytes, {direction}", count) for direction, count in self.bytes_moved.items()]
        cells = "".join(f"<tr><td>{html.escape(name)}</td><td>{count:,}</td></tr>" for name, count in rows)
        return f"<p>{html.escape(repr(self))}</p><table>{cells}</table>"


@user_traceback
def launch(
    program: str | Module | Launch,
    *,
    grid: Extents | None = None,
    block: Extents | None = None,
    cluster: Extents = (1, 1, 1),
    shared_bytes: int = 0,
    args: Iterable[Any] = (),
    entry: str | None = None,
    schedule: str | Schedule = "eager",
    seed: int = 0,
    sms: int | None = None,
    limit: int | None = None,
    observers: Iterable[AnyObserver] = (),
    on_progress: Callable[[int, int], None] | None = None,
    progress: bool | None = None,
    budget: int = DEFAULT_BUDGET,
    compare: Callable[[], object] | None = None,
    stream: Any = None,
    timeout: float | None = None,
    patience: float | None = None,
) -> Run:
    """Run a kernel; arrays among the arguments are read and written in place.

    `grid`, `block` and `cluster` are an integer or up to three, along x, y and z. `schedule`, `seed`, `sms`, `limit`,
    `observers`, `on_progress` and `progress` are for the emulator. `progress` shows a bar on standard error after two
    seconds: by default on a terminal and in a notebook, and not in CI. `schedule="explore"` tries up to `budget`
    schedules; the arrays get the results of the eager one, and `Run.failure` names the one that gave wrong results:
    those that differ from the eager ones, or with `compare` those for which that function returns a false value other
    than None, or raises AssertionError; `observers` receive the events of the eager run. `stream` is for a GPU: by
    default PyTorch's current one. `timeout` is a number of seconds after which a run on the emulator (with `explore`,
    all of its runs), or a wait on a GPU, where a deadlock would hang, is given up: `Stuck` says what each warp was
    doing. `patience` is its former name.
    """
    start = time.perf_counter()
    if patience is not None:
        warnings.warn("`patience` is called `timeout`", DeprecationWarning, stacklevel=3)
        timeout = patience if timeout is None else timeout
    if isinstance(program, Launch):
        launch_ = program
    else:
        launch_ = launch_of(
            program, grid=grid, block=block, cluster=cluster, shared_bytes=shared_bytes, args=args, entry=entry
        )
    asked = bool(observers) or seed or sms or limit or on_progress or progress or schedule != "eager"
    if not asked and _is_started_again(launch_, stream, timeout):
        return Run({}, {}, {}, time.perf_counter() - start)
    launch_ = with_triples(launch_)
    on_gpu = _arrays_on_gpu(launch_)
    if on_gpu:
        if asked:
            names = ("schedule", "seed", "sms", "limit", "observers", "on_progress", "progress")
            given = (schedule != "eager", seed, sms, limit, observers, on_progress, progress)
            _verify(launch_, [name for name, value in zip(names, given, strict=True) if value])
        _start_on_gpu(launch_, on_gpu, stream, timeout)
        return Run({}, {}, {}, time.perf_counter() - start)
    if stream is not None:
        raise Diag.BAD_LAUNCH.error(what="`stream` is for a GPU, and the arguments are in host memory")
    watching = _check_options(schedule, seed, sms, limit, observers, on_progress)
    _check_timeout(timeout)
    if schedule == "explore":
        if compare is not None and not callable(compare):
            raise Diag.BAD_LAUNCH.error(what=f"`compare` is {_kind(compare)}; it must be a function without arguments")
        return _explore(launch_, check_budget(budget), compare, sms, limit, timeout, watching)
    try:
        with without_collection() as pause:  # until the run has proved long
            shows = is_wanted(progress) and on_progress is None
            bar = Bar(launch_.entry or "kernel", lambda: running.used) if shows else None
            report = on_progress if bar is None else bar.update
            setup = prepare(launch_, by_name(schedule, seed), sms, limit, watching, report)
            running = Grid(replace(setup, timeout=timeout, at_length=pause.end))
            start = time.perf_counter()
            try:
                with np.errstate(all="ignore"), bar or nullcontext(), saying_where(running):
                    running.run()
                setup.at_end()
                return _report(running, time.perf_counter() - start)
            except WarploomError as error:
                better = _without_dynamic_shared(error, running.setup) if isinstance(error, Fault) else None
                (better or error).printed = "".join(running.printed.pieces)
                if better is None:
                    raise
                raise better from None
            finally:
                running.discard()
    except WarploomError:
        raise
    except MemoryError as error:
        raise Diag.OUT_OF_MEMORY.error(what=str(error).rstrip(".") or "an allocation failed") from None


def _check_timeout(timeout: object) -> None:
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise Diag.BAD_LAUNCH.error(what=f"`timeout` is {timeout!r:.60}; it must be a positive number of seconds")


def _run_once(setup: Setup) -> Run:
    """Run a prepared launch, and let go of it."""
    running, start = Grid(setup), time.perf_counter()
    try:
        with np.errstate(all="ignore"), saying_where(running):
            running.run()
        return _report(running, time.perf_counter() - start)
    except WarploomError as error:
        error.printed = "".join(running.printed.pieces)
        raise
    finally:
        running.discard()


@dataclass
class _Exploration:
    """One launch under many schedules: what its arrays held before, and what the eager schedule leaves in them."""

    launch_: Launch
    compare: Callable[[], object] | None
    sms: int | None
    limit: int | None
    timeout: float | None = None
    deadline: float | None = None
    before: list[bytes] = field(default_factory=list)
    expected: list[bytes] = field(default_factory=list)
    rounding: dict[str, None] = field(default_factory=dict)
    exact: list[bytes] = field(default_factory=list)
    """The results of the eager schedule if sums by atomics do not depend on their order."""
    apart: list[Any] = field(default_factory=list)
    """The bytes of each array in which the latest failing schedule differs from that."""
    _setup: Setup | None = None

    def run(self, schedule: Schedule, observers: tuple[AnyObserver, ...] = (), sums: ExactSums | None = None) -> Run:
        """Run under a schedule on arrays as the caller passed them."""
        setup = prepare(self.launch_, schedule, self.sms, self.limit, observers, None)
        setup = self._setup = replace(setup, sums=sums)
        if not self.before:
            self.before = self.contents()
        self.restore(self.before)
        if self.deadline is None:
            return _run_once(setup)
        try:
            return _run_once(replace(setup, timeout=max(self.deadline - time.monotonic(), 0.0)))
        except WarploomError as error:
            if error.diag is not Diag.TIMEOUT:
                raise
            # The limit of all runs, not what was left of it.
            late = Diag.TIMEOUT.error(error.loc, error.notes, **error.fields | {"seconds": self.timeout})
            late.printed = error.printed
            raise late from None

    def contents(self) -> list[bytes]:
        assert self._setup is not None
        return [region.data.tobytes() for region, _ in self._setup.memory.arrays]

    def restore(self, contents: list[bytes]) -> None:
        """Put earlier contents into the arrays."""
        assert self._setup is not None
        for (region, _), data in zip(self._setup.memory.arrays, contents, strict=True):
            if region.writeable:
                region.data[:] = np.frombuffer(data, np.uint8)

    def finish(self) -> None:
        """Leave the results of the eager schedule in the arrays."""
        self.restore(self.expected)

    def outcome(self, schedule: Schedule) -> str | None:
        """The kind of failure under a schedule, or None."""
        try:
            self.run(schedule)
        except WarploomError as error:
            return error.code
        kind = self.verdict()
        if kind == "disagreement" and isinstance(schedule, Recorded) and self.is_rounding(schedule):
            return None
        return kind

    def verdict(self) -> str | None:
        """The kind of failure that the arrays show, or None."""
        if self.compare is not None:
            try:
                answer = self.compare()
            except AssertionError:
                return "mismatch"
            if isinstance(answer, np.ndarray) and answer.size != 1:
                what = f"`compare` returned an array of {answer.size} values; return one, such as `(x == y).all()`"
                raise Diag.BAD_LAUNCH.error(what=what)
            return None if answer is None or answer else "mismatch"
        if not self.expected or self.contents() == self.expected:
            return None
        return "disagreement"

    def first_difference(self) -> tuple[str, tuple[int, ...], Any, Any, int] | None:
        """(array, index, expected, found, address) of the first element that differs from the eager results, if one
        does by more than the rounding of sums.
        """
        assert self._setup is not None
        rounded: tuple[str, tuple[int, ...], Any, Any, int] | None = None
        for number, ((region, root), old) in enumerate(zip(self._setup.memory.arrays, self.expected, strict=True)):
            new, was = region.data[: region.size], np.frombuffer(old, np.uint8)[: region.size]
            whole = root.flags.c_contiguous and root.nbytes == region.size
            size = root.itemsize if whole else 1
            different = (new != was).reshape(-1, size).any(axis=1)
            if not different.any():
                continue
            wrong = different
            if self.apart:
                wrong = different & self.apart[number][: region.size].reshape(-1, size).any(axis=1)
            at = int((wrong if wrong.any() else different).argmax())
            index: tuple[int, ...] = (at,)
            values: tuple[Any, Any] = int(was[at * size]), int(new[at * size])
            if whole:
                index = tuple(int(each) for each in np.unravel_index(at, root.shape))
                values = was.view(root.dtype)[at], new.view(root.dtype)[at]
            found = region.name, index, *values, region.base + at * size
            if wrong.any():
                return found
            rounded = rounded or found
        return rounded

    def failure(self, shown: Shrunk, kind: str, found_by: str) -> Failure:
        """The failure of a recorded run, which is run once more: where does it part from a passing run, and what writes
        the first wrong element?
        """
        writes = Writes()
        made = Failure(kind, shown.schedule, found_by, shown.delayed, switched=shown.switched)
        if self.exact:
            self.is_rounding(shown.schedule)  # the elements that differ by more than rounding
        try:
            made = replace(made, event=parting_event(self.run, shown, writes))
        except WarploomError:
            return made
        different = self.first_difference()
        if different is None:
            return made
        array, index, expected, found, address = different
        place = {"array": array, "index": index, "expected": expected, "found": found}
        return replace(made, written_by=writes.last(address), **place)

    def is_rounding(self, schedule: Recorded) -> bool:
        """True if results that differ are the same where the order of sums by atomics does not decide rounding.

        The arrays hold the results of that run afterwards.
        """
        assert self._setup is not None
        program = self._setup.program
        if not any(adds_floats(op.instruction.opcode) for block in program.flow.blocks for op in block.ops):
            return False
        sums = ExactSums()
        try:
            if not self.exact:
                self.run(Eager(), sums=ExactSums())
                self.exact = self.contents()
            self.run(schedule.replayed(), sums=sums)
        except WarploomError as error:
            if error.diag is Diag.TIMEOUT:
                raise
            return False  # the sums decide what the kernel does
        found = self.contents()
        if found != self.exact:
            pairs = zip(found, self.exact, strict=True)
            self.apart = [np.frombuffer(one, np.uint8) != np.frombuffer(other, np.uint8) for one, other in pairs]
            return False
        for each in sums.instructions.values():
            self.rounding[f"{each.loc or Loc(program.file, each.line)}: `{each.text}`"] = None
        return True

    def remarks(self) -> tuple[str, ...]:
        """The lines whose sums are rounded in the order of a schedule."""
        return tuple(f"order-dependent rounding: {line}" for line in self.rounding)


def compared_with_eager(launch_: Launch, recorded: Recorded, name: str, limit: int | None = None) -> Run:
    """Run a launch under a schedule, after a run under `eager`: `Run.failure` says what differs.

    The arrays get the results of the schedule. If the eager run fails, nothing is compared.
    """
    work = _Exploration(with_triples(launch_), None, None, limit)
    with suppress(WarploomError):
        work.run(Eager())
        work.expected = work.contents()
    run = work.run(recorded)
    if work.verdict() is None:
        return run
    results, rounds = work.contents(), work.is_rounding(recorded)
    work.restore(results)
    if rounds:
        return replace(run, remarks=work.remarks())
    different = work.first_difference()
    assert different is not None
    array, index, expected, found, _ = different
    failure = Failure("disagreement", recorded, name, array=array, index=index, expected=expected, found=found)
    return replace(run, failure=failure)


def _explore(
    launch_: Launch,
    budget: int,
    compare: Callable[[], object] | None,
    sms: int | None,
    limit: int | None,
    timeout: float | None,
    observers: tuple[AnyObserver, ...],
) -> Run:
    """Run a launch under a portfolio of schedules; the arrays get the results of the first, `eager`."""
    work = _Exploration(launch_, compare, sms, limit, timeout, timeout and time.monotonic() + timeout)
    try:
        first = work.run(Eager(), observers)
    except WarploomError as error:
        error.schedule = Recorded(Eager())  # type: ignore[attr-defined]
        raise
    verdict = work.verdict()
    work.expected = work.contents()
    if verdict is not None:
        recorded = Recorded(Eager())
        return replace(first, failure=Failure(verdict, recorded, "eager"))
    warps = -(-math.prod(launch_.block) // 32)
    tried, failure = 1, None
    try:
        for schedule in list(portfolio(first.counts, warps, budget, first.barriers))[1:]:
            tried += 1
            recorded = Recorded(schedule)
            found_by = schedule.name
            if isinstance(schedule, Random | Weak):
                found_by += f", seed {schedule.seed}"
            try:
                work.run(recorded)
            except WarploomError as error:
                if error.diag is Diag.TIMEOUT:
                    error.notes += (f"under `{found_by}`, after {tried - 1} of at most {budget} schedules",)
                    raise
                error.notes += (f"under `{found_by}`; not under `eager`",)
                error.schedule = shrunk(recorded, work.outcome, error.code).schedule  # type: ignore[attr-defined]
                raise
            kind = work.verdict()
            if kind is None or (kind == "disagreement" and work.is_rounding(recorded)):
                continue
            failure = work.failure(shrunk(recorded, work.outcome, kind), kind, found_by)
            break
    finally:
        work.finish()
    return replace(first, schedules=tried, failure=failure, remarks=work.remarks())


def launch_of(
    program: Any,
    *,
    grid: Any = None,
    block: Any = None,
    cluster: Any = (1, 1, 1),
    shared_bytes: Any = 0,
    args: Any = (),
    entry: str | None = None,
) -> Launch:
    """The launch that the keywords of `launch` describe, or an error for a program that is none."""
    if not isinstance(program, str | Module | Printed):
        raise Diag.BAD_LAUNCH.error(what=_not_a_program(program))
    if isinstance(program, str) and "\n" not in program and program.endswith((".ptx", ".json")):
        reader = "Launch.load(path)" if program.endswith(".json") else "pathlib.Path(path).read_text()"
        raise Diag.BAD_LAUNCH.error(what=f"`{program:.60}` is the name of a file; pass `{reader}`")
    missing = [f"`{name}`" for name, value in (("grid", grid), ("block", block)) if value is None]
    if missing:
        raise Diag.BAD_LAUNCH.error(what=f"{' and '.join(missing)} must be given")
    if is_array(args) or not isinstance(args, Iterable) or isinstance(args, str | bytes | Mapping):
        what = f"`args` is {_kind(args)}; it must be a list of the kernel's arguments, in order"
        raise Diag.BAD_LAUNCH.error(what=what)
    return with_triples(Launch(program, grid, block, tuple(args), entry, cluster, shared_bytes))


def _not_a_program(program: Any) -> str:
    """An explanation for a first argument of `launch` that cannot be run."""
    if isinstance(program, bytes | bytearray):
        return "the program is bytes; pass text, `program.decode()`"
    if callable(getattr(program, "bind", None)):
        name = getattr(program, "__name__", "kernel")
        return f"`{name}` is a kernel without arguments; pass `{name}.bind(…, grid=…, block=…)`"
    if hasattr(program, "read_text"):
        return "the program is a path; pass its text, `path.read_text()`"
    return f"the program is {_kind(program)}; pass PTX text, or a launch made by `kernel.bind(…)`"


def _kind(value: Any) -> str:
    """`an int`, `a str`: the type of a value, for messages."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _check_options(
    schedule: Any, seed: Any, sms: Any, limit: Any, observers: Any, on_progress: Any
) -> tuple[AnyObserver, ...]:
    """Verify the emulator's options and return the observers; all that is wrong is reported at once."""
    problems: list[str] = []
    if not isinstance(schedule, str) and not callable(getattr(schedule, "choose", None)):
        names = "`eager`, `lazy`, `reverse`, `random`, `weak`, `hold:KIND`, `starve:WHO`, `explore` or a recorded file"
        problems.append(f"`schedule` is {schedule!r:.60}; it must be {names}, or an object with a method `choose`")
    for name, value in (("seed", seed), ("sms", sms), ("limit", limit)):
        try:
            least = 1 if name == "limit" else value
            if value is not None and operator.index(value) < least:
                problems.append(f"`{name}` is {value!r:.60}; it must be at least 1")
        except TypeError:
            problems.append(f"`{name}` is {value!r:.60}; it must be an integer")
    watching: tuple[Any, ...] = ()
    if not isinstance(observers, Iterable):
        problems.append(f"`observers` is {_kind(observers)}; it must be a list of objects with a method `on_event`")
    else:
        watching = tuple(observers)
        for number, each in enumerate(watching):
            if not any(callable(getattr(each, name, None)) for name in ("on_event", "on_events")):
                problems.append(f"observer {number} is {each!r:.60}; it has no method `on_event`")
    if on_progress is not None and not callable(on_progress):
        problems.append(f"`on_progress` is {_kind(on_progress)}; it must be a function of two integers")
    if problems:
        raise together(problems)
    return watching


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
    """The arrays of a launch and their devices if they are on a GPU; a mixture of host and GPU is an error."""
    held = [arg.array if isinstance(arg, TensorMap) else arg for arg in launch_.args]
    tables = [(number, arg.arrays) for number, arg in enumerate(held) if isinstance(arg, Pointers)]
    tables += [(number, tuple(arg.arrays())) for number, arg in enumerate(held) if isinstance(arg, Struct)]
    held += [each for _, nested in tables for each in nested]
    arrays = [(place_of(array), array) for array in held if is_array(array)]
    on_gpu = [each for each in arrays if each[0].startswith("cuda")]
    if on_gpu and len(on_gpu) != len(arrays):
        names = [
            *range(len(launch_.args)),
            *(f"{number}[{at}]" for number, nested in tables for at in range(len(nested))),
        ]
        named = zip(names, held, strict=True)
        notes = [f"argument {name} is on {place_of(each)}" for name, each in named if is_array(each)]
        raise Diag.BAD_LAUNCH.error(notes=notes, what="some arrays are on the host and some on a GPU")
    return on_gpu


_STARTED: dict[int, tuple[ref[Launch], Callable[[Any, float | None], bool]]] = {}
"""Functions that start a launch on a GPU again, by the identity of the launch, for as long as it exists."""


def _is_started_again(launch_: Launch, stream: Any, timeout: float | None) -> bool:
    """Start a launch that was started before, in the same way; False if that is not possible."""
    of, again = _STARTED.get(id(launch_), (None, None))
    return of is not None and again is not None and of() is launch_ and again(stream, timeout)


def _start_on_gpu(launch_: Launch, arrays: list[tuple[str, Any]], stream: Any, timeout: float | None) -> None:
    from warploom.runtime.gpu.launching import begin

    started = begin(launch_, arrays, stream, timeout, _verify)
    key, table = id(launch_), _STARTED
    table[key] = (ref(launch_, lambda _: table.pop(key, None)), started.again)


def _verify(launch_: Launch, emulator_options: Sequence[str] = ()) -> None:
    """Raise an error for a shape that a GPU does not take, and for options that only the emulator has."""
    program = launch_.program
    module = program.head if isinstance(program, Printed) else module_of(program)
    kernel = entry_of(module, launch_.entry)
    hardware = machine_of(module.target[0])
    emulator_options = (*emulator_options, *(["variables"] if launch_.variables else []))
    problems = [f"`{name}` is for the emulator, and the arrays are on a GPU" for name in emulator_options]
    problems += _shape_problems(launch_, kernel, hardware)
    if problems:
        raise Diag.BAD_LAUNCH.error(notes=problems, what=f"{len(problems)} problem(s)")
    shared = [v for v in (*module.variables, *kernel.variables) if v.space == "shared"]
    if (need := in_shared_memory(shared, launch_.shared_bytes)[1]) > hardware.shared_per_block:
        raise Diag.TOO_MUCH_SHARED.error(need=need, have=hardware.shared_per_block, target=hardware.target)


def prepare(
    launch_: Launch,
    schedule: Schedule,
    sms: int | None,
    limit: int | None,
    observers: tuple[AnyObserver, ...],
    on_progress: Callable[[int, int], None] | None,
) -> Setup:
    """Verify a launch as a whole and lay out its memory; nothing is run or written."""
    prepared = prepared_program(launch_.program, launch_.entry, follows_x(launch_.block), schedule.preempts)
    module, program = prepared.module, prepared.program
    kernel = entry_of(module, launch_.entry)
    hardware = machine_of(module.target[0])
    problems = _shape_problems(launch_, kernel, hardware)
    own = {variable.name for variable in (*kernel.params, *program.kernel.variables)}
    shared = [v for v in module.variables if v.space == "shared" and v.name not in own]
    shared += [v for v in program.kernel.variables if v.space == "shared"]
    shared_symbols, shared_total = in_shared_memory(shared, launch_.shared_bytes)
    if shared_total > hardware.shared_per_block:
        raise Diag.TOO_MUCH_SHARED.error(need=shared_total, have=hardware.shared_per_block, target=hardware.target)
    local_symbols, local_bytes = on_the_stack(program.kernel)
    problems += _size_problems(module, kernel, local_bytes, hardware)
    if sms is not None and sms < 1:
        problems.append(f"`sms` is {sms}; it must be at least 1")
    each = resident_bytes(program, launch_.block, shared_total, local_bytes, two_views=schedule.two_views)
    if (need := each * math.prod(_cluster_of(launch_, kernel))) > MOST_RESIDENT_BYTES:
        what = "the registers, shared and local memory of one cluster take"
        problems.append(f"{what} {need} bytes; at most {MOST_RESIDENT_BYTES} are available")
    memory = GlobalMemory()
    for number, array in enumerate(launch_.at_host_address):
        memory.map_array(numpy_of(array), f"array {number} at its host address", at_host_address=True)
    bank, parameters, more = _parameters(kernel, launch_, memory) if not problems else (None, {}, [])
    problems += more
    if problems or bank is None:
        raise Diag.BAD_LAUNCH.error(notes=problems, what=f"{len(problems)} problem(s)")
    static = map_static(module, memory, {name: numpy_of(array) for name, array in launch_.variables})
    static = {name: at for name, at in static.items() if name not in own}
    symbols = static | parameters | local_symbols
    program.check_symbols(symbols.keys() | shared_symbols.keys())
    return Setup(
        program, hardware, launch_.grid, launch_.block, _cluster_of(launch_, kernel), memory, bank, symbols,
        shared_symbols, shared_total, launch_.shared_bytes, local_bytes, sms or hardware.sms, schedule, limit,
        observers,
        launch_.cluster != (1, 1, 1) or kernel.directive("reqnctapercluster") is not None, {}, on_progress,
        at_end=prepared.keep,
    )  # fmt: skip


def _cluster_of(launch_: Launch, kernel: Kernel) -> Triple:
    required = kernel.directive("reqnctapercluster")
    if required and launch_.cluster == (1, 1, 1):
        x, y, z = (*required, 1, 1, 1)[:3]
        return x, y, z
    return launch_.cluster


def _shape_problems(launch_: Launch, kernel: Kernel, hardware: Machine) -> list[str]:
    out: list[str] = []
    for name, extents in (("grid", launch_.grid), ("block", launch_.block), ("cluster", launch_.cluster)):
        if min(extents) < 1:
            out.append(f"`{name}` is {extents}; every extent must be positive")
    if out:
        raise Diag.BAD_LAUNCH.error(notes=out, what=f"{len(out)} problem(s)")
    for name, extents, largest in (
        ("grid", launch_.grid, hardware.largest_grid),
        ("block", launch_.block, hardware.largest_block),
    ):
        if any(n > most for n, most in zip(extents, largest, strict=True)):
            out.append(f"`{name}` is {extents}; {hardware.target} takes at most {largest}")
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
    """Variables that are larger than the hardware has, reported before anything is allocated."""
    bounds = (
        (parameter_offsets(kernel)[1], hardware.parameter_bytes, "the parameters take"),
        (local_bytes, hardware.local_per_thread, "each thread's local variables take"),
        (static_bytes(module), MOST_STATIC_BYTES, "the module's global and constant variables take"),
    )
    return [f"{what} {need} bytes; at most {most} are available" for need, most, what in bounds if need > most]


def _parameters(kernel: Kernel, launch_: Launch, memory: GlobalMemory) -> tuple[FlatMemory, dict[str, int], list[str]]:
    """The parameter bank, the address of each parameter in it, and the problems."""
    problems: list[str] = []
    args, labels = launch_.args, launch_.labels or tuple(each.name for each in kernel.params)
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
    for number, (param, arg, start, label) in enumerate(zip(kernel.params, args, offsets, labels, strict=True)):
        try:
            raw = _encode(param, arg, memory, f"argument {number}, {label}")
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
    if isinstance(arg, Struct):
        check_room(size, arg)
        return arg.encoded(lambda part, label: _part(part, memory, label), name)
    if isinstance(arg, TensorMap):
        record = _part(arg, memory, name)
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
        return _part(arg, memory, name)
    return scalar_bytes(param, arg)


def _part(arg: Any, memory: GlobalMemory, name: str) -> bytes:
    """A tensor map, or the address of an array or a table of arrays, as bytes."""
    if isinstance(arg, TensorMap):
        return encode_map(arg, memory.map_array(numpy_of(arg.array), name))
    return _place(arg, memory, name).to_bytes(8, "little")


def _place(arg: Any, memory: GlobalMemory, name: str) -> int:
    """The emulated address of an array, or of a table of arrays."""
    if not isinstance(arg, Pointers):
        return memory.map_array(numpy_of(arg), name)
    words = arg.words(lambda number, array: _place(array, memory, f"{name}[{number}]"))
    held = padded(len(words))[: len(words)]
    held[:] = np.frombuffer(words, np.uint8)
    return memory.add(held, name, writeable=False).base


def _report(grid: Grid, seconds: float) -> Run:
    counts: dict[str, int] = {}
    covered: dict[str, set[int]] = {}
    for (families, lines), total in zip(grid.program.tallies, grid.executed.tolist(), strict=True):
        if total:
            for family, count in families.items():
                counts[family] = counts.get(family, 0) + count * total
            for file, numbers in lines.items():
                covered.setdefault(file, set()).update(numbers)
    coverage = {file: frozenset(numbers) for file, numbers in covered.items()}
    moved, printed = _BytesMoved(grid.moved), "".join(grid.printed.pieces)
    return Run(
        counts,
        moved,
        coverage,
        seconds,
        tuple(grid.warps),
        grid.schedule,
        barriers=tuple(grid.barriers),
        printed=printed,
    )
