"""Triton's releases: where the interface between compiler and driver differs, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warploom.diagnostics import Diag

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Release:
    """The driver interface of one minor release, and of those after it that have no row of their own."""

    first: Version
    driver_fields: tuple[str, str]
    """Attributes of `triton.runtime.driver` that hold the active and the default driver."""
    loaded: int
    """Values that `load_binary` returns: module, function, registers, spills and, from 3.4 on, the most threads."""
    scratch: tuple[str, ...]
    """Hidden pointer parameters after the kernel's own."""
    scratch_per_cta: bool
    """The size in the metadata is per CTA of a cluster; before, per cluster."""
    descriptor_flags: tuple[str, ...]
    """Booleans between base, shape and strides of a descriptor that is not passed as a tensor map, and the shape and
    strides that follow once more."""
    fp4_shape_doubled: bool
    """A descriptor with padded 4-bit elements passes its innermost extent in elements instead of bytes."""


_3_3 = Release((3, 3), ("active", "default"), 4, ("global",), False, (), True)
_3_4 = replace(_3_3, first=(3, 4), loaded=5, scratch_per_cta=True)
_3_5 = replace(
    _3_4,
    first=(3, 5),
    driver_fields=("_active", "_default"),
    scratch=("global", "profile"),
    descriptor_flags=("padding",),
)
_3_7 = replace(_3_5, first=(3, 7), descriptor_flags=("padding", "round_f32_to_tf32"), fp4_shape_doubled=False)

RELEASES = (_3_3, _3_4, _3_5, _3_7)
"""Ordered by version. Source: triton/backends/nvidia/driver.py and triton/compiler/compiler.py of 3.3 to 3.9."""


def release_of(version: str) -> Release:
    """The row for a version such as 3.7.1."""
    major, minor = (int(part) for part in version.split(".")[:2])
    known = [row for row in RELEASES if row.first <= (major, minor)]
    if not known:
        oldest = ".".join(map(str, RELEASES[0].first))
        what = f"Triton {version} is too old: `warploom.triton` needs {oldest} or later"
        raise Diag.BAD_LAUNCH.error(what=what)
    return known[-1]
