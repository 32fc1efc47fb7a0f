"""The command line: reads the arguments, calls one command, returns its exit status.

0: success; 1: the numbers are not what the file expects, a form is unsupported, or the code would be slow; 2: a fault,
a deadlock or the instruction limit; 3: the input or the command is wrong; 4: warploom itself failed; 5: a launch file
ran without a fault and compares nothing; 6: a check is incomplete.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from warploom.commands.errors import (
    INTERRUPTED,
    MISMATCH,
    OK,
    catalogued,
    error_document,
    status_of,
)
from warploom.diagnostics import Diag, WarploomError
from warploom.version import __version__

DTYPES = ("bf16", "f16", "f32", "e4m3", "e5m2", "e2m1")
_MAJORS = ("k,k", "k,mn", "mn,k", "mn,mn")
_ACTIVATIONS = "relu, gelu, gelu_tanh, silu, tanh, sigmoid or squared_relu"
_OPERATION_OPTIONS = ("target", "dtype", "out_dtype", "bias", "residual", "activation")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status; an error is reported as a sentence, never as a traceback."""
    options: argparse.Namespace | None = None
    _fill_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal cannot show is no reason to stop
    try:
        options = _parser().parse_args(_with_flags(sys.argv[1:] if arguments is None else arguments))
        command: Callable[[argparse.Namespace], int] = options.command
        status = command(options)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        from warploom.commands.console import interrupted

        interrupted(error)
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()  # the reader has gone
        return OK
    except Exception as error:  # noqa: BLE001  every exception becomes a sentence
        as_json = getattr(options, "json", False)
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            _close_output()
            error, as_json = Diag.UNWRITABLE_FILE.error(file="standard output", what=error.strerror), False
        found = catalogued(error)
        _report(found, as_json=as_json)
        return status_of(found)
    return status


def _with_flags(arguments: Sequence[str]) -> list[str]:
    """Arguments in which the flags of `--nvcc` are part of it: argparse takes `-DNDEBUG` for an option of its own."""
    joined = list(arguments)
    if joined[:1] == ["cuda"] and "--nvcc" in joined[:-1]:
        at = joined.index("--nvcc")
        if not any(each.endswith(".cu") for each in joined[:at]):  # after the program, it is the program's own
            joined[at : at + 2] = [f"--nvcc={joined[at + 1]}"]
    return joined


def _fill_streams() -> None:
    """Send output to the null device where the caller has closed a stream."""
    if sys.stdout is None or sys.stderr is None:
        nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  it stays open, as streams do
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere


