"""`warploom ptx FILE`: the contents of a PTX module, its unsupported instructions, and its assembly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from warploom.commands.console import output, printable, table
from warploom.diagnostics import Diag
from warploom.launch_file.reading import LARGEST_PTX, Unreadable, read_text
from warploom.ptx.isa import unsupported
from warploom.ptx.isa.table import MOST_NEAREST
from warploom.ptx.syntax.model import Kernel, Module
from warploom.ptx.syntax.parser import parse
from warploom.runtime import Assembly, Sass, assemble, disassemble


def describe(
    path: Path, *, only_unsupported: bool = False, registers: bool = False, sass: bool = False, as_json: bool = False
) -> bool:
    """Describe a file; return False for an unsupported instruction form, a spill or slow code."""
    text = _read(path)
    module = parse(text, file=path.name)
    unknown = unsupported(module)
    assembly, code = assembled(text, registers=registers, sass=sass)
    if as_json:
        document = as_document(module, unknown, only_unsupported=only_unsupported)
        if assembly is not None:
            document["assembly"] = assembly_document(assembly, code)
        print(json.dumps(document, indent=1))  # noqa: T201
    else:
        console = output()
        if not only_unsupported:
            _show_module(path, module)
        _show_unknown(unknown)
        if assembly is not None:
            _show_assembly(assembly, code, registers=registers, console=console)
    return not unknown and not (assembly and assembly.losses)


def report(text: str, *, registers: bool, sass: bool, console: Console) -> bool:
    """Print PTX and, on request, registers and SASS; return False if ptxas reports spills or slow code."""
    assembly, code = assembled(text, registers=registers, sass=sass)
    _show_code(text, console)
    if assembly is None:
        return True
    _show_assembly(assembly, code, registers=registers, console=console)
    return not assembly.losses


def assembled(text: str, *, registers: bool, sass: bool) -> tuple[Assembly | None, Sass | None]:
    """Assemble and disassemble, before anything is printed: a tool may be missing, or refuse."""
    assembly = assemble(text, strict=False) if registers or sass else None
    return assembly, disassemble(assembly.cubin) if assembly is not None and sass else None


def _read(path: Path) -> str:
    try:
        return read_text(path, LARGEST_PTX)
    except Unreadable as reason:
        raise Diag.UNREADABLE_FILE.error(file=str(path), what=str(reason)) from None


def as_document(
    module: Module, unknown: tuple[tuple[str, int, str], ...], *, only_unsupported: bool
) -> dict[str, object]:
    """A module as JSON data."""
    rows = [{"form": form, "line": line, "nearest": nearest} for form, line, nearest in unknown]
    if only_unsupported:
        return {"unsupported": rows}
    return {
        "version": ".".join(map(str, module.version)),
        "target": list(module.target),
        "kernels": [
            {
                "name": kernel.name,
                "entry": kernel.entry,
                "params": [_type(kernel, index) for index in range(len(kernel.params))],
                "registers": len(kernel.registers),
                "instructions": len(kernel.instructions),
            }
            for kernel in module.kernels
        ],
        "unsupported": rows,
    }


def _type(kernel: Kernel, index: int) -> str:
    """`.u32`, or `.b8[128]` for a parameter passed by value."""
    parameter = kernel.params[index]
    return f".{parameter.type}" + (f"[{parameter.count}]" if parameter.count is not None else "")


def _show_module(path: Path, module: Module) -> None:
    version = ".".join(map(str, module.version))
    numbers = ("registers", "instructions")
    rows = table(
        f"{path.name}: PTX {version} for {', '.join(module.target)}", "kernel", "parameters", *numbers, right=numbers
    )
    for kernel in module.kernels:
        params = ", ".join(_type(kernel, index) for index in range(len(kernel.params)))
        name = kernel.name if kernel.entry else f"{kernel.name} (function)"
        rows.add_row(Text(printable(name)), Text(params), str(len(kernel.registers)), str(len(kernel.instructions)))
    output().print(rows)


def _show_unknown(unknown: tuple[tuple[str, int, str], ...]) -> None:
    console = output()
    if not unknown:
        console.print("every instruction form is supported", markup=False)
        return
    rows = table(f"{len(unknown)} unsupported forms", "form", "first line", "nearest known form", right=("first line",))
    for form, line, nearest in unknown[:MOST_NEAREST]:
        rows.add_row(Text(printable(form)), str(line), Text(nearest))
    console.print(rows)
    if len(unknown) > MOST_NEAREST:
        console.print(f"and {len(unknown) - MOST_NEAREST} more; --json lists all of them", markup=False)


def _show_assembly(assembly: Assembly, code: Sass | None, *, registers: bool, console: Console) -> None:
    if registers:
        numbers = ("registers", "bytes spilled", "bytes of stack", "bytes of static shared", "barriers")
        title = f"{assembly.assembler} for {assembly.target}: a cubin of {len(assembly.cubin)} bytes"
        rows = table(title, "kernel", *numbers, right=numbers)
        for row in assembly.kernels:
            spilled = row.spill_stores + row.spill_loads
            values = (row.registers, spilled, row.stack_frame, row.shared_bytes, row.barriers)
            rows.add_row(Text(printable(row.name)), *map(str, values))
        console.print(rows)
    for remark in assembly.remarks:
        console.print(printable(f"ptxas: {remark}"), markup=False)
    if code is not None:
        _show_code(code.text, console)
        for lint in code.lints:
            console.print(printable(lint), markup=False)


def _show_code(text: str, console: Console) -> None:
    console.print(printable(text.expandtabs()).rstrip(), markup=False, soft_wrap=True)


def assembly_document(assembly: Assembly, code: Sass | None) -> dict[str, object]:
    """The output of the assembler as JSON data."""
    document: dict[str, object] = {
        "target": assembly.target,
        "assembler": assembly.assembler,
        "kernels": [asdict(row) for row in assembly.kernels],
        "remarks": [str(remark) for remark in assembly.remarks],
    }
    if code is not None:
        document |= {"sass": code.text, "counts": dict(code.counts), "lints": list(code.lints)}
    return document
