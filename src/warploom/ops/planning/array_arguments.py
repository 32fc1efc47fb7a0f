"""The arrays among the arguments of a call, wherever they are: by themselves, or in a mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from warploom.host.arrays import is_array


def leaves(arguments: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays among arguments by their paths: `bias`, and `operands.scale` for one in a mapping."""
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{within}{name}.")
        elif is_array(value):
            yield f"{within}{name}", value


def mapped(arguments: Mapping[str, Any], change: Callable[[str, Any], Any], within: str = "") -> dict[str, Any]:
    """The arguments with every array changed, each by its path."""
    return {
        name: mapped(value, change, f"{within}{name}.")
        if isinstance(value, Mapping)
        else change(f"{within}{name}", value)
        if is_array(value)
        else value
        for name, value in arguments.items()
    }