def _close_output() -> None:
    """Discard what is still to be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: WarploomError, *, as_json: bool) -> None:
    from warploom.commands.console import complain

    if as_json:
        print(json.dumps({"outcome": "error", "error": error_document(error)}, indent=1))  # noqa: T201
    complain(error)


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments as an error of the catalogue."""

    def error(self, message: str) -> NoReturn:
        what = message.removesuffix(", ...").rstrip(".")  # the arguments of a script or program, which may be none
        raise Diag.BAD_COMMAND.error(what=what, command=self.prog)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="warploom",
        description="Warp-specialised GPU kernels: emulated on this CPU, shown as PTX and SASS, tuned on a GPU.",
        epilog="`warploom COMMAND --help` shows the options of a command; `warploom docs` prints the documentation.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"warploom {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = _command(commands, "run", "run launch files on the emulator, on this CPU, and compare their outputs")
    run.add_argument(
        "targets",
        nargs="+",
        metavar="FILE.launch.json",
        help="a kernel's PTX, its inputs and expected outputs; `warploom new-launch` writes one; or MODULE:FUNCTION, a "
        "function that returns a Launch or several",
    )
    run.add_argument(
        "--schedule",
        default="explore",
        metavar="NAME|FILE",
        help="when asynchronous work takes effect: explore (default) tries several of eager, lazy, reverse, random, "
        "weak, hold:KIND and starve:WHO; one of these, or a file from --record or from `warploom check --witness`",
    )
    run.add_argument("--budget", type=_natural, metavar="N", help="number of schedules that explore tries (16)")
    run.add_argument("--seed", type=_natural, default=0, metavar="N", help="seed of the random schedule (0)")
    run.add_argument("--data-seed", type=_natural, metavar="N", help="seed of the random inputs, instead of the file's")
    run.add_argument("--limit", type=_natural, metavar="N", help="limit on executed warp instructions (50 million)")
    run.add_argument(
        "--max-bytes", type=_natural, metavar="N", help="limit on the bytes of all buffers together (1 GiB)"
    )
    run.add_argument(
        "--record",
        type=Path,
        metavar="FILE.json",
        help="write the schedule's choices, or those of the failing one, for --schedule",
    )
    run.add_argument("--json", action="store_true", help="print JSON")
    run.set_defaults(command=_run)

    check = _command(commands, "check", "prove launch files free of races and hangs in every interleaving, or refute")
    check.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="a launch file, as for `warploom run`, or MODULE:FUNCTION, a function that returns a Launch or several",
    )
    check.add_argument(
        "--profile",
        choices=("strict", "lenient"),
        default="strict",
        help="strict (default): the PTX ISA to the letter; lenient: also accepts what CUTLASS and Triton rely on",
    )
    check.add_argument(
        "--all-sizes", action="store_true", help="prove other numbers of K steps and tiles too, by recurrence"
    )
    check.add_argument(
        "--all-pairs", action="store_true", help="prove all numbers of tiles with each number of K steps; takes longer"
    )
    check.add_argument("--data-seed", type=_natural, metavar="N", help="seed of the random inputs, not the file's")
    check.add_argument("--limit", type=_natural, metavar="N", help="limit on executed warp instructions (50 million)")
    check.add_argument(
        "--max-bytes", type=_natural, metavar="N", help="limit on the bytes of all buffers together (1 GiB)"
    )
    check.add_argument("--allow-incomplete", action="store_true", help="exit with 0 where a check is incomplete")
    check.add_argument(
        "--redundant", action="store_true", help="also list barriers, fences and waits that this launch does not need"
    )
    check.add_argument(
        "--fail-on",
        choices=("any", "lenient", "confirmed", "never"),
        default="any",
        help="findings that make the exit status 1: any (default), those that remain under the profile lenient, those "
        "with a confirmed witness, or none",
    )
    check.add_argument("--suppress", type=Path, metavar="FILE.toml", help="accepted findings, each with a reason")
    check.add_argument(
        "--format", choices=("text", "json", "sarif", "junit", "github"), default="text", help="of the output (text)"
    )
    check.add_argument("--out", type=Path, metavar="FILE", help="write the output there, not to standard output")
    check.add_argument(
        "--witness",
        type=Path,
        metavar="DIR",
        help="write schedules that show the findings, for `warploom run --schedule`",
    )
    check.add_argument("-j", "--jobs", type=_natural, default=1, metavar="N", help="check in N processes (1)")
    check.set_defaults(command=_check)

    new = _command(commands, "new-launch", "write a launch file for a kernel of a PTX file, to edit and run")
    new.add_argument("file", type=Path, metavar="FILE.ptx", help="the PTX; the launch file is written next to it")
    new.add_argument("--entry", metavar="NAME", help="the kernel, where the file has more than one")
    new.add_argument("--out", type=Path, metavar="FILE.launch.json", help="the launch file (FILE.launch.json)")
    new.add_argument("--force", action="store_true", help="replace an existing file")
    new.set_defaults(command=_new_launch)

    ptx = _command(commands, "ptx", "describe a PTX file, or show the PTX of an operation (without a GPU)")
    ptx.add_argument(
        "file",
        type=Path,
        metavar="FILE.ptx|OPERATION",
        help="a file, or matmul, linear, gated_linear, grouped_matmul, blockwise_matmul, block_scaled_matmul",
    )
    ptx.add_argument("sizes", nargs="?", metavar="[Bx]MxNxK", help="operation: batches or groups, then M, N and K")
    ptx.add_argument("--target", metavar="NAME", help="operation: sm_90a (Hopper) or sm_100a (Blackwell)")
    ptx.add_argument("--dtype", choices=DTYPES, help="operation: type of the operands")
    ptx.add_argument("--out-dtype", choices=DTYPES, help="operation: type of the result")
    ptx.add_argument("--bias", action="store_true", help="operation: add a bias")
    ptx.add_argument("--residual", action="store_true", help="operation: add a residual")
    ptx.add_argument("--activation", metavar="NAME", help=f"operation: {_ACTIVATIONS}")
    ptx.add_argument("--unsupported", action="store_true", help="only list unsupported instruction forms")
    ptx.add_argument(
        "--registers", action="store_true", help="assemble with ptxas; show registers, spills and shared memory"
    )
    ptx.add_argument("--sass", action="store_true", help="assemble with ptxas; show SASS")
    ptx.add_argument("--json", action="store_true", help="print JSON")
    ptx.set_defaults(command=_ptx)

    demo = _command(commands, "demo", "emulate a fused layer and two Triton GEMMs, and find two planted bugs")
    demo.set_defaults(command=_demo)

    tune = _command(commands, "tune", "measure configurations on the GPU and remember the fastest for later calls")
    tune.add_argument(
        "sizes", nargs="*", metavar="[Bx]MxNxK", help="batches, M, N and K of A (M, K) times B (N, K) transposed"
    )
    tune.add_argument("--dtype", choices=DTYPES[:-1], help="type of the operands (bf16, or e4m3 with --blockwise)")
    tune.add_argument(
        "--majors",
        choices=_MAJORS,
        default=_MAJORS[0],
        metavar="A,B",
        help="contiguous dimension of A and of B, k or mn each: k,mn is A (M, K) times B (K, N)",
    )
    tune.add_argument("--out-dtype", choices=DTYPES[:-1], help="type of the result")
    tune.add_argument("--bias", action="store_true", help="add a bias")
    tune.add_argument("--residual", action="store_true", help="add a residual")
    tune.add_argument("--activation", metavar="NAME", help=_ACTIVATIONS)
    tune.add_argument(
        "--grouped", type=_natural, default=0, metavar="G", help="grouped: M rows in G groups, each with a B"
    )
    tune.add_argument("--blockwise", action="store_true", help="FP8 operands with scales for blocks of 128")
    tune.add_argument(
        "--most", type=_natural, default=16, metavar="N", help="number of candidates to measure, in ranked order (16)"
    )
    tune.add_argument("--all", action="store_true", help="measure all candidates")
    tune.add_argument("--out", type=Path, metavar="FILE.json", help="write the measurements, for --fit")
    tune.add_argument(
        "--fit",
        type=Path,
        nargs="+",
        metavar="FILE.json",
        help="fit the heuristics to measurements instead of measuring; needs no GPU",
    )
    tune.add_argument(
        "--data", type=Path, metavar="FILE.json", help="fit the heuristics and write a data file: table, model, trees"
    )
    tune.add_argument("--keep-constants", action="store_true", help="with --data: keep the model's shipped constants")
    tune.add_argument("--cross-validate", action="store_true", help="with --fit: regret of trees on unseen shapes")
    tune.add_argument("--json", action="store_true", help="print JSON")
    tune.set_defaults(command=_tune)

    triton = _command(commands, "triton", "run a Triton or Gluon script on the emulator, unmodified")
    triton.add_argument("--target", default="sm_90", metavar="NAME", help="the GPU to emulate: sm_90 (default), sm_100")
    triton.add_argument(
        "--schedule",
        default="eager",
        metavar="NAME|FILE",
        help="when asynchronous work takes effect; see `run`",
    )
    triton.add_argument(
        "--budget", type=_natural, default=16, metavar="N", help="number of schedules that explore tries (16)"
    )
    triton.add_argument("--seed", type=_natural, default=0, metavar="N", help="seed of the random schedule (0)")
    triton.add_argument("--sms", type=_natural, metavar="N", help="number of SMs (default: those of the hardware)")
    triton.add_argument("--limit", type=_natural, metavar="N", help="limit on the warp instructions of a launch")
    triton.add_argument("--timeout", type=_seconds, metavar="S", help="time limit of the script, in seconds")
    triton.add_argument("--record", type=Path, metavar="DIR", help="write a launch file for every launch, for `run`")
    triton.add_argument("--check", action="store_true", help="check every launch, and exit as `warploom check` does")
    triton.add_argument(
        "--profile", choices=("strict", "lenient"), default="strict", help="of --check; see `warploom check` (strict)"
    )
    triton.add_argument(
        "--autotune", default="first", metavar="first|all", help="run the first configuration that fits, or all"
    )
    triton.add_argument("--bench", action="store_true", help="run do_bench and perf_report in full, not once")
    triton.add_argument("-m", dest="module", action="store_true", help="SCRIPT.py is a module's name, as for python -m")
    triton.add_argument("script", type=Path, metavar="SCRIPT.py", help="the program, followed by its arguments")
    triton.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
    triton.set_defaults(command=_triton)

    cuda = _command(commands, "cuda", "compile a CUDA C++ program with nvcc and run it on the emulator, unmodified")
    cuda.add_argument(
        "--target", default="sm_90a", metavar="NAME", help="the GPU to emulate: sm_90a (default), sm_100a"
    )
    cuda.add_argument("--nvcc", default="", metavar="FLAGS", help="more options of nvcc, such as '-Iinclude -DNDEBUG'")
    cuda.add_argument("--build", type=Path, metavar="DIR", help="keep the compiled program there, for the next call")
    cuda.add_argument(
        "--schedule", default="eager", metavar="NAME|FILE", help="when asynchronous work takes effect; see `run`"
    )
    cuda.add_argument(
        "--budget", type=_natural, default=16, metavar="N", help="number of schedules that explore tries (16)"
    )
    cuda.add_argument("--seed", type=_natural, default=0, metavar="N", help="seed of the random schedule (0)")
    cuda.add_argument("--sms", type=_natural, metavar="N", help="number of SMs (default: those of the hardware)")
    cuda.add_argument("--limit", type=_natural, metavar="N", help="limit on the warp instructions of a launch")
    cuda.add_argument("--timeout", type=_seconds, metavar="S", help="time limit of the program, in seconds")
    cuda.add_argument(
        "--repeats", type=_natural, metavar="N", help="run at most N equal launches in a row: shortens timing loops"
    )
    cuda.add_argument("--record", type=Path, metavar="DIR", help="write a launch file for every launch, for `run`")
    cuda.add_argument("--check", action="store_true", help="check every launch, and exit as `warploom check` does")
    cuda.add_argument(
        "--profile", choices=("strict", "lenient"), default="strict", help="of --check; see `warploom check` (strict)"
    )
    cuda.add_argument("source", type=Path, metavar="PROGRAM.cu", help="the program, followed by its arguments")
    cuda.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
    cuda.set_defaults(command=_cuda)

    doctor = _command(commands, "doctor", "report what is installed, what will be used, and what is missing")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(command=_doctor)

    docs = _command(commands, "docs", "list the pages of the documentation, or print one")
    docs.add_argument("page", nargs="?", metavar="PAGE", help="for example launch-files")
    docs.set_defaults(command=_docs)

    explain = _command(
        commands, "explain", "explain a code of an error or a finding, or an instruction: operands, effects, semantics"
    )
    explain.add_argument(
        "name", nargs="?", metavar="CODE|INSTRUCTION", help="DEADLOCK, or mbarrier.arrive; without it, list all codes"
    )
    explain.set_defaults(command=_explain)
    return parser


