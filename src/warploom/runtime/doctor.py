"""The findings of `warploom doctor`: what this computer has for warploom, what is missing, and what to do about it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.targets import machine, reason_unsupported
from warploom.runtime.cache.disk import DIRECTORY, SIZE, user_cache
from warploom.runtime.gpu.driver import OLDEST, Gpu
from warploom.runtime.toolchain.tools import NVDISASM, PTXAS, Tool, find

_PROBE = Path(__file__).parent / "gpu" / "probe.py"
_PATIENCE = 30.0
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*=\s*(?:'([\d.]+)'|\"([\d.]+)\"|None)", re.MULTILINE)
_INSTALL = "pip install 'warploom[cuda]'"
_REPAIR = "install what is missing, or reinstall torch; tensors need it"
_TUNE = "`warploom tune MxNxK` measures your shapes on this GPU"
_IMPORT_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One subject: found or not, the details, and what to do if it is needed."""

    subject: str
    found: bool
    what: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver: its CUDA version (None if there is no driver), its GPUs, and what is wrong with it."""

    cuda: tuple[int, int] | None
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def examine(
    describe: Callable[[Gpu | None], str] | None = None, engine: Callable[[], str] | None = None
) -> tuple[Finding, ...]:
    """Return everything that decides where and how a call runs, in the order in which it is needed.

    `describe` names the data by which configurations are chosen for a GPU, or for the emulator; `engine` names what
    executes the instructions of emulated kernels.
    """
    driver, assembler = driver_here(), _tool(PTXAS)
    return (
        Finding("warploom", found=True, what=_warploom()),
        _driver_finding(driver),
        _gpu_finding(driver),
        _tool_finding(PTXAS, assembler),
        _tool_finding(NVDISASM, _tool(NVDISASM)),
        _torch_finding(),
        _cache_finding(),
        *([] if describe is None else [_configuration_finding(driver, describe)]),
        Finding("NumPy arrays", found=True, what="run on the emulator, on this CPU"),
        *([] if engine is None else [Finding("engine", found=True, what=engine())]),
        _verdict(driver, assembler),
    )


def _configuration_finding(driver: Driver, describe: Callable[[Gpu | None], str]) -> Finding:
    """Name what ranks configurations on each usable GPU; extrapolated data count as missing."""
    gpus = [gpu for gpu in driver.gpus if gpu.target]
    if not gpus:
        return Finding("configurations", found=True, what=f"of the emulator: {describe(None)}")
    described = {f"{gpu.name}: {describe(gpu)}": None for gpu in gpus}
    is_measured = not any("extrapolated" in each for each in described)
    return Finding("configurations", is_measured, "; ".join(described), "" if is_measured else _TUNE)


def driver_here() -> Driver:
    """Query the driver in another process, for at most half a minute."""
    try:
        run = subprocess.run(  # noqa: S603  our own program
            [sys.executable, "-I", str(_PROBE)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Driver(None, problem=f"the driver did not answer in {_PATIENCE:.0f} s")
    except OSError as error:
        return Driver(None, problem=f"the driver could not be queried ({error})")
    return _driver(run)


def _driver(run: subprocess.CompletedProcess[bytes]) -> Driver:
    try:
        facts: dict[str, Any] = json.loads(run.stdout)
    except ValueError:
        return Driver(None, problem=f"querying the driver ended with status {run.returncode}")
    gpus = (Gpu(gpu["name"], tuple(gpu["capability"]), gpu["sms"], gpu["memory"]) for gpu in facts.get("gpus", ()))
    cuda = facts.get("cuda")
    return Driver((cuda[0], cuda[1]) if cuda else None, tuple(gpus), facts.get("problem", ""))


def _warploom() -> str:
    try:
        mine = version("warploom")
    except PackageNotFoundError:
        mine = "(not installed)"
    return f"{mine}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def _driver_finding(driver: Driver) -> Finding:
    if driver.cuda is None:
        return Finding("driver", found=False, what=driver.problem, do="install NVIDIA's driver, if there is a GPU")
    what = f"supports CUDA {driver.cuda[0]}.{driver.cuda[1]}"
    if driver.problem:
        return Finding("driver", found=False, what=f"{what}, but {driver.problem}", do="check it with nvidia-smi")
    return Finding("driver", found=True, what=what)


def _gpu_finding(driver: Driver) -> Finding:
    if not driver.gpus:
        do = "check CUDA_VISIBLE_DEVICES" if driver.cuda else "NumPy arrays do not need one"
        return Finding("GPU", found=False, what="none visible", do=do)
    usable = any(gpu.target for gpu in driver.gpus)
    what = "; ".join(f"{index}: {gpu}" for index, gpu in enumerate(driver.gpus))
    return Finding("GPU", usable, what, "" if usable else "use a Hopper or Blackwell GPU, or the emulator")


def _tool(name: str) -> Tool | WarploomError:
    try:
        return find(name)
    except WarploomError as error:
        return error


def _tool_finding(name: str, tool: Tool | WarploomError) -> Finding:
    if isinstance(tool, Tool):
        return Finding(name, found=True, what=f"{tool.version} from {tool.origin}: {tool.path}")
    if tool.diag is Diag.NO_TOOL:
        return Finding(name, found=False, what=str(tool.fields["what"]), do=_INSTALL)
    return Finding(name, found=False, what=tool.what.rstrip("."), do=tool.advice)


def _installed(package: str) -> str:
    """Return the version that is installed, or nothing, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _torch_finding() -> Finding:
    """Import torch in another process: an installed package may fail to import."""
    found = _installed("torch")
    if not found:
        return Finding(
            "torch", found=False, what="not installed", do="pip install torch, to call warploom from PyTorch"
        )
    try:
        text = Path(str(distribution("torch").locate_file("torch/version.py"))).read_text("utf-8")
    except OSError:
        text = ""
    match = _TORCH_CUDA.search(text)
    cuda = match and (match[1] or match[2])
    what = f"{found}, {f'built for CUDA {cuda}' if cuda else 'built without CUDA'}"
    failure = _import_failure("torch")
    if failure:
        return Finding("torch", found=False, what=f"{what}, but `import torch` fails: {failure}", do=_REPAIR)
    return Finding("torch", found=True, what=what)


