"""The program of a launch, in each of its forms: a module, its text, or a text of which only the head was read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warploom.ptx.syntax.model import Module
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.printer import print_module


@dataclass(frozen=True, slots=True)
class Printed:
    """A module as its text; `head` is the module without its statements, which is enough for a launch on a GPU."""

    head: Module
    text: str


Ptx = Module | Printed | str


@dataclass(frozen=True, slots=True)
class Traced:
    """A program, and the bytes of dynamic shared memory it must be launched with."""

    program: Module | Printed
    shared_bytes: int


def module_of(program: Ptx) -> Module:
    """The whole module."""
    return program if isinstance(program, Module) else parse(text_of(program))


def text_of(program: Ptx) -> str:
    """The whole text."""
    if isinstance(program, Printed):
        return program.text
    return program if isinstance(program, str) else print_module(program)


def head_of(program: Ptx) -> Module:
    """A module with everything but, perhaps, the statements of its kernels."""
    return program.head if isinstance(program, Printed) else module_of(program)


def without_statements(module: Module) -> Module:
    """The head of a module: targets, variables, and what its kernels take and require."""
    bare = (each if each.body is None else replace(each, registers=(), body=()) for each in module.kernels)
    return replace(module, kernels=tuple(bare), notes=())
