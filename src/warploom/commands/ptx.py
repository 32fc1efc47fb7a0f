"""`warploom ptx FILE`: what a PTX module holds, and which of its instructions the machine does not know."""

from __future__ import annotations

import json
from pathlib import Path

from rich.text import Text

from warploom.commands.console import output, printable, table
from warploom.diagnostics import Diag
from warploom.launch_file.reading import LARGEST_PTX, Unreadable, read_text
from warploom.ptx.isa import unsupported
from warploom.ptx.model import Kernel, Module
from warploom.ptx.parse import parse


def describe(path: Path, *, only_unsupported: bool, as_json: bool) -> bool:
    """The command; says whether every instruction form is known."""
    module = read_module(path)
    unknown = unsupported(module)
    if as_json:
        print(json.dumps(as_document(module, unknown, only_unsupported=only_unsupported), indent=1))  # noqa: T201
    else:
        if not only_unsupported:
            _show_module(path, module)
        _show_unknown(unknown)
    return not unknown


def read_module(path: Path) -> Module:
    """The module in a file."""
    try:
        text = read_text(path, LARGEST_PTX)
    except Unreadable as reason:
        raise Diag.UNREADABLE_FILE.error(file=str(path), what=str(reason)) from None
    return parse(text, file=path.name)


def as_document(
    module: Module, unknown: tuple[tuple[str, int, str], ...], *, only_unsupported: bool
) -> dict[str, object]:
    """The same as JSON data."""
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
        console.print("every instruction form is known", markup=False)
        return
    rows = table(f"{len(unknown)} unsupported forms", "form", "first line", "nearest known form", right=("first line",))
    for form, line, nearest in unknown:
        rows.add_row(Text(printable(form)), str(line), Text(nearest))
    console.print(rows)
