"""The catalogue of error messages, and the exceptions that carry them.

The name of a `Diag` member is its stable code. Its value is (what is wrong, what to do); `{braces}` are filled in where
the error is raised.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Loc:
    """A line of source code: of the kernel's own source if the PTX has line information, else of the PTX."""

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"


class Diag(Enum):
    """The catalogue of errors: (message, advice)."""

    # Reading and verifying PTX.
    SYNTAX = ("Invalid PTX: {what}.", "Correct this line; warploom accepts the syntax that ptxas accepts.")
    UNKNOWN_INSTRUCTION = (
        "`{text}` is not an instruction form that warploom knows.",
        "The nearest known form is `{nearest}`; `warploom ptx --unsupported FILE` lists all unknown forms of a module.",
    )
    BAD_OPERANDS = ("`{text}`: {what}.", "The form takes: {takes}.")
    UNDECLARED = ("`{name}` is used but never declared.", "Declare it, or correct its spelling.")
    DUPLICATE = ("`{name}` is declared twice in the same scope.", "Rename one of the two.")
    WRONG_TARGET = (
        "`{text}` requires {needs}, but the module has `.target {target}`.",
        "Compile for a target that supports the instruction.",
    )
    TOO_LONG = (
        "`{name}` has more than {most} instructions after its calls are inlined.",
        "Split the kernel or unroll less: this is the most that the emulator translates.",
    )
    NO_SUCH_ENTRY = (
        "The module has no kernel `{entry}`; its kernels are: {entries}.",
        "Select one of them with `entry=`.",
    )

    # The launch and its arguments.
    BAD_LAUNCH = ("Invalid launch: {what}.", "Correct the arguments; nothing was run or written.")
    BAD_ARGUMENTS = ("{function}(): invalid arguments: {what}.", "Correct the arguments; nothing was run or written.")
    BAD_CONFIG = (
        "Invalid configuration, {count} rule(s) violated: {what}.",
        "Change the fields that are named, or leave them out so that they are derived; nothing was run or written.",
    )
    BAD_TENSOR_MAP = (
        "Invalid tensor map, {count} rule(s) violated: {what}.",
        "Correct the tensor map; nothing was run or written.",
    )
    NOT_MODELLED = (
        "{what} is not supported by the emulator.",
        "Please report the kernel: the emulator stops rather than guess a result.",
    )
    NO_SUCH_GPU = (
        "`{device}` is a second GPU, and the emulated computer has one.",
        "Use `cuda` or `cuda:0`: `torch.cuda.device_count()` is 1.",
    )
    MISSING_PACKAGE = (
        "{what} needs {package}, which {is_} not installed.",
        "Install it with `pip install 'warploom[{extra}]'`.",
    )

    # Faults of an instruction.
    OUT_OF_BOUNDS = (
        "{what}: out-of-bounds access to {space} memory.",
        "Mask the access, or enlarge the buffer.",
    )
    NO_DYNAMIC_SHARED = (
        "{what}: out-of-bounds access to {space} memory; `{name}` is dynamic shared memory, and the launch has none.",
        "Pass `shared_bytes`: Triton has it in `compiled.metadata.shared`, CUDA as the third value of <<<...>>>.",
    )
    MISALIGNED = (
        "{what} is not aligned to {align} bytes.",
        "Align the address to the size of the access.",
    )
    READ_ONLY = ("{what} writes to a read-only buffer.", "Pass a writable array.")
    TOO_MUCH_SHARED = (
        "The kernel needs {need} bytes of shared memory; {target} has {have} per block.",
        "Use fewer pipeline stages or smaller tiles.",
    )
    BARRIER_NOT_INITIALISED = (
        "There is no initialised mbarrier at {what}.",
        "Run mbarrier.init, a fence and a CTA or cluster synchronisation before the first use.",
    )
    BARRIER_REINITIALISED = (
        "The mbarrier {what} is initialised while it is in use.",
        "Initialise it once, by one thread; run mbarrier.inval before initialising it again.",
    )
    BARRIER_OVERFLOW = ("{what}", "Check the arrival count and the expected bytes of this phase.")
    BAD_BARRIER = ("{what}", "Check which barrier this is, which threads use it, and in what order.")
    BAD_PARTICIPATION = (
        "`{text}` requires {needs}, but was executed by {found}.",
        "Move it out of the divergent branch, or pass the mask of the lanes that reach it.",
    )
    BAD_DESCRIPTOR = (
        "The {kind} descriptor {value:#x} is invalid: {what}.",
        "Correct the encoding. Its fields: {fields}.",
    )
    BAD_COORDINATES = (
        "The tensor copy at coordinates {coords} is invalid: {what}.",
        "Correct the coordinates: they count elements, with the innermost dimension first.",
    )
    BAD_SHAPE = ("`{text}`: {what}.", "Choose a shape and types that the instruction supports.")
    TENSOR_MEMORY = ("{what}", "Check the column, the allocation, and the lanes that this warp can access.")
    REGISTER_POOL = ("{what}", "Check setmaxnreg against the registers of the other warpgroups.")
    BAD_BRANCH = (
        "`brx.idx` with index {index}: its table has {count} targets.",
        "Check the index; it must be smaller than the number of targets.",
    )
    BAD_CALL = (
        "`{text}` calls address {address:#x}, which is not a function with this signature.",
        "Check that the function pointer was set and that its parameters and results match the call.",
    )
    TRAP = (
        "The kernel executed `trap`.",
        "This is usually a failed assertion in the kernel: check the condition before the trap.",
    )
    ASYNC_MISUSE = ("{what}", "Check the order of issue, commit and wait.")
    CTA_EXITED = (
        "{what}",
        "Wait for the copy or arrival before the CTA exits; end with a cluster barrier if other CTAs reach its memory.",
    )

    # No progress.
    DEADLOCK = (
        "{what}",
        "Look for a missing release or arrival, or for a wrong arrival count, parity, byte count or barrier.",
    )
    LIMIT = (
        "The run reached its limit: {used} warp instructions executed, limit {limit}.",
        "Raise `limit`, or look for an endless loop.",
    )
    NO_PROGRESS = (
        "{used} warp instructions ran without any effect on memory: every warp is polling.",
        "Look for the store or arrival that the polling loops wait for.",
    )
    TIMEOUT = (
        "{what} did not finish within {seconds} s.",
        "Allow more time, use smaller sizes, or look for an endless loop.",
    )

    # Tracing: the kernel function as Python executes it.
    OUTSIDE_KERNEL = (
        "{what} was used outside a kernel.",
        "Call it from a function decorated with @kernel, while the kernel is traced.",
    )
    BRANCH_ON_DEVICE_VALUE = (
        "A device value is not known while tracing: it cannot be used in `if`, `while`, `and`, `range` or an index.",
        "Use `with when(condition):` or `loop(…)`, or `select(condition, a, b)` to choose between two values.",
    )
    LEFT_LOOP_EARLY = (
        "{statement} leaves the body of a device {kind} (opened at {opened}); it would drop code for all threads.",
        "Python runs it while tracing. Put the code that it should skip under `with when(...):` instead.",
    )
    VALUE_OUT_OF_SCOPE = (
        "A device value computed in a {kind} (opened at {made}) is used after the end of that {kind}.",
        "The Python name is still bound, but the device value is not: recompute it here, or store it in a variable.",
    )
    TYPE_MISMATCH = ("Types do not match: {what}.", "Convert one of the operands with `.to(type)`.")
    WRONG_ROLE = (
        "A device value computed in role `{maker}` (opened at {made}) is used in role `{user}`.",
        "Roles are different warps: pass it through shared memory and a barrier, or compute it before the roles start.",
    )
    BAD_INDEX = (
        "Invalid index: {what}.",
        "Index with one integer or device integer per dimension.",
    )
    NOT_ON_DEVICE = ("`{function}` cannot compute a device value.", "Use {use}.")
    BOX_MISMATCH = (
        "The copy between tensor map `{map}` and shared array `{array}` would mix up elements: {what}.",
        "Give `TensorMap(…, box=, swizzle=, dtype=)` and `shared(dtype, shape, swizzle=)` the same layout.",
    )
    OTHERWISE_WITHOUT_WHEN = (
        "`otherwise()` has no `when(...)` block directly before it.",
        "Write it directly after the `with when(...):` block.",
    )
    BAD_KERNEL = ("The kernel cannot be traced: {what}.", "Correct the kernel or the call; nothing was run.")
    STAGE_DROPPED = (
        "A {side} stage of `{pipeline}`, acquired here, is never released.",
        "Use `with`, or call `release()` on every path: the other side waits for it.",
    )
    STAGE_RELEASED_TWICE = (
        "A {side} stage of `{pipeline}` is released twice; the first release is at {first}.",
        "Release each stage once; the end of its `with` block releases it if nothing else has.",
    )
    STAGE_RELEASED_CONDITIONALLY = (
        "A {side} stage of `{pipeline}`, acquired at {acquired}, is released inside a device {kind}.",
        "Release it where it was acquired: the barrier counts on exactly one release by every thread.",
    )
    STAGE_AFTER_RELEASE = (
        "A {side} stage of `{pipeline}` is used after its release at {released}.",
        "Use it before the release: afterwards the other side may already own the stage.",
    )
    STAGE_ENTERED_TWICE = (
        "A {side} stage of `{pipeline}` is acquired while the one from {first} is still open.",
        "Release the first stage before acquiring the next: a pipeline hands out one stage at a time.",
    )
    STAGE_WRONG_ROLE = (
        "Role `{role}` acquires a {side} stage of `{pipeline}`, but its {side} is {declared}.",
        "Name the role when the pipeline is created: its barrier counts are computed from there.",
    )
    TMEM_LOAD_NOT_WAITED = (
        "An accumulator of `{pipeline}` is released before the TMEM load at {load} was waited for.",
        "Call `TmemAddress.wait_load()` first: until then the MMA role may overwrite what is being read.",
    )
    TMEM_HANDOVER_NOT_FENCED = (
        "Stages of `{pipeline}` hold TMEM, and role `{role}` {what} without `{fence}` in between.",
        "Put `isa.tcgen05.fence.after_thread_sync()` after the wait, and `before_thread_sync()` before the arrival.",
    )
    STALE_ACCUMULATOR = (
        "The first MMA into an accumulator that was acquired at {acquired} adds to what an earlier tile left there.",
        "Pass `accumulate=step > 0`, or False for the first MMA: a fresh accumulator must be overwritten.",
    )
    ISSUED_BY_EVERY_LANE = (
        "`{what}` in role `{role}` is issued by all 32 lanes of a warp, once for each.",
        "Issue it in one lane, the one that also commits: `with when(roles.{role}.elected):`.",
    )
    UNCOUNTABLE_ARRIVAL = (
        "{what}",
        "Guard an arrival with `role.elected` or `lane() < n` only, so that the number of arrivals is known.",
    )
    COUNT_MISMATCH = (
        "`{pipeline}` was given {given} {what}, but its roles make {derived}.",
        "Leave the number out: it is derived from the roles and how they signal.",
    )
    SIDE_UNUSED = (
        "Role `{role}` is declared as {side} of `{pipeline}` but never acquires a stage.",
        "Acquire and release stages in this role, or do not declare it: the other side would wait forever.",
    )
    BAD_TILE_LOOP = (
        "The tile loop is not allowed here: {what}.",
        "Write `for tile in tiles:` directly inside `with roles.…:`, once in every role that processes tiles.",
    )
    BAD_EPILOGUE = (
        "Invalid epilogue, {count} problem(s): {what}.",
        "An epilogue is `f(value, at, **operands)`: for each element of C it returns the value to store.",
    )
    BAD_WRITER = (
        "Invalid use of the tile writer, {count} problem(s): {what}.",
        "Leave out what the writer derives, or pass what the configuration says.",
    )

    # NVIDIA's assembler and disassembler.
    NO_TOOL = (
        "{tool} cannot be used: {what}.",
        "On Linux or Windows run `pip install 'warploom[cuda]'`, or set {variable} to the program.",
    )
    NOT_ASSEMBLED = (
        "{tool} rejects the PTX for {target}: {what}.",
        "Correct the lines that it names; for a newer PTX version or target run `pip install -U nvidia-cuda-nvcc`.",
    )
    SLOW_CODE = (
        "ptxas assembled the PTX for {target}, but the code would be slow: {what}.",
        "{advice} `strict=False` accepts the code as it is.",
    )
    NOT_DISASSEMBLED = (
        "nvdisasm cannot read the cubin: {what}.",
        "Use a cubin that was made by this version of ptxas.",
    )
    BAD_SETTING = (
        "{variable} has the invalid value `{value}`: {what}.",
        "Correct the environment variable, or unset it.",
    )

    # The GPU and its driver.
    NO_DRIVER = (
        "The NVIDIA driver cannot be used: {what}.",
        "Install the driver, or pass NumPy arrays, which run on the emulator. `warploom doctor` shows what was found.",
    )
    NO_GPU = (
        "The NVIDIA driver has no usable GPU: {what}.",
        "Check with nvidia-smi, or pass NumPy arrays, which run on the emulator.",
    )
    OLD_DRIVER = (
        "The NVIDIA driver is too old: it supports CUDA {found}, but CUDA {needed} is needed.",
        "Update the driver, or pass NumPy arrays, which run on the emulator.",
    )
    WRONG_GPU = (
        "{gpu} cannot run this kernel: {what}.",
        "Use a GPU that the kernel was built for, or pass NumPy arrays, which run on the emulator.",
    )
    DRIVER_REFUSED = (
        "The NVIDIA driver rejected {what}: {sentence}.",
        "Correct what the driver names; nothing was launched.",
    )
    GPU_FAULT = (
        "A kernel launched earlier failed on the GPU: {what}.",
        "Restart the process, and run the kernel on the emulator or under compute-sanitizer to find the cause.",
    )
    BAD_PLAN = (
        "The arguments do not match the prepared launch, {count} problem(s): {what}.",
        "Pass arrays like those that it was prepared for, or prepare another one; nothing was launched.",
    )
    NOTHING_TO_TUNE = (
        "There is nothing to tune: {what}.",
        "Pass arrays on a Hopper GPU, or a function from a configuration to a launch together with `candidates`.",
    )
    NO_DERIVATIVE = (
        "Autograd is not supported for {what}.",
        "Call it under torch.no_grad(), or with tensors that do not require gradients.",
    )
    NOT_IN_THIS_PROCESS = (
        "The graph calls an operation whose functions or configuration, `{name}`, are not known in this process.",
        "Compile or export it in this process, or save it without `epilogue`, `store`, `pair`, `config` and `target`.",
    )

    # Files and commands.
    BAD_LAUNCH_FILE = ("{file}: {what}", "`warploom docs launch-files` describes the format.")
    WRONG_KIND_OF_FILE = ("{file} is {kind}, but `{command}` takes {wanted}.", "{do}.")
    BAD_EXPRESSION = ("Invalid comparison `{text}`: {what}.", "`warploom docs launch-files` has the grammar.")
    BAD_SCHEDULE = (
        "Invalid schedule `{name}`: {what}.",
        "Use eager, lazy, reverse, random, weak, hold:KIND, starve:WHO, or a recorded file.",
    )
    NOT_PROVED = ("{what}", "Read the findings above: each names the two parties, what is missing, and a witness.")
    SCHEDULE_DEPENDENT = (
        "The results of `{kernel}` depend on the schedule: {what}.",
        "Look for a missing wait, fence or barrier after the delayed operation, or an atomic whose order decides.",
    )
    MISMATCH = ("{what}", "The kernel's results differ from what the launch file expects.")
    UNREADABLE_FILE = ("{file} {what}.", "Pass the path of an existing text file.")
    UNWRITABLE_FILE = ("Cannot write {file}: {what}.", "Pass a path in a folder that you may write to.")
    OUT_OF_MEMORY = ("Not enough memory on this computer: {what}.", "Use smaller buffers or variables.")
    BAD_MEASUREMENTS = (
        "{file} does not contain measurements of configurations: {what}.",
        "Pass a file that `warploom tune … --out FILE` wrote.",
    )
    BAD_COMMAND = ("{what}.", "`{command} --help` shows the options.")
    NO_SUCH_CODE = (
        "`{name}` is neither the code of an error or finding nor a PTX instruction.",
        "{hint}`warploom explain` lists all codes.",
    )
    INTERNAL = (
        "Internal error in warploom: {what}.",
        "Please report it with the input that causes it; WARPLOOM_TRACEBACK=1 in the environment shows the traceback.",
    )

    @property
    def meaning(self) -> str:
        """The message of the entry, without the values of a particular error."""
        return _IN_GENERAL.get(self, _FIELD.sub(r"<\1>", self.value[0]))

    @property
    def advice(self) -> str:
        """The advice of the entry, without the values of a particular error."""
        return _FIELD.sub(r"<\1>", self.value[1])

    @property
    def kind(self) -> str:
        """The exception that the entry is raised as, with its description."""
        raised = _KIND.get(self, WarploomError)
        return f"{raised.__name__}: {raised.__doc__}"

    def error(self, loc: Loc | None = None, notes: Iterable[str] = (), **fields: object) -> WarploomError:
        """An exception for this entry, of the class that its kind of error is raised as."""
        return _KIND.get(self, WarploomError)(self, loc, tuple(notes), fields)


