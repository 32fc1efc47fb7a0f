"""Write docs/seeds.md: the name, the module and the test of every member of the five Mojo pages.

    python tests/seeds/table.py

tests/seeds/test_seeds.py compares the page with the output of this script.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from tests.seeds.pages import PAGES, REFERRED, USAGE, Class  # noqa: E402

PAGE = ROOT / "docs" / "seeds.md"
HEAD = """# The five Mojo pages, and where each of their members is

<!-- written by tests/seeds/table.py from tests/seeds/pages.py; tests/seeds/test_seeds.py compares it with the code -->

warploom started from five API pages of Modular's structured Mojo kernels for Blackwell: `EpilogueWarpContext`, `MmaWarpContext`,
`EpiLoadPipeline`, `OutputTilePipeline` and `TileWriter`. Every class, field, compile-time member and method of those pages exists here
under the same name and with the same semantics. The tables list where each is defined and which test covers it;
[vocabulary.md](vocabulary.md) compares the vocabulary with CUTLASS and Gluon.

- A compile-time parameter there is an argument here, and a compile-time member is an attribute.
- Arguments that warploom derives (barrier pointers, counts, masks, buffers, shapes, the electing warp) are optional keywords of the same
  name. If given, they are checked, and a mismatch is an error at that line.
- The `write…` methods of `TileWriter` take the accumulator stage first. The page's order, in which the buffers of C come first, works too.
- Lifetimes and origins have no counterpart in Python.

Every name is imported from `warploom.structured`: `from warploom.structured import EpilogueWarpContext, MmaWarpContext, EpiLoadPipeline,
OutputTilePipeline, TileWriter`. "defined in" is the module below it, for readers of the source. Tests are in `tests/structured`.
"""


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def section(title: str, each: Class) -> str:
    rows = ((f"`{row.path}`", row.kind, f"`{row.module}`", f"`{row.test}`") for row in each.rows)
    return f"\n## {title}\n\n{table(('name', 'kind', 'defined in', 'test'), rows)}"


def text() -> str:
    """Render the page."""
    examples = ((example, f"`{test}`") for example, test in USAGE.items())
    referred = (row for each in REFERRED for row in each.rows)
    rows = ((f"`{row.path}`", row.kind, f"`{row.module}`", f"`{row.test}`") for row in referred)
    return (
        HEAD
        + "".join(section(f"`{each.name}`", each) for each in PAGES)
        + f"\n## Usage examples\n\n{table(('example', 'test'), examples)}"
        + f"\n## Classes that the pages refer to\n\n{table(('name', 'kind', 'defined in', 'test'), rows)}"
    )


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
