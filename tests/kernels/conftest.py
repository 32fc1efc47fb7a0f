"""Every kernel that these tests trace is assembled: without a spill, and without a remark of ptxas on performance."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from tests.assembly import assemble_ok

from warploom.diagnostics import WarploomError
from warploom.ptx.syntax.model import Module
from warploom.runtime.toolchain import tools
from warploom.trace.kernel import KernelFunction

_traced: list[Module] = []
_trace = KernelFunction._trace


def _kept(self: KernelFunction, *arguments: Any) -> Any:
    made = _trace(self, *arguments)
    _traced.append(made.program)
    return made


KernelFunction._trace = _kept  # type: ignore[method-assign]


def _has_ptxas() -> bool:
    try:
        tools.find("ptxas")
    except WarploomError:
        return False
    return True


_HAS_PTXAS = _has_ptxas()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """A test fails if a kernel of its own does not assemble as it should."""
    _traced.clear()
    result = yield
    for module in _traced if _HAS_PTXAS else ():
        assemble_ok(module)
    return result