def _command(commands: Any, name: str, help_: str) -> argparse.ArgumentParser:
    """A command with the same description in the list of commands and in its own help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.", allow_abbrev=False
    )
    return parser


def _seconds(text: str) -> float:
    """A positive number of seconds, at most a year."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 365 * 24 * 3600:
        raise argparse.ArgumentTypeError(f"`{text}` is not a positive number of seconds")
    return seconds


def _natural(text: str) -> int:
    """A non-negative integer."""
    if not text.isdecimal() or len(text) > 20:
        raise argparse.ArgumentTypeError(f"`{text}` is not a non-negative integer")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from warploom.commands.run import Settings, run

    given = {"limit": options.limit, "max_bytes": options.max_bytes, "budget": options.budget}
    bounds = {name: value for name, value in given.items() if value is not None}
    settings = Settings(options.schedule, options.seed, record=options.record, data_seed=options.data_seed, **bounds)
    return run(options.targets, settings, as_json=options.json)


def _check(options: argparse.Namespace) -> int:
    from warploom.commands.check import Settings, run

    names = ("profile", "data_seed", "allow_incomplete", "fail_on", "suppress", "format", "out", "witness", "jobs")
    given = {name: getattr(options, name) for name in (*names, "all_sizes", "all_pairs", "redundant")}
    given |= {name: getattr(options, name) for name in ("limit", "max_bytes") if getattr(options, name) is not None}
    return run(options.targets, Settings(**given))


