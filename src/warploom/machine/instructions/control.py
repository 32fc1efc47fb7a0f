"""Calls of system functions (`printf`, `__assertfail`, `malloc`, `free`), calls through pointers, and `trap`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.hardware.targets import HEAP_BYTES
from warploom.machine.copy.bulk import of_lane
from warploom.machine.core.group import WARP
from warploom.machine.core.registry import Run, executes
from warploom.machine.instructions.memory import Spaces
from warploom.machine.memory.byte_memory import padded
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Arguments, Symbol

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]

_LONGEST_TEXT = 4096
_SPECIFIER = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d{1,3})?(?:\.(?P<precision>\*|\d{0,3}))?"
    r"(?P<size>hh|h|ll|l|j|z|t|L)?(?P<kind>[a-zA-Z%])"
)
_LONG = ("l", "ll", "j", "z", "t")
_PARAMETERS = {"vprintf": (8, 8), "__assertfail": (8, 8, 4, 8, 8), "malloc": (8,), "free": (8,)}
"""The bytes of each parameter."""
_RESULT_BYTES = {"malloc": 8}
_ADDRESS = (1 << 64) - 1
_HEAP_UNIT = 64
"""The bytes of the heap that each region takes a multiple of: a loop cannot have millions of them."""


@executes("call")
def call(op: Op) -> Run:
    """Call a function of the system; every other call is put in place before a kernel runs."""
    function, given = op.operands["function"], op.operands["parameters"]
    assert isinstance(function, Symbol)
    sizes, items = _PARAMETERS[function.name], given.items if isinstance(given, Arguments) else ()
    if len(items) != len(sizes) or not all(isinstance(item, Symbol) for item in items):
        where = op.instruction.loc or Loc("<ptx>", op.instruction.line)
        takes = f"{len(sizes)} `.param` variables"
        raise Diag.BAD_OPERANDS.error(
            where, text=op.instruction.text[:200], what="its parameters do not fit", takes=takes
        )
    act, result_bytes = _ACTS[function.name], _RESULT_BYTES.get(function.name, 4)
    caller = _Caller(op)

    def run(g: Group, mask: Array | None, *operands: Any) -> None:
        parameters, results = operands[-1], operands[0] if len(operands) == 3 else ()
        live = g.active if mask is None else mask
        table = [caller.parameters.load(g, live, at, size) for at, size in zip(parameters, sizes, strict=True)]
        given = np.zeros(g.lanes, np.uint64 if result_bytes == 8 else np.uint32)
        for lane in np.flatnonzero(live).tolist():
            given[lane] = act(caller, g, lane, *(int(column[lane]) for column in table))
        for result in results:
            caller.parameters.store(g, live, result, given, result_bytes)

    return run


class _Caller:
    """Memory as one lane of a call sees it."""

    def __init__(self, op: Op) -> None:
        self.generic, self.parameters = Spaces(op), Spaces(op)
        self.parameters.space = "param"

    def word(self, g: Group, lane: int, address: int, size: int) -> int:
        """The value at a generic address."""
        only = np.zeros(g.lanes, np.bool_)
        only[lane] = True
        found = self.generic.load(g, only, np.full(g.lanes, address & _ADDRESS, np.uint64), size)
        return int(found[lane])

    def text(self, g: Group, lane: int, address: int) -> str:
        """The characters from a generic address on, up to a zero."""
        out = bytearray()
        while address and len(out) < _LONGEST_TEXT and (byte := self.word(g, lane, address + len(out), 1)):
            out.append(byte)
        return out.decode("utf-8", "replace")


def _fail(caller: _Caller, g: Group, lane: int, message: int, file: int, line: int, function: int, size: int) -> int:
    said, where, inside = (caller.text(g, lane, address) for address in (message, file, function))
    raise Diag.TRAP.error(notes=(f"assertion `{said}` failed in `{inside}`, {where}:{line}",))


def _print(caller: _Caller, g: Group, lane: int, template: int, arguments: int) -> int:
    """Format one lane's text; how many arguments it took."""
    text, at, count = caller.text(g, lane, template), arguments, 0

    def following(size: int) -> int:
        nonlocal at, count
        at, count = (at + size - 1) // size * size + size, count + 1
        return caller.word(g, lane, at - size, size)

    pieces, end = [], 0
    for found in _SPECIFIER.finditer(text):
        pieces += [text[end : found.start()], *_formatted(caller, g, lane, found, following)]
        end = found.end()
    g.grid.printed.add("".join(pieces) + text[end:])
    return count


