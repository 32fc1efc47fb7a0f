"""Every message a user can meet: one catalogue, one place to say it well.

A member's name is the stable code. Its value is (what happened, what to do), in the user's words;
`{braces}` are filled in where the error is raised.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Loc:
    """A line of source text: the author's when the PTX carries it, else the line of the PTX itself."""

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"


class Diag(Enum):
    """The catalogue: (sentence, advice)."""

    # The language: reading and verifying PTX.
    SYNTAX = ("Not PTX: {what}.", "Correct the line; warploom reads the text that ptxas reads.")
    UNKNOWN_INSTRUCTION = (
        "`{text}` is not an instruction form that warploom knows.",
        "The nearest known form is `{nearest}`; `warploom ptx --unsupported FILE` lists all unknown forms of a module.",
    )
    BAD_OPERANDS = ("`{text}`: {what}.", "The form takes: {takes}.")
    UNDECLARED = ("`{name}` is used but never declared.", "Declare it, or correct its spelling.")
    DUPLICATE = ("`{name}` is declared twice in one scope.", "Rename one of the two.")
    WRONG_TARGET = ("`{text}` needs {needs}; the module says `.target {target}`.", "Compile for a target that has it.")
    TOO_LONG = (
        "`{name}` has more than {most} instructions once its calls are put in place.",
        "Split the kernel, or unroll less: the machine translates no more at once.",
    )
    NO_SUCH_ENTRY = ("There is no kernel `{entry}` in the module; it has {entries}.", "Name one of them with `entry=`.")

    # The launch: what the caller passed.
    BAD_LAUNCH = ("The launch cannot be made: {what}.", "Correct the arguments; nothing was run or written.")
    BAD_ARGUMENTS = (
        "`{function}` cannot be called so; {count} fault(s), in {what}:",
        "Correct the arguments; nothing was run or written.",
    )
    BAD_CONFIG = (
        "The configuration breaks {count} rule(s): {what}.",
        "Change what is named, or leave it out so that it is derived; nothing was run or written.",
    )
    BAD_TENSOR_MAP = ("The tensor map breaks {count} rule(s): {what}.", "Correct the map; nothing was run or written.")
    NOT_MODELLED = ("{what} is not modelled by the machine.", "Report the kernel; the machine never guesses.")

    # Faults: what an instruction did.
    OUT_OF_BOUNDS = ("{what} reaches outside {space} memory.", "Mask the access or enlarge the buffer.")
    NO_DYNAMIC_SHARED = (
        "{what} reaches outside {space} memory; the kernel uses `{name}`, and the launch gives it no bytes.",
        "Pass `shared_bytes`: Triton has it in `compiled.metadata.shared`, CUDA as the third value of <<<...>>>.",
    )
    MISALIGNED = ("{what} is not aligned to {align} bytes.", "Align the address to the width of the access.")
    READ_ONLY = ("{what} writes a buffer that is read-only.", "Pass a writeable array.")
    TOO_MUCH_SHARED = (
        "The kernel needs {need} bytes of shared memory; {target} has {have} per block.",
        "Use fewer stages or smaller tiles.",
    )
    BARRIER_NOT_INITIALISED = (
        "There is no initialised mbarrier at {what}.",
        "Run mbarrier.init, fence it, and synchronise before the first use.",
    )
    BARRIER_REINITIALISED = ("The mbarrier {what} is initialised while it is live.", "Run mbarrier.inval first.")
    BARRIER_OVERFLOW = ("{what}", "Check the arrival count and the expected bytes of this phase.")
    BAD_BARRIER = ("{what}", "Check which barrier it is, who uses it, and in what order.")
    BAD_PARTICIPATION = (
        "`{text}` needs {needs}; {found} took part.",
        "Move it out of the divergent branch, or pass the mask of the lanes that reach it.",
    )
    BAD_DESCRIPTOR = ("The {kind} descriptor {value:#x} is illegal: {what}.", "Correct the encoding. Fields: {fields}.")
    BAD_COORDINATES = (
        "The tensor copy at coordinates {coords} is illegal: {what}.",
        "Correct the coordinates; they count elements, innermost first.",
    )
    BAD_SHAPE = ("`{text}`: {what}.", "Choose a shape that the instruction has.")
    TENSOR_MEMORY = ("{what}", "Check the column, the allocation and the warp's lane quadrant.")
    REGISTER_POOL = ("{what}", "Check setmaxnreg against the registers of the other warpgroups.")
    BAD_BRANCH = ("Target {index} of a table of {count} does not exist.", "Check the index of `brx.idx`.")
    BAD_CALL = (
        "`{text}` goes to {address:#x}, where there is no function of its signature.",
        "Check the pointer: whether it was set, and whether parameters and results fit the function.",
    )
    TRAP = ("The kernel executed `trap`.", "It is the kernel's own assertion: look at the condition above it.")
    ASYNC_MISUSE = ("{what}", "Check the order of issue, commit and wait.")

    # No progress.
    DEADLOCK = (
        "{what}",
        "Look for what is missing: a release that is skipped, or a wrong count, parity, number of bytes or barrier.",
    )
    LIMIT = (
        "The run used {used} warp instructions; the limit is {limit}.",
        "Raise `limit`, or look for an endless loop.",
    )
    NO_PROGRESS = (
        "{used} warp instructions ran without any memory effect: every warp only spins.",
        "Look for the store or arrival that the loops wait for.",
    )

    # Tracing: what the author's Python said.
    OUTSIDE_KERNEL = ("{what} was used outside a kernel.", "Call it from a function decorated with @kernel.")
    BRANCH_ON_DEVICE_VALUE = (
        "Python tried to decide `if`, `while` or `and` on a value that exists only on the device.",
        "Use `with when(condition):`, for a value `select(condition, a, b)`; a Python number is known while tracing.",
    )
    LEFT_LOOP_EARLY = (
        "{statement} leaves the body of a device {kind} (opened at {opened}); it would drop code for all threads.",
        "Python runs it while tracing. Put the code that it should skip under `with when(...):` instead.",
    )
    VALUE_OUT_OF_SCOPE = (
        "A device value made in a {kind} (opened at {made}) is used after that {kind} has ended.",
        "Python keeps the name alive, the device does not: compute it again here, or keep it in a variable.",
    )
    TYPE_MISMATCH = ("The types do not fit: {what}.", "Convert one side with `.to(type)`.")
    WRONG_ROLE = (
        "A device value made by role `{maker}` (opened at {made}) is used by role `{user}`.",
        "Roles are different warps: pass it through shared memory and a barrier, or compute it before the roles part.",
    )
    BAD_INDEX = ("The view cannot be indexed so: {what}.", "Index with one integer, or device integer, per dimension.")
    OTHERWISE_WITHOUT_WHEN = ("`otherwise()` does not follow a `when(...)` block.", "Put it directly behind the block.")
    BAD_KERNEL = ("The kernel cannot be traced: {what}.", "Correct the call; nothing was run.")
    STAGE_DROPPED = (
        "A {side} stage of `{pipeline}`, acquired here, is never released.",
        "Use `with`, or call `release()` on every way through the code: the other side waits for it.",
    )
    STAGE_RELEASED_TWICE = (
        "A {side} stage of `{pipeline}` is released again; it was released at {first}.",
        "Release a stage once: leaving its `with` block does it if nothing else has.",
    )
    STAGE_RELEASED_CONDITIONALLY = (
        "A {side} stage of `{pipeline}`, acquired at {acquired}, is released inside a device {kind}.",
        "Release it where it was acquired: the count of its barrier holds only if every thread releases it once.",
    )
    STAGE_AFTER_RELEASE = (
        "A {side} stage of `{pipeline}` is used after its release at {released}.",
        "Use it before: the other side may already have it.",
    )
    STAGE_ENTERED_TWICE = (
        "A {side} stage of `{pipeline}` is acquired while the one from {first} is still open.",
        "Release the first before; a ring gives its stages one by one.",
    )
    STAGE_WRONG_ROLE = (
        "Role `{role}` acquires a {side} stage of `{pipeline}`, whose {side} is {declared}.",
        "Name the role when the pipeline is made: the counts of its barriers come from there.",
    )
    UNCOUNTABLE_ARRIVAL = (
        "{what}",
        "Guard an arrival by `role.elected` or `lane() < n` and nothing else, so that arrivals can be counted.",
    )
    COUNT_MISMATCH = (
        "`{pipeline}` was given {given} {what}; its roles make {derived}.",
        "Leave the number out: it is derived from the roles and how they signal.",
    )
    SIDE_UNUSED = (
        "Role `{role}` is declared {side} of `{pipeline}` and never acquires a stage.",
        "Acquire and release stages in that role, or do not declare it: the other side would wait for ever.",
    )
    BAD_TILE_LOOP = (
        "The tiles cannot be walked here: {what}.",
        "Write `for tile in tiles:` directly under `with roles.…:`, once in each role that works on tiles.",
    )
    BAD_EPILOGUE = (
        "The epilogue has {count} fault(s): {what}.",
        "An epilogue is `f(value, at, **operands)`: one device value for another, for each element of C.",
    )
    BAD_WRITER = (
        "The tile writer cannot be used so; {count} fault(s): {what}.",
        "Leave out what it derives, or give what the configuration says.",
    )

    # Assembly: what NVIDIA's tools said.
    NO_TOOL = (
        "There is no {tool} to use: {what}.",
        "On Linux or Windows run `pip install 'warploom[cuda]'`, or name the program in {variable}.",
    )
    NOT_ASSEMBLED = (
        "{tool} does not assemble the PTX for {target}: {what}.",
        "Correct the lines that it names; for a newer PTX version or target run `pip install -U nvidia-cuda-nvcc`.",
    )
    SLOW_CODE = (
        "ptxas assembled the PTX for {target}, but the code would be slow: {what}.",
        "{advice} `strict=False` takes the code as it is.",
    )
    NOT_DISASSEMBLED = ("nvdisasm cannot read the cubin: {what}.", "Take a cubin that this ptxas made.")
    BAD_SETTING = ("{variable} is `{value}`: {what}.", "Correct the environment variable, or remove it.")

    # The GPU: what the driver has and says.
    NO_DRIVER = (
        "There is no NVIDIA driver to use: {what}.",
        "Install the driver, or pass NumPy arrays, which run on the machine. `warploom doctor` tells what is found.",
    )
    NO_GPU = (
        "The NVIDIA driver has no GPU to use: {what}.",
        "Check it with nvidia-smi, or pass NumPy arrays, which run on the machine.",
    )
    OLD_DRIVER = (
        "The NVIDIA driver is too old: it speaks CUDA {found}, and CUDA {needed} is needed.",
        "Update the driver, or pass NumPy arrays, which run on the machine.",
    )
    WRONG_GPU = (
        "{gpu} cannot run this: {what}.",
        "Use a GPU that the kernel is for, or pass NumPy arrays, which run on the machine.",
    )
    DRIVER_REFUSED = (
        "The NVIDIA driver refuses {what}: {sentence}.",
        "Correct what it names; nothing was launched.",
    )
    GPU_FAULT = (
        "A kernel that was launched before has failed on the GPU: {what}.",
        "Start the process anew, and run the kernel on the machine or under compute-sanitizer to see where.",
    )
    BAD_PLAN = (
        "The prepared call does not fit; {count} fault(s): {what}.",
        "Pass arrays like those that it was made for, or prepare another; nothing was launched.",
    )
    NOTHING_TO_TUNE = (
        "There is nothing to tune: {what}.",
        "Pass arrays of a Hopper GPU, or a function of a configuration that gives a launch, and `candidates`.",
    )
    NO_DERIVATIVE = (
        "{what} can have no derivative.",
        "Call it under torch.no_grad(), or with tensors that need no gradient.",
    )
    NOT_IN_THIS_PROCESS = (
        "The graph calls an operation with functions or a configuration, `{name}`, that this process does not know.",
        "Compile or export it here, or save it without `epilogue`, `store`, `pair`, `config` and `target`.",
    )

    # Files and commands.
    BAD_LAUNCH_FILE = ("{file}: {what}", "See docs/launch-files.md.")
    NOT_A_LAUNCH_FILE = (
        "{file} is PTX; `warploom run` takes launch files, which name a kernel, its inputs and its outputs.",
        "`warploom new-launch {file}` writes a launch file to edit; see docs/launch-files.md.",
    )
    BAD_EXPRESSION = ("`{text}` is not a comparison: {what}.", "See docs/launch-files.md for the grammar.")
    BAD_SCHEDULE = ("`{name}` is not a schedule: {what}.", "Use eager, lazy, reverse, random, or a recorded file.")
    MISMATCH = ("{what}", "The kernel's numbers are not what the file expects.")
    UNREADABLE_FILE = ("{file} {what}.", "Name a text file that exists.")
    UNWRITABLE_FILE = ("{file} cannot be written: {what}.", "Name a file in a folder that you may write to.")
    OUT_OF_MEMORY = ("This computer has not enough memory: {what}.", "Declare smaller buffers or variables.")
    BAD_MEASUREMENTS = (
        "{file} does not hold measurements of configurations: {what}.",
        "Name a file that `warploom tune … --out FILE` wrote.",
    )
    BAD_COMMAND = ("{what}.", "`{command} --help` shows what it takes.")
    NO_SUCH_CODE = ("`{name}` is not a code of the catalogue.", "{hint}`warploom explain` lists all codes.")
    INTERNAL = (
        "warploom itself failed: {what}.",
        "Report it with the input that shows it; WARPLOOM_TRACEBACK=1 in the environment shows where it failed.",
    )

    @property
    def meaning(self) -> str:
        """The sentence without the values of one error."""
        return _IN_GENERAL.get(self, _FIELD.sub(r"<\1>", self.value[0]))

    @property
    def advice(self) -> str:
        """What to do, without the values of one error."""
        return _FIELD.sub(r"<\1>", self.value[1])

    @property
    def kind(self) -> str:
        """The exception that it is raised as, and what all of them have in common."""
        raised = _KIND.get(self, WarploomError)
        return f"{raised.__name__}: {raised.__doc__}"

    def error(self, loc: Loc | None = None, notes: Iterable[str] = (), **fields: object) -> WarploomError:
        """The exception for this entry; the subclass says at which step it happened."""
        return _KIND.get(self, WarploomError)(self, loc, tuple(notes), fields)