def _new_launch(options: argparse.Namespace) -> int:
    from warploom.commands.new_launch import new_launch

    new_launch(options.file, entry=options.entry, out=options.out, force=options.force)
    return OK


def _ptx(options: argparse.Namespace) -> int:
    shown = {"registers": options.registers, "sass": options.sass, "as_json": options.json}
    if options.sizes is not None or _is_operation(options.file):
        from warploom.commands.operation import Call, show

        if options.unsupported:
            what = "--unsupported is for files: every instruction form of an operation is supported"
            raise Diag.BAD_COMMAND.error(what=what, command="warploom ptx")
        given = {name: getattr(options, name) for name in _OPERATION_OPTIONS}
        return OK if show(str(options.file), Call(options.sizes or "", **given), **shown) else MISMATCH
    needing = [f"--{name.replace('_', '-')}" for name in _OPERATION_OPTIONS if getattr(options, name)]
    if needing:
        what = f"{', '.join(needing)}: only for an operation, whose sizes are missing"
        raise Diag.BAD_COMMAND.error(what=what, command="warploom ptx")
    from warploom.commands.ptx import describe

    return OK if describe(options.file, only_unsupported=options.unsupported, **shown) else MISMATCH


def _is_operation(file: Path) -> bool:
    """True for the name of an operation whose sizes were forgotten."""
    if file.suffix or file.exists():
        return False
    from warploom.commands.operation import OPERATIONS

    return str(file) in OPERATIONS


