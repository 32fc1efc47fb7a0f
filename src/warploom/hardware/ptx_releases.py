"""The first CUDA toolkit that supports each version of PTX (PTX ISA, release notes: PTX ISA version history)."""

from __future__ import annotations

Version = tuple[int, int]

_FIRST: dict[Version, Version] = {
    **{(7, minor): (11, minor) for minor in range(9)},
    **{(8, minor): (12, minor) for minor in range(6)},
    (8, 6): (12, 7),
    (8, 7): (12, 8),
    (8, 8): (12, 9),
}


def first_cuda(version: Version) -> Version:
    """The first toolkit that supports a version of PTX; from 9.0 on both have the same minor numbers."""
    major, minor = version
    return (major + 4, minor) if version >= (9, 0) else _FIRST.get(version, (0, 0))
