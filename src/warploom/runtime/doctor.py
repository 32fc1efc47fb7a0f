"""What this computer has for warploom, what is missing and what to do about it; works where there is nothing at all."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
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


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing: whether it is there, what was found, and what to do if it is missed."""

    subject: str
    found: bool
    what: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver: the CUDA version it speaks (None: there is none), its GPUs, and what is wrong with it."""

    cuda: tuple[int, int] | None
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def examine() -> tuple[Finding, ...]:
    """Everything that decides where a call runs, in the order in which it is needed."""
    driver, assembler = driver_here(), _tool(PTXAS)
    return (
        Finding("warploom", found=True, what=_warploom()),
        _told_driver(driver),
        _told_gpus(driver),
        _told_tool(PTXAS, assembler),
        _told_tool(NVDISASM, _tool(NVDISASM)),
        _told_torch(),
        _told_cache(),
        Finding("NumPy arrays", found=True, what="run on the machine, on this CPU"),
        _verdict(driver, assembler),
    )


def driver_here() -> Driver:
    """Asks the driver in another process, and not for longer than half a minute."""
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
        return Driver(None, problem=f"it could not be asked ({error})")
    return _driver(run)


def _driver(run: subprocess.CompletedProcess[bytes]) -> Driver:
    try:
        told: dict[str, Any] = json.loads(run.stdout)
    except ValueError:
        return Driver(None, problem=f"asking the driver ended with status {run.returncode}")
    gpus = (Gpu(gpu["name"], tuple(gpu["capability"]), gpu["sms"], gpu["memory"]) for gpu in told.get("gpus", ()))
    cuda = told.get("cuda")
    return Driver((cuda[0], cuda[1]) if cuda else None, tuple(gpus), told.get("problem", ""))


def _warploom() -> str:
    try:
        mine = version("warploom")
    except PackageNotFoundError:
        mine = "(not installed)"
    return f"{mine}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def _told_driver(driver: Driver) -> Finding:
    if driver.cuda is None:
        return Finding("driver", found=False, what=driver.problem, do="install NVIDIA's driver, if there is a GPU")
    what = f"speaks CUDA {driver.cuda[0]}.{driver.cuda[1]}"
    if driver.problem:
        return Finding("driver", found=False, what=f"{what}, but {driver.problem}", do="check it with nvidia-smi")
    return Finding("driver", found=True, what=what)


def _told_gpus(driver: Driver) -> Finding:
    if not driver.gpus:
        do = "check CUDA_VISIBLE_DEVICES" if driver.cuda else "NumPy arrays need none"
        return Finding("GPU", found=False, what="none is visible", do=do)
    usable = any(gpu.target for gpu in driver.gpus)
    what = "; ".join(f"{index}: {gpu}" for index, gpu in enumerate(driver.gpus))
    return Finding("GPU", usable, what, "" if usable else "use a Hopper or Blackwell GPU, or the machine")


def _tool(name: str) -> Tool | WarploomError:
    try:
        return find(name)
    except WarploomError as error:
        return error


def _told_tool(name: str, tool: Tool | WarploomError) -> Finding:
    if isinstance(tool, Tool):
        return Finding(name, found=True, what=f"{tool.version} from {tool.origin}: {tool.path}")
    if tool.diag is Diag.NO_TOOL:
        return Finding(name, found=False, what=str(tool.fields["what"]), do=_INSTALL)
    return Finding(name, found=False, what=tool.what.rstrip("."), do=tool.advice)


def _installed(package: str) -> str:
    """The version that pip knows, without importing anything."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _told_torch() -> Finding:
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
    return Finding("torch", found=True, what=f"{found}, {f'built for CUDA {cuda}' if cuda else 'built without CUDA'}")


def _told_cache() -> Finding:
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
    """A folder, or the nearest above it that there is; None where nobody can look."""
    try:
        return next((each for each in (folder, *folder.parents) if each.exists()), None)
    except OSError:  # too long a name, or a folder that is closed to us
        return None


def _verdict(driver: Driver, assembler: Tool | WarploomError) -> Finding:
    """Whether CUDA arrays can be computed with here, on which GPU and by which assembler; else every reason why not."""
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