def _formatted(caller: _Caller, g: Group, lane: int, found: re.Match[str], following: Any) -> Iterator[str]:
    kind = found["kind"]
    if kind == "%":
        yield "%"
        return
    width, precision = (_bounded(following(4)) if found[x] == "*" else found[x] for x in ("width", "precision"))
    layout = found["flags"] + (width or "") + (f".{precision}" if precision is not None else "")
    bits = 64 if found["size"] in _LONG else {"h": 16, "hh": 8}.get(found["size"] or "", 32)
    if kind in "di":
        yield f"%{layout}d" % _signed(following(8 if bits == 64 else 4), bits)
    elif kind in "uoxX":
        yield f"%{layout}{'d' if kind == 'u' else kind}" % (following(8 if bits == 64 else 4) & ((1 << bits) - 1))
    elif kind in "eEfFgGaA":
        value = float(np.uint64(following(8)).view(np.float64))
        yield value.hex() if kind in "aA" else f"%{layout}{kind}" % value
    elif kind == "c":
        yield f"%{layout}c" % chr(following(4) & 0xFF)
    elif kind == "s":
        yield f"%{layout}s" % caller.text(g, lane, following(8))
    elif kind == "p":
        yield f"%{layout}s" % f"{following(8):#x}"
    else:
        yield found[0]


def _bounded(value: int) -> str:
    """A width or precision that the arguments give."""
    return str(max(min(_signed(value, 32), 999), -999))


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _allocate(caller: _Caller, g: Group, lane: int, size: int) -> int:
    """A region of global memory, poisoned; 0 where the heap has no room left."""
    taken = -(-max(size, 1) // _HEAP_UNIT) * _HEAP_UNIT
    if taken > HEAP_BYTES - g.grid.heap_bytes:
        return 0
    g.grid.heap_bytes += taken
    data = padded(max(size, 1))[: max(size, 1)]
    data.fill(0xFF)
    region = g.grid.memory.add(data, f"malloc({size}) of thread {g.first_warp * WARP + lane}")
    g.grid.heap[region.base] = taken
    return region.base


def _release(caller: _Caller, g: Group, lane: int, address: int) -> int:
    """Give a region back: nothing lies at its address any more."""
    taken = g.grid.heap.pop(address, None) if address else 0
    if taken is None:
        raise Diag.OUT_OF_BOUNDS.error(what=f"`free` of {address:#x}, which `malloc` has not given,", space="heap")
    g.grid.heap_bytes -= taken
    g.grid.memory.discard(address)
    return 0


_ACTS: dict[str, Callable[..., int]] = {
    "vprintf": _print,
    "__assertfail": _fail,
    "malloc": _allocate,
    "free": _release,
}


@executes("call.pointer")
def nowhere(op: Op) -> Run:
    """A call through a pointer to none of the functions that the call may reach."""

    def run(g: Group, mask: Array | None, pointer: Any) -> None:
        lane = int(np.flatnonzero(g.active if mask is None else mask)[0])
        raise Diag.BAD_CALL.error(text=op.instruction.text, address=of_lane(pointer, lane))

    return run


class Printed:
    """The text that the threads of a grid printed, in the order of execution; past one mebibyte it is dropped, as on
    a GPU.
    """

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._room = 1 << 20

    def add(self, text: str) -> None:
        """Keep a text while there is room."""
        self._room -= len(text) + 1
        if self._room >= 0:
            self.pieces.append(text)


@executes("trap")
def trap(op: Op) -> Run:
    """The kernel gives up."""

    def run(g: Group, mask: Array | None) -> None:
        raise Diag.TRAP.error()

    return run
