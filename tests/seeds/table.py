"""Writes docs/seeds.md: where every member of the five pages is here, and which test exercises it.

    python tests/seeds/table.py

The page is compared with what this makes in tests/seeds/test_seeds.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from tests.seeds.pages import BEHIND, PAGES, USAGE, Class  # noqa: E402

PAGE = ROOT / "docs" / "seeds.md"
HEAD = """# The five pages, and where each of their members is

<!-- written by tests/seeds/table.py from tests/seeds/pages.py; tests/seeds/test_seeds.py holds it to the code -->

warploom began with five pages about a system for Blackwell matmuls: warp contexts, an output pipeline, an epilogue-load pipeline, a tile
writer. Every class, field, compile-time member and method of those pages is here, under its name and with its meaning; the tables say
where, and which test exercises it.

- What is a compile-time parameter there is an argument here, and a compile-time member an attribute.
- What we derive (barrier pointers, counts, masks, buffers, shapes, the electing warp) is an optional keyword of the same name. If it is
  given it is checked, and a mismatch is an error at that line.
- Lifetimes and origins are Python's affair.

Homes are in `warploom.structured`, tests in `tests/structured`.
"""


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def section(title: str, each: Class) -> str:
    rows = ((f"`{row.name}`", row.kind, f"`{row.where}`", f"`{row.test}`") for row in each.rows)
    return f"\n## {title}\n\n{table(('there', 'what', 'home', 'test'), rows)}"


def text() -> str:
    """The whole page."""
    examples = ((example, f"`{test}`") for example, test in USAGE.items())
    behind = (row for each in BEHIND for row in each.rows)
    rows = ((f"`{row.name}`", row.kind, f"`{row.where}`", f"`{row.test}`") for row in behind)
    return (
        HEAD
        + "".join(section(f"`{each.name}`", each) for each in PAGES)
        + f"\n## Usage examples\n\n{table(('example', 'test'), examples)}"
        + f"\n## What stands behind the pages\n\n{table(('there', 'what', 'home', 'test'), rows)}"
    )


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