def _import_failure(package: str) -> str:
    """Return the error of importing a package in a fresh process, or nothing."""
    try:
        run = subprocess.run(  # noqa: S603  our own program
            [sys.executable, "-P", "-c", f"import {package}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_IMPORT_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it takes longer than {_IMPORT_PATIENCE:.0f} s"
    except OSError as error:
        return f"no process could be started ({error})"
    if run.returncode == 0:
        return ""
    lines = [line.strip() for line in run.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"the process ended with status {run.returncode}"


def _cache_finding() -> Finding:
    try:
        cache = user_cache()
    except WarploomError as error:
        return Finding("cache", found=False, what=error.what.rstrip("."), do=error.advice)
    elsewhere = f"name a folder in {DIRECTORY}"
    if not cache.limit:
        reason = f"{SIZE} is 0" if os.environ.get(SIZE) else "there is no home directory"
        return Finding(
            "cache", found=False, what=f"off: {reason}", do=elsewhere if "home" in reason else f"unset {SIZE}"
        )
    existing = _existing(cache.folder)
    if existing is None or not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding("cache", found=False, what=f"{cache.folder} cannot be written", do=elsewhere)
    usage = cache.usage()
    size = f"{usage.entries} entries, {usage.size / 2**20:.1f} of {cache.limit / 2**20:.0f} MiB"
    return Finding("cache", found=True, what=f"{cache.folder}: {size}")


def _existing(folder: Path) -> Path | None:
    """Return a folder, or the nearest parent that exists; None if it cannot be examined."""
    try:
        return next((each for each in (folder, *folder.parents) if each.exists()), None)
    except OSError:  # the name is too long, or a parent cannot be entered
        return None


def _verdict(driver: Driver, assembler: Tool | WarploomError) -> Finding:
    """Say on which GPU and by which assembler CUDA arrays run, or every reason why they cannot."""
    usable = [(gpu.name, gpu.target) for gpu in driver.gpus if gpu.target]
    reasons = [] if usable else [f"{gpu.name} has {reason_unsupported(gpu.capability)}" for gpu in driver.gpus]
    if not driver.gpus:
        reasons.append("there is no GPU with a driver")
    if driver.cuda and driver.cuda < OLDEST:
        reasons.append(f"the driver is too old: CUDA {OLDEST[0]}.{OLDEST[1]} is needed")
    if reasons:
        return Finding("CUDA arrays", found=False, what=f"cannot be used: {'; '.join(reasons)}", do="see above")
    (name, target), by = usable[0], f"{assembler}"
    if isinstance(assembler, WarploomError):
        by = "the driver: there is no ptxas"
    elif driver.cuda and (misfit := assembler.misfit(driver.cuda, machine(target).first_ptx)):
        by = f"the driver, {misfit}"
    return Finding("CUDA arrays", found=True, what=f"run on {name} ({target}), assembled by {by}")