def _demo(options: argparse.Namespace) -> int:
    from warploom.demo import demo

    return OK if demo() else MISMATCH


def _tune(options: argparse.Namespace) -> int:
    if bool(options.sizes) == bool(options.fit):
        what = "pass either sizes to measure, or --fit with files"
        raise Diag.BAD_COMMAND.error(what=what, command="warploom tune")
    from warploom.commands.tune import FitOptions, Request, fit_files, tune_all

    fit = FitOptions(data=options.data, keep_constants=options.keep_constants, cross_validate=options.cross_validate)
    if options.fit:
        fit_files(options.fit, fit)
        return OK
    names = ("grouped", "blockwise", "dtype", "majors", "out_dtype", "bias", "residual", "activation")
    given = {name: getattr(options, name) for name in names}
    request = Request(sizes=tuple(options.sizes), most=None if options.all else options.most, **given)
    return OK if tune_all(request, as_json=options.json, file=options.out, fit=fit) else MISMATCH


def _triton(options: argparse.Namespace) -> int:
    from warploom.commands.triton import run_module, run_script

    names = ("target", "schedule", "seed", "sms", "limit", "timeout", "record", "autotune", "bench", "budget")
    given = {name: getattr(options, name) for name in names}
    given["check"] = options.check and options.profile
    if options.module:
        return run_module(str(options.script), options.arguments, **given)
    return run_script(options.script, options.arguments, **given)


def _cuda(options: argparse.Namespace) -> int:
    from warploom.commands.cuda import run_program

    names = ("target", "schedule", "seed", "sms", "limit", "timeout", "record", "repeats", "budget", "nvcc")
    given = {name: getattr(options, name) for name in names}
    given["check"] = options.check and options.profile
    return run_program(options.source, options.arguments, folder=options.build, **given)


def _doctor(options: argparse.Namespace) -> int:
    from warploom.commands.doctor import doctor

    doctor(as_json=options.json)
    return OK


def _docs(options: argparse.Namespace) -> int:
    from warploom.commands.docs import docs

    docs(options.page)
    return OK


def _explain(options: argparse.Namespace) -> int:
    from warploom.commands.explain import explain

    explain(options.name)
    return OK


if __name__ == "__main__":
    sys.exit(main())
