"""Parse PTX text into a Module: the header, module-scope declarations and functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from warploom.diagnostics import Diag
from warploom.ptx.syntax.bodies import Body, body, pragmas
from warploom.ptx.syntax.constants import integer
from warploom.ptx.syntax.declarations import SPACES, parameters, skip_attribute, variables
from warploom.ptx.syntax.lexer import Reader
from warploom.ptx.syntax.model import Directive, Kernel, Module, Note, Statement, Variable
from warploom.ptx.syntax.scopes import Names

NEWEST_VERSION = (9, 4)
_LINKAGES = frozenset((".visible", ".extern", ".weak", ".common"))
# The directives of a function, and how many numbers each takes at most.
_DIRECTIVES = {
    ".reqntid": 3,
    ".maxntid": 3,
    ".minnctapersm": 1,
    ".maxnctapersm": 1,
    ".maxnreg": 1,
    ".reqnctapercluster": 3,
    ".explicitcluster": 0,
    ".maxclusterrank": 1,
    ".blocksareclusters": 0,
    ".noreturn": 0,
    ".abi_preserve": 1,
    ".abi_preserve_control": 1,
}


@dataclass(slots=True)
class _Reading:
    """A module while it is parsed."""

    reader: Reader
    files: dict[int, str]
    kernels: dict[str, Kernel] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    aliases: list[tuple[str, str, int]] = field(default_factory=list)


def parse(text: str, *, file: str = "<ptx>") -> Module:
    """Parse a PTX text; invalid text raises a PtxError with line and column."""
    reader = Reader(text.rstrip("\0"), file)
    reading = _Reading(reader, _files(reader))
    version, target = _version(reader), _target(reader)
    address_size = _address_size(reader)
    while True:
        _notes(reading)
        token = reader.tokens[reader.at]
        if not token:
            break
        handler = _HANDLERS.get(token)
        if handler is None:
            raise reader.fail(f"{reader.shown()} has no meaning outside a function")
        handler(reading)
    for name, index in reader.outside:
        if name not in reading.kernels and name not in reading.variables:
            raise reader.error(Diag.UNDECLARED, index, name=name[:200])
    _resolve_aliases(reading)
    return Module(
        version,
        target,
        tuple(reading.kernels.values()),
        tuple(reading.variables.values()),
        address_size,
        tuple(reading.files.items()),
        tuple(reading.notes),
    )


def _files(reader: Reader) -> dict[int, str]:
    """The `.file` table, read ahead: compilers put it after the functions whose `.loc` lines refer to it."""
    files: dict[int, str] = {}
    index = 0
    for _ in range(reader.tokens.count(".file")):
        index = reader.tokens.index(".file", index) + 1
        reader.at = index
        number = integer(reader, "the number of a file")
        path = reader.string("the path of a file")
        if files.setdefault(number, path) != path:
            raise reader.error(Diag.DUPLICATE, index - 1, name=f".file {number}")
    reader.at = 0
    return files


def _version(reader: Reader) -> tuple[int, int]:
    if not reader.accept(".version"):
        raise reader.fail(f"the text must begin with `.version`, found {reader.shown()}")
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", reader.tokens[reader.at], re.ASCII)
    if match is None:
        raise reader.fail(f"expected a version such as 8.6, found {reader.shown()}")
    version = int(match[1]), int(match[2])
    if version > NEWEST_VERSION:
        newest = ".".join(map(str, NEWEST_VERSION))
        raise reader.fail(f"PTX version {match[0]} is newer than {newest}, the newest that is read")
    reader.at += 1
    return version


def _target(reader: Reader) -> tuple[str, ...]:
    """Parse `.target a, b`, without the word `debug`: it announces debug sections, which are skipped."""
    if not reader.accept(".target"):
        raise reader.fail(f"`.version` must be followed by `.target`, found {reader.shown()}")
    start = reader.at
    names = [reader.name("a target such as sm_90a")]
    while reader.accept(","):
        names.append(reader.name("a target such as sm_90a"))
    if not any(name.startswith("sm_") for name in names):
        raise reader.fail(f"expected a target such as sm_90a, found {reader.shown(start)}", start)
    return tuple(sorted((name for name in names if name != "debug"), key=lambda name: not name.startswith("sm_")))


def _address_size(reader: Reader) -> int:
    if not reader.accept(".address_size"):
        return 64
    index = reader.at
    size = integer(reader, "an address size")
    if size not in (32, 64):
        raise reader.fail(f"an address size of {size}; it is 32 or 64", index)
    return size


def _notes(reading: _Reading) -> None:
    notes = reading.reader.notes
    while notes and notes[0][0] <= reading.reader.at:
        reading.notes.append(Note(notes.popleft()[1]))


def _linked(reading: _Reading) -> None:
    """Parse linkage directives such as `.visible`, and the declaration after them."""
    reader = reading.reader
    linkage = reader.take()[1:]
    token = reader.tokens[reader.at]
    if token in (".entry", ".func"):
        _function(reading, linkage)
    elif token in SPACES:
        _variables(reading, linkage)
    else:
        raise reader.fail(f"expected a variable or a function after `.{linkage}`, found {reader.shown()}")


def _variables(reading: _Reading, linkage: str = "") -> None:
    """Parse module variables. A declaration may repeat an `.extern` one."""
    reader = reading.reader
    for variable, index in variables(reader, linkage):
        former = reading.variables.get(variable.name, variable)
        announced = former == variable or "extern" in (former.linkage, variable.linkage)
        if variable.name in reading.kernels or not announced:
            raise reader.error(Diag.DUPLICATE, index, name=variable.name)
        reading.variables[variable.name] = former if variable.linkage == "extern" else variable


def _function(reading: _Reading, linkage: str = "") -> None:
    reader = reading.reader
    start = reader.at
    entry = reader.take() == ".entry"
    names = Names(reader)
    if reader.tokens[reader.at] == ".attribute":
        skip_attribute(reader)
    results = _parameters(reader, names) if not entry else ()
    index = reader.at
    name = reader.name("the name of a function")
    params = _parameters(reader, names)
    directives, first = _directives(reader)
    read: Body | None = None
    if reader.tokens[reader.at] == "{":
        _notes(reading)
        read = body(reader, names, reading.files, first)
    elif not reader.accept(";"):
        raise reader.fail(f"expected the body of `{name[:60]}`, found {reader.shown()}")
    former = reading.kernels.get(name)
    if name in reading.variables or (former is not None and former.body is not None and read is not None):
        raise reader.error(Diag.DUPLICATE, index, name=name)
    if former is not None and former.body is not None:
        return
    # The order is that of the definitions, not of the forward declarations.
    reading.kernels.pop(name, None)
    reading.kernels[name] = Kernel(
        name,
        params,
        results,
        directives,
        names.registers(),
        tuple(read.variables) if read else (),
        tuple(read.statements) if read else None,
        entry,
        linkage,
        reader.line(start),
    )


def _parameters(reader: Reader, names: Names) -> tuple[Variable, ...]:
    if reader.tokens[reader.at] != "(":
        return ()
    read: list[Variable] = []
    for variable, index in parameters(reader):
        if variable.name != "_":
            names.parameter(variable.name, variable.type if variable.space == "reg" else "", index)
        read.append(variable)
    return tuple(read)


def _directives(reader: Reader) -> tuple[tuple[Directive, ...], list[Statement]]:
    """Parse the directives between parameters and body; pragmas become the first statements."""
    directives: list[Directive] = []
    first: list[Statement] = []
    while (word := reader.tokens[reader.at])[:1] == ".":
        if word == ".pragma":
            first += pragmas(reader)
            continue
        most = _DIRECTIVES.get(word)
        if most is None:
            raise reader.fail(f"{reader.shown()} is not a directive of a function")
        reader.at += 1
        values: list[int] = []
        while len(values) < most and (not values or reader.accept(",")):
            values.append(integer(reader, f"a value of `{word}`"))
        directives.append(Directive(word[1:], tuple(values)))
    return tuple(directives), first


def _section(reading: _Reading) -> None:
    """Skip a whole debug section: its source lines are already in `.loc`."""
    reader = reading.reader
    reader.at += 2
    opened = reader.at
    reader.expect("{", "the name of a section")
    depth = 1
    while depth:
        token = reader.take()
        if not token:
            raise reader.fail("this `{` is never closed", opened)
        depth += {"{": 1, "}": -1}.get(token, 0)


def _alias(reading: _Reading) -> None:
    reader = reading.reader
    reader.at += 1
    index = reader.at
    name = reader.name("the name of a function")
    reader.expect(",", "an alias")
    function = reader.name("the name of a function")
    reader.expect(";", "an alias")
    reading.aliases.append((name, function, index))


def _resolve_aliases(reading: _Reading) -> None:
    """Give each alias the body of its function, so that calls need not resolve it."""
    for name, function, index in reading.aliases:
        declared, definition = reading.kernels.get(name), reading.kernels.get(function)
        if declared is None:
            raise reading.reader.error(Diag.UNDECLARED, index, name=name)
        if definition is None or definition.body is None:
            raise reading.reader.error(Diag.UNDECLARED, index + 2, name=function)
        if declared.body is not None:
            raise reading.reader.error(Diag.DUPLICATE, index, name=name)
        reading.kernels[name] = replace(definition, name=name, linkage=declared.linkage)


def _skip_file(reading: _Reading) -> None:
    """Skip a `.file` line, which was read ahead, with its time and size."""
    reader = reading.reader
    reader.at += 3
    while reader.accept(","):
        integer(reader, "the time or the size of a file")


def _module_pragmas(reading: _Reading) -> None:
    pragmas(reading.reader)


_HANDLERS: dict[str, Callable[[_Reading], None]] = {
    **dict.fromkeys(_LINKAGES, _linked),
    **dict.fromkeys(SPACES - {".param", ".local"}, _variables),
    ".entry": _function,
    ".func": _function,
    ".section": _section,
    ".file": _skip_file,
    ".alias": _alias,
    ".pragma": _module_pragmas,
}