class WarploomError(Exception):
    """Base class of all catalogued errors: code, location, message, notes and advice.

    Subclasses are also the builtin exception that Python's conventions ask for: `ValueError`, `TypeError`,
    `RuntimeError` and so on. Errors can be copied and pickled, so they reach the parent of a process pool.
    """

    def __init__(self, diag: Diag, loc: Loc | None, notes: tuple[str, ...], fields: dict[str, object]) -> None:
        self.diag, self.loc, self.notes, self.fields = diag, loc, notes, fields
        self.printed = ""
        """The text that the threads of a kernel had printed when it failed on the emulator."""
        what, advice = diag.value
        self.what = what.format(**fields)
        self.advice = advice.format(**fields)
        super().__init__(diag.name)

    @property
    def code(self) -> str:
        """The stable name of the catalogue entry."""
        return self.diag.name

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        if self.loc is not None:
            lines.append(f"  --> {self.loc}")
        lines += [f"  {note}" for note in self.notes]
        lines.append(f"  do: {self.advice}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # The finished sentences travel with the error: a field that cannot be pickled becomes its text, which the
        # entry's format (`{value:#x}`) might refuse.
        fields = {name: _picklable(value) for name, value in self.fields.items()}
        state = {**self.__dict__, "fields": fields}
        del state["diag"]  # by name: an enumeration pickles its members by value, here their sentences
        return _restored, (type(self), self.diag.name), state


def _restored(kind: type[WarploomError], code: str) -> WarploomError:
    """An error of a kind, whose other attributes `pickle` and `copy` set afterwards."""
    error = kind(Diag.INTERNAL, None, (), {"what": ""})  # any entry will do; MemoryError has no __new__ for subclasses
    error.args, error.diag = (code,), Diag[code]
    return error


def _picklable(value: object) -> object:
    """Plain data as it is, anything else as its text."""
    if value is None or isinstance(value, str | int | float | Loc):
        return value
    if isinstance(value, tuple | list):
        return type(value)(map(_picklable, value)) if type(value) in (tuple, list) else str(value)
    if is_dataclass(value) and not isinstance(value, type):
        held = (getattr(value, each.name) for each in fields(value))
        return value if all(_picklable(each) == each for each in held) else str(value)
    return str(value)


def hide_library_frames(error: BaseException) -> None:
    """Leave only the caller's frames in the traceback of an error that is about to leave the library.

    For the `except` of a public function, followed by a bare `raise`, which does not add the frame that it is in (see
    `user_traceback`). Chained errors stay if the user's code took part in them. WARPLOOM_TRACEBACK=1 in the environment
    shows everything.
    """
    if getattr(error, "diag", None) is Diag.INTERNAL or os.environ.get("WARPLOOM_TRACEBACK"):
        return
    error.__traceback__ = _users_part(error.__traceback__)
    chained, seen = error.__cause__ or error.__context__, {id(error)}
    while chained is not None and id(chained) not in seen:
        seen.add(id(chained))
        theirs = _users_part(chained.__traceback__)
        if theirs is not None:
            chained.__traceback__ = theirs
            break
        chained = chained.__cause__ or chained.__context__
    else:
        chained = None
    error.__cause__, error.__context__ = None, chained
    error.__suppress_context__ = chained is None


def user_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function so that its errors show only the caller's frames."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except WarploomError as error:
            hide_library_frames(error)
            raise

    return called


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The entries of a traceback whose code is not warploom's, nor that of a package that warploom called."""
    entries: list[TracebackType] = []
    hidden: tuple[str, ...] = (_PACKAGE,)
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == _PACKAGE:
            hidden = (_PACKAGE, *_CALLED)
        if package not in hidden:
            entries.append(trace)
        trace = trace.tb_next
    linked = None
    for entry in reversed(entries):
        linked = TracebackType(linked, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return linked


_PACKAGE = __name__.partition(".")[0]
_CALLED = ("torch", "contextlib", "functools")
"""Packages whose frames are hidden below one of warploom's: it called them, and they called it."""


class PtxError(WarploomError, ValueError):
    """The text is not PTX that warploom can execute."""


class TraceError(WarploomError):
    """The kernel function, or the call that traces it, is invalid."""


class TraceTypeError(TraceError, TypeError):
    """A device value or a view is used in a way that its type does not allow."""


class TraceArgumentError(TraceError, ValueError, TypeError):
    """Arguments of a kernel or of one of its parts have a wrong value or type."""


class AssemblyError(WarploomError, RuntimeError):
    """NVIDIA's tools are missing, reject the PTX, or produce slow code from it."""


class DeviceError(WarploomError, RuntimeError):
    """No GPU can be used, or its driver reports an error."""


class LaunchError(WarploomError, ValueError):
    """The arguments cannot be launched; nothing was run or written."""


class ArgumentError(LaunchError, TypeError):
    """Arguments have a wrong value or type; nothing was run or written."""


class UnsupportedError(WarploomError, NotImplementedError):
    """The request is valid, but warploom does not implement it."""


class MissingPackage(WarploomError, ImportError):
    """An optional dependency is not installed."""


class InputError(WarploomError, ValueError):
    """A file, a setting or a command line is invalid."""


class FileError(WarploomError, OSError):
    """A file cannot be read or written."""


class OutOfMemory(WarploomError, MemoryError):
    """The computer does not have enough memory."""


class CheckError(WarploomError, AssertionError):
    """A check that had to succeed did not."""


class Fault(WarploomError, RuntimeError):
    """An instruction did something that the hardware does not allow; the run stopped there."""


class Stuck(WarploomError, RuntimeError):
    """The run cannot make progress, or reached its limit."""

    @property
    def waiters(self) -> tuple[Any, ...]:
        """The warps that had not finished, as data: where, in which state, and what they wait for."""
        found = self.fields.get("waiters", ())
        return found if isinstance(found, tuple) else ()


_FIELD = re.compile(r"\{(\w+)[^}]*\}")
_IN_GENERAL = {
    Diag.SYNTAX: "The text is not valid PTX.",
    Diag.NO_SUCH_GPU: "A Triton program uses a second GPU, and the emulated computer has one.",
    Diag.BAD_ARGUMENTS: "Arguments of an operation have invalid values or types.",
    Diag.BAD_OPERANDS: "The operands of an instruction do not match its form.",
    Diag.BAD_SHAPE: "An instruction does not support the shape, sizes or types it is used with.",
    Diag.BAD_SETTING: "An environment variable of warploom has an invalid value.",
    Diag.UNREADABLE_FILE: "A file does not exist, or is not text.",
    Diag.BARRIER_OVERFLOW: "An mbarrier receives more arrivals or bytes than its phase expects.",
    Diag.BAD_BARRIER: "A barrier is used in a way that the hardware does not allow.",
    Diag.TENSOR_MEMORY: "TMEM is accessed that is not allocated, or by a warp that cannot access these lanes.",
    Diag.REGISTER_POOL: "The warpgroups request more registers than the CTA has.",
    Diag.CTA_EXITED: "The shared memory of a CTA is reached after the CTA has exited.",
    Diag.ASYNC_MISUSE: "Asynchronous work is issued, awaited or left unfinished against the rules of the hardware.",
    Diag.DEADLOCK: "All unfinished warps wait, and no operation in flight can end a wait.",
    Diag.UNCOUNTABLE_ARRIVAL: "The number of threads that arrive at a barrier is not known while tracing.",
    Diag.MISMATCH: "A comparison of a launch file does not hold.",
    Diag.NOT_PROVED: "A kernel that had to be proved free of races and hangs was refuted, or the check is incomplete.",
    Diag.BAD_COMMAND: "The command line is invalid.",
    Diag.BAD_LAUNCH_FILE: "The launch file is invalid.",
}
"""Descriptions of the codes whose whole message is written where they are raised."""
_KIND: dict[Diag, type[WarploomError]] = {
    diag: kind
    for kind, diags in {
        PtxError: (
            Diag.SYNTAX, Diag.UNKNOWN_INSTRUCTION, Diag.BAD_OPERANDS, Diag.UNDECLARED, Diag.DUPLICATE,
            Diag.WRONG_TARGET, Diag.NO_SUCH_ENTRY, Diag.TOO_LONG,
        ),
        TraceError: (
            Diag.OUTSIDE_KERNEL, Diag.LEFT_LOOP_EARLY, Diag.BOX_MISMATCH, Diag.VALUE_OUT_OF_SCOPE, Diag.WRONG_ROLE,
            Diag.OTHERWISE_WITHOUT_WHEN, Diag.STAGE_DROPPED, Diag.STAGE_RELEASED_TWICE,
            Diag.STAGE_RELEASED_CONDITIONALLY, Diag.STAGE_AFTER_RELEASE, Diag.STAGE_ENTERED_TWICE,
            Diag.STAGE_WRONG_ROLE, Diag.TMEM_LOAD_NOT_WAITED, Diag.TMEM_HANDOVER_NOT_FENCED,
            Diag.STALE_ACCUMULATOR, Diag.ISSUED_BY_EVERY_LANE, Diag.UNCOUNTABLE_ARRIVAL, Diag.SIDE_UNUSED,
            Diag.BAD_TILE_LOOP,
        ),
        # Not an IndexError: Python's old iteration protocol takes that for the end of a sequence.
        TraceTypeError: (Diag.TYPE_MISMATCH, Diag.NOT_ON_DEVICE, Diag.BRANCH_ON_DEVICE_VALUE, Diag.BAD_INDEX),
        TraceArgumentError: (Diag.BAD_KERNEL, Diag.COUNT_MISMATCH, Diag.BAD_EPILOGUE, Diag.BAD_WRITER),
        AssemblyError: (Diag.NO_TOOL, Diag.NOT_ASSEMBLED, Diag.SLOW_CODE, Diag.NOT_DISASSEMBLED),
        DeviceError: (
            Diag.NO_DRIVER, Diag.NO_GPU, Diag.OLD_DRIVER, Diag.WRONG_GPU, Diag.DRIVER_REFUSED, Diag.GPU_FAULT,
        ),
        LaunchError: (
            Diag.BAD_LAUNCH, Diag.BAD_CONFIG, Diag.BAD_TENSOR_MAP, Diag.TOO_MUCH_SHARED, Diag.NOTHING_TO_TUNE,
            Diag.NOT_IN_THIS_PROCESS,
        ),
        ArgumentError: (Diag.BAD_ARGUMENTS, Diag.BAD_PLAN),
        UnsupportedError: (Diag.NOT_MODELLED, Diag.NO_DERIVATIVE, Diag.NO_SUCH_GPU),
        MissingPackage: (Diag.MISSING_PACKAGE,),
        InputError: (
            Diag.BAD_LAUNCH_FILE, Diag.WRONG_KIND_OF_FILE, Diag.BAD_EXPRESSION, Diag.BAD_SCHEDULE,
            Diag.BAD_MEASUREMENTS, Diag.BAD_SETTING, Diag.BAD_COMMAND, Diag.NO_SUCH_CODE,
        ),
        CheckError: (Diag.NOT_PROVED, Diag.SCHEDULE_DEPENDENT),
        FileError: (Diag.UNREADABLE_FILE, Diag.UNWRITABLE_FILE),
        OutOfMemory: (Diag.OUT_OF_MEMORY,),
        Fault: (
            Diag.OUT_OF_BOUNDS, Diag.NO_DYNAMIC_SHARED, Diag.MISALIGNED, Diag.READ_ONLY, Diag.BARRIER_NOT_INITIALISED,
            Diag.BARRIER_REINITIALISED, Diag.BARRIER_OVERFLOW, Diag.BAD_BARRIER, Diag.BAD_PARTICIPATION,
            Diag.BAD_DESCRIPTOR, Diag.BAD_COORDINATES, Diag.BAD_SHAPE, Diag.TENSOR_MEMORY, Diag.REGISTER_POOL,
            Diag.BAD_BRANCH, Diag.BAD_CALL, Diag.TRAP, Diag.ASYNC_MISUSE, Diag.CTA_EXITED,
        ),
        Stuck: (Diag.DEADLOCK, Diag.LIMIT, Diag.NO_PROGRESS, Diag.TIMEOUT),
    }.items()
    for diag in diags
}  # fmt: skip
"""The exception that an entry is raised as; MISMATCH and INTERNAL are plain `WarploomError`s."""
