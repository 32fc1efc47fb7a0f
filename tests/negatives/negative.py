"""A small wrong kernel, and the code of its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.machine.protocols import kernel

from warploom import launch
from warploom.diagnostics import WarploomError


@dataclass(frozen=True)
class Negative:
    """`text` is a whole module, or the body of a kernel with the usual registers (tests/machine/protocols.py)."""

    code: str
    text: str
    params: str = ""
    args: Callable[[], list[Any]] = list
    block: int = 32
    grid: int = 1
    cluster: int = 1
    target: str = "sm_90a"
    notes: str = ""
    data: int = 1024
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        if ".version" in self.text:
            return self.text
        return kernel(self.params, self.text, target=self.target, data=self.data, notes=self.notes)

    def error(self) -> WarploomError:
        """The error of the launch."""
        shape = {"grid": (self.grid, 1, 1), "block": (self.block, 1, 1), "cluster": (self.cluster, 1, 1)}
        try:
            launch(self.module, args=self.args(), **({"limit": 100_000} | shape | self.options))
        except WarploomError as error:
            return error
        raise AssertionError("the launch ended without an error")


INIT = "@%first mbarrier.init.shared::cta.b64 [bars], {}; bar.sync 0;"
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p, [bars], {}; @!%p bra W;"
ADDRESS = "ld.param.u64 %rd0, [a]; mul.wide.u32 %g, %me, 4; add.u64 %rd0, %rd0, %g;"
"""%rd0: the address of the word of `a` at the index of the thread."""
