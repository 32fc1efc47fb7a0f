"""Print a Module as PTX text that parses back to an equal module and that ptxas assembles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from warploom.diagnostics import Loc
from warploom.ptx.syntax.model import (
    BranchTargets,
    CallTable,
    Instruction,
    Kernel,
    Label,
    Module,
    Note,
    Pragma,
    Statement,
    Symbol,
    Variable,
)

_NUMBERED = re.compile(r"(%[A-Za-z_]+)(0|[1-9]\d{0,8})", re.ASCII)
_SYMBOL = re.compile(r"(?:0x[0-9A-F]+\()?(?:generic\()?([\w$%]+)", re.ASCII)
_FLOATS = {"f32": "0f{:08X}", "f64": "0d{:016X}"}
# A range may declare this many registers for each one that is used; beyond it, registers are listed.
_SPARSEST = 8
_PER_LINE = 12


def print_module(module: Module) -> str:
    """The text of a module. `parse(print_module(m)) == m` for every module that `parse` can return."""
    files = dict(module.files)
    for kernel in module.kernels:
        for instruction in kernel.instructions:
            if instruction.loc is not None and instruction.loc.file not in files.values():
                files[max(files, default=0) + 1] = instruction.loc.file
    return "\n".join(_module(module, files)) + "\n"


def _module(module: Module, files: dict[int, str]) -> Iterator[str]:
    yield f".version {module.version[0]}.{module.version[1]}"
    yield f".target {', '.join(module.target)}"
    yield f".address_size {module.address_size}"
    yield ""
    for number, path in files.items():
        yield f".file {number} {_quoted(path)}"
    for note in module.notes:
        yield _note(note)
    announced = _announced(module)
    for kernel in module.kernels:
        if kernel.name in announced:
            yield f"{_head(kernel)};"
    for variable in module.variables:
        yield f"{_variable(variable)};"
    numbers = {path: number for number, path in reversed(files.items())}
    for kernel in module.kernels:
        yield ""
        yield from _kernel(kernel, numbers)


def _announced(module: Module) -> set[str]:
    """Functions that are used before their definition: ptxas requires a forward declaration."""
    functions = {kernel.name for kernel in module.kernels if not kernel.entry}
    values = (
        value.name for variable in module.variables for value in variable.initial or () if isinstance(value, Symbol)
    )
    wanted = {match[1] for name in values if (match := _SYMBOL.match(name))}
    defined: set[str] = set()
    for kernel in module.kernels:
        for instruction in kernel.instructions:
            wanted.update(o.name for o in instruction.operands if isinstance(o, Symbol) and o.name not in defined)
        defined.add(kernel.name)
    return wanted & functions


def _kernel(kernel: Kernel, files: dict[str, int]) -> Iterator[str]:
    head = _head(kernel)
    if kernel.body is None:
        yield f"{head};"
        return
    yield head
    yield "{"
    yield from _registers(kernel)
    for variable in kernel.variables:
        yield f"\t{_variable(variable)};"
    loc: Loc | None = None
    for statement in kernel.body:
        if isinstance(statement, Instruction) and statement.loc != loc:
            yield _location(statement.loc, loc, files)
            loc = statement.loc
        yield _statement(statement)
    yield "}"


def _location(loc: Loc | None, former: Loc | None, files: dict[str, int]) -> str:
    """The `.loc` line for a location; without a location, line 0 of the previous file."""
    place = loc or Loc(former.file if former else "", 0)
    return f"\t.loc {files[place.file]} {place.line} {place.column}"


def _head(kernel: Kernel) -> str:
    words = [f".{kernel.linkage}"] if kernel.linkage else []
    words.append(".entry" if kernel.entry else ".func")
    if kernel.results:
        words.append(f"({', '.join(map(_variable, kernel.results))})")
    inner = ",\n".join(f"\t{_variable(param)}" for param in kernel.params)
    lines = [f"{' '.join(words)} {kernel.name}(" + (f"\n{inner}\n)" if inner else ")")]
    lines += [f".{directive.name} {', '.join(map(str, directive.values))}".rstrip() for directive in kernel.directives]
    return "\n".join(lines)


def _variable(variable: Variable) -> str:
    width, _, scalar = variable.type.rpartition(".")
    words = [
        f".{variable.linkage}" if variable.linkage else "",
        f".{variable.space}",
        f".align {variable.align}" if variable.align else "",
        f".{width}" if width else "",
        f".{scalar}",
        variable.pointer,
        variable.name if variable.count is None else f"{variable.name}[{variable.count or ''}]",
    ]
    text = " ".join(filter(None, words))
    if variable.initial is None:
        return text
    values = [str(v) if isinstance(v, Symbol) else _FLOATS.get(scalar, "{}").format(v) for v in variable.initial]
    if width and variable.count is not None:
        step = int(width[1:])
        values = [f"{{{', '.join(values[start : start + step])}}}" for start in range(0, len(values), step)]
    joined = ", ".join(values)
    return f"{text} = {{{joined}}}" if width or variable.count is not None else f"{text} = {joined}"


def _registers(kernel: Kernel) -> Iterator[str]:
    """The register declarations in order, as ranges where names are numbered and dense, otherwise as lists."""
    taken = {v.name for v in (*kernel.params, *kernel.results, *kernel.variables)}
    taken |= {s.name for s in kernel.body or () if isinstance(s, Label | BranchTargets | CallTable)}
    runs: list[tuple[str, str, list[str]]] = []
    previous = -1
    for name, type_ in kernel.registers:
        match = _NUMBERED.fullmatch(name)
        prefix, number = (match[1], int(match[2])) if match else ("", -1)
        if runs and runs[-1][:2] == (type_, prefix) and (not prefix or number > previous):
            runs[-1][2].append(name)
        else:
            runs.append((type_, prefix, [name]))
        previous = number
    owners = [prefix for _, prefix, _ in runs]
    owners += [match[1] for name in taken if (match := _NUMBERED.fullmatch(name))]
    declared: list[tuple[str, str]] = []
    for type_, prefix, names in runs:
        count = int(names[-1][len(prefix) :]) + 1 if prefix else 0
        if prefix and owners.count(prefix) == 1 and count <= _SPARSEST * len(names) + 64:
            declared.append((type_, f"{prefix}<{count}>"))
        else:
            declared += [(type_, name) for name in names]
    for type_, group in groupby(declared, key=lambda row: row[0]):
        words = [word for _, word in group]
        for start in range(0, len(words), _PER_LINE):
            yield f"\t.reg .{type_} {', '.join(words[start : start + _PER_LINE])};"


def _statement(statement: Statement) -> str:
    match statement:
        case Instruction():
            return f"\t{statement.text};"
        case Label(name):
            return f"{name}:"
        case BranchTargets(name, targets):
            return f"{name}: .branchtargets {', '.join(targets)};"
        case CallTable(name, text):
            return f"{name}: {text};"
        case Pragma(text):
            return f"\t.pragma {_quoted(text)};"
        case Note():
            return f"\t{_note(statement)}"


def _note(note: Note) -> str:
    return f"//!wl {note.text}".rstrip()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
