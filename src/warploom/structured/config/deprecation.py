"""Deprecated names of configuration fields: accepted by the constructor and `replace`, and readable, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def _warn(old: str, new: str, level: int) -> None:
    warnings.warn(f"`{old}` is called `{new}`", DeprecationWarning, stacklevel=level + 1)


def with_current_names(
    given: Mapping[str, Any], renamed: Mapping[str, str], *, warning_level: int | None = 3
) -> dict[str, Any]:
    """Replace deprecated names of fields, at the same place in the order; `warning_level=None` for no warning.

    `dataclasses.replace` passes the changes, then `derived` (see `GemmConfig.__new__`) and the current values of all
    other fields: a current value gives way to a change under the deprecated name.
    """
    if renamed.keys().isdisjoint(given):
        return dict(given)
    found: dict[str, Any] = {}
    for name, value in given.items():
        new = renamed.get(name, name)
        if new in found and (name != new or "derived" not in found):
            both = ", ".join(f"`{each}`" for each in given if renamed.get(each, each) == new)
            raise TypeError(f"{both} are one field; give it once, as `{new}`")
        if name != new and warning_level is not None:
            _warn(name, new, warning_level)
        found.setdefault(new, value)
    return found


def deprecated(old: str, new: str) -> Any:
    """Return a property that reads a field under its deprecated name."""

    def read(self: object) -> Any:
        _warn(old, new, 2)
        return getattr(self, new)

    return property(read, doc=f"Deprecated name of `{new}`.")


class AcceptsDeprecated(type):
    """The type of configuration classes: a call may use the names in the class's `renamed`."""

    renamed: Mapping[str, str]

    def __call__(cls: type[T], *args: Any, **given: Any) -> T:
        """Create an instance from current or deprecated names."""
        names: Mapping[str, str] = cls.renamed  # type: ignore[attr-defined]
        return type.__call__(cls, *args, **with_current_names(given, names))  # type: ignore[no-any-return]
