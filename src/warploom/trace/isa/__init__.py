"""The instructions of PTX by name: `from warploom.trace.isa import mbarrier, tcgen05`. See `functions`."""

from __future__ import annotations

from warploom.trace.isa.functions import InstructionFunction, functions


def __getattr__(name: str) -> InstructionFunction:
    try:
        return functions()[name]
    except KeyError:
        raise AttributeError(f"PTX has no instruction that begins with `{name}`") from None


def __dir__() -> list[str]:
    return sorted(functions())
