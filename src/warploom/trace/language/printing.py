"""`device_print` and `device_assert`: calls of the functions that the driver links into kernels, as nvcc writes them.

`vprintf` takes the address of a format and of its arguments, which are stored one after the other in local memory;
`__assertfail` takes a message, a file, a line, a function and a size. Both work on the emulator and on a GPU.
"""

from __future__ import annotations

from typing import Any

from warploom.diagnostics import Diag
from warploom.ptx.syntax.model import Arguments, Kernel, Symbol, Variable
from warploom.trace.builder import Builder, current, here
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.control import unless
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value, address_of, compute, literal

_PRINT, _FAIL = "vprintf", "__assertfail"
_PARAMETERS = {_PRINT: ("b64", "b64"), _FAIL: ("b64", "b64", "b32", "b64", "b64")}
_STACK = "print_arguments"
_ALIGN = 8


def device_print(*values: Any, sep: str = " ", end: str = "\n") -> None:
    """Print from every thread that gets here: device values, and anything else as Python prints it while tracing.

    On a GPU the text appears when the host synchronises; on the emulator it is in `Run.printed`, and a kernel that is
    called prints it. Guard it with `when(thread() == 0)` to print once.
    """
    builder = current("device_print()")
    words, arguments = [], list[Value]()
    for value in values:
        if isinstance(value, Value):
            specifier, converted = _formatted(value.get())
            words.append(specifier)
            arguments.append(converted)
        else:
            words.append(str(value).replace("%", "%%"))
    template = sep.replace("%", "%%").join(words) + end.replace("%", "%%")
    offsets, size = list[int](), 0
    for argument in arguments:
        each = TYPES[argument.type].bytes
        offsets.append(-(-size // each) * each)
        size = offsets[-1] + each
    builder.reserve_local(_STACK, max(size, _ALIGN), _ALIGN)
    stack = address_of(_STACK, "u64")
    for argument, offset in zip(arguments, offsets, strict=True):
        emit(f"st.local.{TYPES[argument.type].memory}", At(stack, offset), argument)
    _call(_PRINT, _text(builder, template), compute("cvta.local.u64", "u64", stack), result=True)


def _formatted(value: Value) -> tuple[str, Value]:
    """Return the specifier of a value, and the value as variable arguments of C are passed."""
    row = TYPES[value.type]
    if row.kind == "pred":
        return "%d", value.to("s32")
    if row.kind in ("float", "narrow"):
        single = value if value.type in ("f32", "f64") else value.to("f32")
        return ("%.17g" if value.type == "f64" else "%.9g"), single.to("f64")
    if row.kind not in ("signed", "unsigned"):
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`device_print` of .{value.type}; unpack it first")
    letter = "d" if row.kind == "signed" else "u"
    if row.bits == 64:
        return f"%ll{letter}", value
    return f"%{letter}", value.to("s32" if row.kind == "signed" else "u32")


def device_assert(condition: Value | bool, message: str = "") -> None:
    """Stop the kernel with a message and the author's line in threads where a condition does not hold."""
    builder, loc = current("device_assert()"), here()
    if isinstance(condition, bool) or condition.literal is not None:
        if not condition:
            what = f"`device_assert` fails while tracing: {message or 'the condition is false'}"
            raise Diag.BAD_KERNEL.error(loc, what=what)
        return
    with unless(condition):
        texts = [_text(builder, each) for each in (message or "the condition does not hold", loc.file)]
        line, name = literal(loc.line, "u32"), _text(builder, builder.name)
        _call(_FAIL, *texts, line, name, literal(1, "u64"), result=False)


def _text(builder: Builder, text: str) -> Value:
    """Return the generic address of a text in the module's global memory."""
    name = builder.text(text)
    return compute("cvta.global.u64", "u64", address_of(name, "u64"))


def _call(function: str, *arguments: Value, result: bool) -> None:
    builder = current(f"`{function}`")
    types = _PARAMETERS[function]
    number = builder.fresh("call_")
    names = [f"{number}_{at}" for at in range(len(types))]
    for name, type_, argument in zip(names, types, arguments, strict=True):
        builder.variables.append(Variable("param", type_, name))
        emit(f"st.param.{type_}", At(name), argument)
    given = Arguments(tuple(map(Symbol, names)))
    results = tuple(Variable("param", "b32", each) for each in ("result",)) if result else ()
    parameters = tuple(Variable("param", type_, f"parameter{at}") for at, type_ in enumerate(types))
    builder.functions[function] = Kernel(function, parameters, results, body=None, entry=False, linkage="extern")
    if result:
        builder.variables.append(Variable("param", "b32", f"{number}_result"))
        builder.add("call.uni", (Arguments((Symbol(f"{number}_result"),)), Symbol(function), given))
    else:
        builder.add("call.uni", (Symbol(function), given))
