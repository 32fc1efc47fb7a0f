"""Assembles what tests make: once per text and process, without a spill and without a remark on performance."""

from __future__ import annotations

import functools

import pytest

from warploom.diagnostics import Diag, WarploomError
from warploom.host.launch import Launch
from warploom.host.program import text_of
from warploom.ptx.syntax.model import Module
from warploom.runtime import Assembly, Sass, assemble, disassemble


def assemble_ok(program: Launch | Module | str, target: str | None = None) -> Assembly:
    """The assembly of a program that loses no speed; a test without ptxas is skipped."""
    given = program.program if isinstance(program, Launch) else program
    try:
        return _assembled(text_of(given), target)
    except WarploomError as error:
        return _skip(error)


def sass_of(program: Launch | Module | str, target: str | None = None) -> Sass:
    """The SASS of a program; a test without ptxas or nvdisasm is skipped."""
    assembly = assemble_ok(program, target)
    try:
        return _disassembled(assembly.cubin)
    except WarploomError as error:
        return _skip(error)


def _skip(error: WarploomError):
    if error.diag is Diag.NO_TOOL:
        pytest.skip(error.what)
    raise error


@functools.cache
def _assembled(text: str, target: str | None) -> Assembly:
    return assemble(text, target)


@functools.cache
def _disassembled(cubin: bytes) -> Sass:
    return disassemble(cubin)
