"""`warploom new-launch FILE.ptx`: writes a launch file for a kernel, to be edited and run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from warploom.commands.console import output, printable, table
from warploom.diagnostics import Diag
from warploom.hardware.targets import machine as machine_of
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.launch import entry_of
from warploom.launch_file.reading import LARGEST_PTX, Unreadable, read_text
from warploom.machine.memory.static_variables import in_shared_memory, is_dynamic_shared
from warploom.ptx.analysis.parameter_uses import ParameterUse, parameter_uses
from warploom.ptx.analysis.storage import parameter_offsets, size_of
from warploom.ptx.syntax.model import Kernel, Module, Variable
from warploom.ptx.syntax.parser import parse

EXTENT = 256
"""The value of every integer parameter; buffers have EXTENT² elements, so that a row stride of EXTENT stays inside."""
_MAP_BOX = (128, 64)
"""The rows and columns of a box, of 2-byte elements in 128-byte swizzled rows: the most common of compilers."""
_DEFAULT_BLOCK = 128
_MOST_ROWS = 200
"""Parameters of which the reasons are printed."""
_AFTER_MAP = 10
"""The most extents and strides that Triton passes after a tensor map: five of each."""
_DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "s8": "int8", "u8": "uint8", "b8": "uint8", "s16": "int16", "u16": "uint16", "b16": "uint16",
    "s32": "int32", "u32": "uint32", "b32": "uint32", "s64": "int64", "u64": "uint64", "b64": "uint64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guess:
    """One parameter: its argument in the launch file, the buffer that it names, and the reason."""

    argument: dict[str, Any]
    why: str
    buffer: dict[str, Any] | None = None


def new_launch(path: Path, *, entry: str | None, out: Path | None, force: bool) -> None:
    """Write the launch file next to the PTX, or to `out`, and print what was guessed."""
    try:
        module = parse(read_text(path, LARGEST_PTX), file=str(path))
    except Unreadable as reason:
        raise Diag.UNREADABLE_FILE.error(file=str(path), what=str(reason)) from None
    kernel = entry_of(module, entry)
    need, hardware = parameter_offsets(kernel)[1], machine_of(module.target[0])
    if need > hardware.parameter_bytes:
        what = f"the parameters take {need} bytes; {hardware.target} has {hardware.parameter_bytes}"
        raise Diag.BAD_LAUNCH.error(what=what)
    target = out or path.with_suffix(".launch.json")
    document, guesses = skeleton(module, kernel, _relative(path, target))
    if target.exists() and not force:
        raise Diag.UNWRITABLE_FILE.error(file=str(target), what="it exists; --force replaces it")
    try:
        target.write_text(_dump(document), "utf-8")
    except OSError as error:
        raise Diag.UNWRITABLE_FILE.error(file=str(target), what=error.strerror) from None
    console = output()
    rows = table(f"{kernel.name}: {len(kernel.params)} parameters", "parameter", "type", "argument", "reason")
    for param, guess in list(zip(kernel.params, guesses, strict=True))[:_MOST_ROWS]:
        cells = (param.name, type_name(param), json.dumps(guess.argument), guess.why)
        rows.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(rows)
    if len(guesses) > _MOST_ROWS:
        console.print(f"and {len(guesses) - _MOST_ROWS:,} more parameters")
    for line in document["$comment"]:
        console.print(printable(line), markup=False)
    console.print(printable(f"wrote {target}; edit it, then: warploom run {target}"), markup=False)


def skeleton(module: Module, kernel: Kernel, ptx: str) -> tuple[dict[str, Any], list[Guess]]:
    """A launch file for a kernel as JSON data, and the guess behind each argument."""
    uses = parameter_uses(kernel)
    hidden = _scratch_pointers(module, kernel, uses)
    guesses: list[Guess] = []
    buffers: dict[str, Any] = {}
    for index, param in enumerate(kernel.params):
        name = _buffer_name(kernel, param, index)
        after_map = _after_map(kernel, uses, index)
        guess = hidden.get(param.name) or after_map or _guess(param, uses[param.name], name)
        guesses.append(guess)
        if guess.buffer is not None:
            buffers[name] = guess.buffer
    cluster = _triple(kernel.directive("reqnctapercluster"))
    block, block_note = _block(kernel)
    comments = [
        f"Sizes are guesses: every integer is {EXTENT} and every buffer has {EXTENT * EXTENT} elements. Edit them.",
        block_note,
        'Nothing is compared yet: add for example "compare": [{"expr": "out == x + y", "rtol": 1e-5}].',
    ]
    document: dict[str, Any] = {
        "$comment": comments,
        "ptx": ptx,
        "entry": kernel.name,
        "grid": cluster,
        "block": block,
    }
    if cluster != [1, 1, 1]:
        document["cluster"] = cluster
    shared = _dynamic_shared(module, kernel)
    if shared is not None:
        variable, largest = shared
        document["shared_bytes"] = largest
        comments.append(
            f"shared_bytes: the kernel uses dynamic shared memory (`{variable.name}`), whose size only the "
            f"launch knows; {largest} is the most that {module.target[0]} has. Triton: `compiled.metadata.shared`; "
            "CUDA: the third value of <<<…>>>. An exact size finds accesses outside it."
        )
    if hidden:
        comments.append(
            "Triton adds two hidden pointers after the kernel's own parameters: global scratch (for tensor maps made "
            "on the device) and profiler scratch. An unused one is 0; a used one gets a buffer of its own."
        )
    document["seed"] = 0
    document["buffers"] = buffers
    document["args"] = [guess.argument for guess in guesses]
    return document, guesses


def type_name(param: Variable) -> str:
    """`.u32`, or `.b8[128]` for a parameter passed by value."""
    return f".{param.type}" + (f"[{param.count}]" if param.count is not None else "")


def _guess(param: Variable, use: ParameterUse, name: str) -> Guess:
    kind, size = param.type, size_of(param)
    if param.count is not None or "." in kind:
        if size == MAP_BYTES and (use.rank is not None or param.align >= 64):
            return _map(use, name)
        return Guess({"bytes": "00" * size}, f"a structure of {size} bytes, passed by value")
    if size == 8 and use.rank is not None:
        return _map(use, name)
    if size == 8 and not kind.startswith("f") and (use.is_pointer or param.pointer):
        dtype = next((_DTYPES[each] for each in use.types if each in _DTYPES), "float32")
        buffer: dict[str, Any] = {"dtype": dtype, "shape": [EXTENT * EXTENT]}
        if use.stores or not use.is_pointer:
            buffer["output"] = True
        if use.loads and use.stores:
            buffer["init"] = "zeros"
        access = " and ".join(word for word, true in (("loads", use.loads), ("stores", use.stores)) if true)
        return Guess({"pointer": name}, f"a pointer; the kernel {access or 'does not dereference it here'}", buffer)
    if kind.startswith(("f", "bf")):
        return Guess({kind: 1.0}, "a number")
    return Guess({kind: 1 if size == 1 else EXTENT}, "an integer" if use.read else "an integer that is never read")


def _map(use: ParameterUse, name: str) -> Guess:
    rank = use.rank or 2
    shape = [1] * (rank - 2) + [EXTENT] * min(rank, 2)
    buffer: dict[str, Any] = {"dtype": "bfloat16", "shape": shape}
    if use.stores:
        buffer["output"] = True
    box = [1] * (rank - 2) + list(_MAP_BOX[-rank:])
    why = f"a tensor map of rank {rank}; give the dtype, box and swizzle that the host encodes"
    return Guess({"tensor_map": name, "box": box, "swizzle": "128B"}, why, buffer)


def _after_map(kernel: Kernel, uses: dict[str, ParameterUse], index: int) -> Guess | None:
    """An extent or stride of the map before it: Triton passes a map, its extents (32 bits) and its strides (64)."""
    for back in range(index - 1, max(index - 2 - _AFTER_MAP, -1), -1):
        param = kernel.params[back]
        if param.count is not None and size_of(param) == MAP_BYTES:
            rank, place = uses[param.name].rank or 2, index - back - 1
            here = kernel.params[index]
            fits = [size_of(each) for each in kernel.params[back + 1 : back + 1 + 2 * rank]] == [4] * rank + [8] * rank
            if not fits or place >= 2 * rank or here.count is not None:
                return None
            extents = [1] * (rank - 2) + [EXTENT] * min(rank, 2)
            if place < rank:
                return Guess({here.type: extents[place]}, f"extent {place} of the tensor map before it")
            axis = place - rank
            stride = 1
            for extent in extents[axis + 1 :]:
                stride *= extent
            return Guess({here.type: stride}, f"stride {axis} of the tensor map before it, in elements")
    return None


def _scratch_pointers(module: Module, kernel: Kernel, uses: dict[str, ParameterUse]) -> dict[str, Guess]:
    """Triton's hidden parameters, if the module is Triton's: global scratch and profiler scratch, the last two."""
    from_python = any(name.endswith(".py") for _, name in module.files)
    last = kernel.params[-2:]
    pointers = all(param.type in ("u64", "b64") and param.count is None for param in last)
    if len(last) < 2 or not from_python or not pointers or not kernel.params[0].name.endswith("_param_0"):
        return {}
    found: dict[str, Guess] = {}
    for param, role, place in zip(last, ("global scratch", "profiler scratch"), (-2, -1), strict=True):
        use = uses[param.name]
        if not use.read:
            found[param.name] = Guess({param.type: 0}, f"Triton's hidden pointer to {role}, unused here")
        elif use.makes_maps or place == -1:
            name = _buffer_name(kernel, param, len(kernel.params) + place)
            buffer = {"dtype": "uint8", "shape": [EXTENT * EXTENT], "output": True, "init": "zeros"}
            found[param.name] = Guess({"pointer": name}, f"Triton's hidden pointer to {role}", buffer)
        else:
            return {}
    return found


def _dynamic_shared(module: Module, kernel: Kernel) -> tuple[Variable, int] | None:
    """The variable of dynamic shared memory, if there is one, and the most bytes that a launch can give it."""
    shared = [each for each in (*module.variables, *kernel.variables) if each.space == "shared"]
    dynamic = [each for each in shared if is_dynamic_shared(each)]
    if not dynamic:
        return None
    return dynamic[0], machine_of(module.target[0]).shared_per_block - in_shared_memory(shared, 0)[1]


def _block(kernel: Kernel) -> tuple[list[int], str]:
    required, most = kernel.directive("reqntid"), kernel.directive("maxntid")
    if required:
        return _triple(required), "block: required by the kernel (.reqntid). grid: one CTA or cluster; set yours."
    if most:
        return _triple(most), "block: the most that the kernel takes (.maxntid). grid: one CTA or cluster; set yours."
    return [_DEFAULT_BLOCK, 1, 1], "block and grid: the kernel does not say; set those of your launch."


def _triple(values: tuple[int, ...] | None) -> list[int]:
    return [*(values or ()), 1, 1, 1][:3]


def _buffer_name(kernel: Kernel, param: Variable, index: int) -> str:
    """The parameter's name where it is one that a person gave, else `p` and its number."""
    name = param.name
    if name.startswith(f"{kernel.name}_param_") or not name.isidentifier() or not name.isascii() or len(name) > 64:
        return f"p{index}"
    return name


def _relative(ptx: Path, target: Path) -> str:
    """The PTX file as the launch file names it: a path below the launch file's own folder."""
    try:
        return ptx.resolve().relative_to(target.resolve().parent).as_posix()
    except ValueError:
        what = f"a launch file must be in the folder of its PTX ({ptx.parent}) or above it"
        raise Diag.UNWRITABLE_FILE.error(file=str(target), what=what) from None


def _dump(document: dict[str, Any]) -> str:
    """JSON with one line for each buffer, argument and comment."""
    lines = []
    for key, value in document.items():
        if key in ("args", "$comment") and value:
            inner = ",\n".join(f"    {json.dumps(each, ensure_ascii=False)}" for each in value)
            lines.append(f"  {json.dumps(key)}: [\n{inner}\n  ]")
        elif key == "buffers" and value:
            inner = ",\n".join(f"    {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items())
            lines.append(f'  "buffers": {{\n{inner}\n  }}')
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