class WarploomError(Exception):
    """Base class of all catalogued errors: code, location, message, notes and advice.

    Subclasses are also the builtin exception that Python's conventions ask for: `ValueError`, `TypeError`,
    `RuntimeError` and so on. Errors can be copied and pickled, so they reach the parent of a process pool.
    """

    def __init__(self, diag: Diag, loc: Loc | None, notes: tuple[str, ...], fields: dict[str, object]) -> None:
        self.diag, self.loc, self.notes, self.fields = diag, loc, notes, fields
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
    return str(value)


def hide_library_frames(error: WarploomError) -> None:
    """Leave only the caller's frames in the traceback of an error that is about to leave the library.

    For the `except WarploomError` of a public function, followed by a bare `raise`, which does not add the frame that
    it is in (see `user_traceback`). Chained errors stay if the user's code took part in them.
    WARPLOOM_TRACEBACK=1 in the environment shows everything.
    """
    if error.diag is Diag.INTERNAL or os.environ.get("WARPLOOM_TRACEBACK"):
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
    """The entries of a traceback whose code is not warploom's."""
    entries = []
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] != _PACKAGE:
            entries.append(trace)
        trace = trace.tb_next
    linked = None
    for entry in reversed(entries):
        linked = TracebackType(linked, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return linked


_PACKAGE = __name__.partition(".")[0]


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


class InputError(WarploomError, ValueError):
    """A file, a setting or a command line is invalid."""


class FileError(WarploomError, OSError):
    """A file cannot be read or written."""


class OutOfMemory(WarploomError, MemoryError):
    """The computer does not have enough memory."""


class Fault(WarploomError, RuntimeError):
    """An instruction did something that the hardware does not allow; the run stopped there."""


class Stuck(WarploomError, RuntimeError):
    """The run cannot make progress, or reached its limit."""


_FIELD = re.compile(r"\{(\w+)[^}]*\}")
_IN_GENERAL = {
    Diag.SYNTAX: "The text is not PTX.",
    Diag.BAD_OPERANDS: "An instruction has operands that its form does not take.",
    Diag.BAD_SHAPE: "An instruction has a shape, or sizes, that it does not come in.",
    Diag.BAD_SETTING: "An environment variable of warploom's has a value that it cannot have.",
    Diag.UNREADABLE_FILE: "A file does not exist, or is not text.",
    Diag.BARRIER_OVERFLOW: "An mbarrier gets more arrivals or bytes than its phase has room for.",
    Diag.BAD_BARRIER: "A barrier is used as no barrier of its kind can be.",
    Diag.TENSOR_MEMORY: "Tensor memory is used that is not allocated, or by a warp that does not reach it.",
    Diag.REGISTER_POOL: "The warpgroups ask for more registers than the CTA has.",
    Diag.ASYNC_MISUSE: "Asynchronous work is issued, waited for or left behind as hardware does not allow.",
    Diag.DEADLOCK: "All warps that have not finished wait, and nothing is in flight that could end a wait.",
    Diag.UNCOUNTABLE_ARRIVAL: "How many threads arrive at a barrier cannot be told while the kernel is traced.",
    Diag.MISMATCH: "A comparison of a launch file does not hold.",
    Diag.BAD_COMMAND: "The command line is not one that warploom takes.",
    Diag.BAD_LAUNCH_FILE: "The launch file is not one that warploom takes.",
}
"""What codes mean whose whole sentence is written where they are raised."""
_KIND: dict[Diag, type[WarploomError]] = {
    diag: kind
    for kind, diags in {
        PtxError: (
            Diag.SYNTAX, Diag.UNKNOWN_INSTRUCTION, Diag.BAD_OPERANDS, Diag.UNDECLARED, Diag.DUPLICATE,
            Diag.WRONG_TARGET, Diag.NO_SUCH_ENTRY, Diag.TOO_LONG,
        ),
        TraceError: (
            Diag.OUTSIDE_KERNEL, Diag.LEFT_LOOP_EARLY, Diag.VALUE_OUT_OF_SCOPE, Diag.WRONG_ROLE,
            Diag.OTHERWISE_WITHOUT_WHEN, Diag.STAGE_DROPPED, Diag.STAGE_RELEASED_TWICE,
            Diag.STAGE_RELEASED_CONDITIONALLY, Diag.STAGE_AFTER_RELEASE, Diag.STAGE_ENTERED_TWICE,
            Diag.STAGE_WRONG_ROLE, Diag.UNCOUNTABLE_ARRIVAL, Diag.SIDE_UNUSED, Diag.BAD_TILE_LOOP,
        ),
        # Not an IndexError: Python's old iteration protocol takes that for the end of a sequence.
        TraceTypeError: (Diag.TYPE_MISMATCH, Diag.BRANCH_ON_DEVICE_VALUE, Diag.BAD_INDEX),
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
        UnsupportedError: (Diag.NOT_MODELLED, Diag.NO_DERIVATIVE),
        InputError: (
            Diag.BAD_LAUNCH_FILE, Diag.NOT_A_LAUNCH_FILE, Diag.BAD_EXPRESSION, Diag.BAD_SCHEDULE, Diag.BAD_MEASUREMENTS,
            Diag.BAD_SETTING, Diag.BAD_COMMAND, Diag.NO_SUCH_CODE,
        ),
        FileError: (Diag.UNREADABLE_FILE, Diag.UNWRITABLE_FILE),
        OutOfMemory: (Diag.OUT_OF_MEMORY,),
        Fault: (
            Diag.OUT_OF_BOUNDS, Diag.NO_DYNAMIC_SHARED, Diag.MISALIGNED, Diag.READ_ONLY, Diag.BARRIER_NOT_INITIALISED,
            Diag.BARRIER_REINITIALISED, Diag.BARRIER_OVERFLOW, Diag.BAD_BARRIER, Diag.BAD_PARTICIPATION,
            Diag.BAD_DESCRIPTOR, Diag.BAD_COORDINATES, Diag.BAD_SHAPE, Diag.TENSOR_MEMORY, Diag.REGISTER_POOL,
            Diag.BAD_BRANCH, Diag.BAD_CALL, Diag.TRAP, Diag.ASYNC_MISUSE,
        ),
        Stuck: (Diag.DEADLOCK, Diag.LIMIT, Diag.NO_PROGRESS),
    }.items()
    for diag in diags
}  # fmt: skip
"""The exception that an entry is raised as; MISMATCH and INTERNAL are plain `WarploomError`s."""
