"""The picture of descriptors in docs/structured.md, drawn from the tables of `warploom.hardware`.

`python bench/descriptor_picture.py` writes docs/descriptors.svg.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from warploom.hardware.bitfields import BitField
from warploom.hardware.instruction_descriptors import LAYOUT as INSTRUCTION
from warploom.hardware.matrix_descriptors import LAYOUT as MATRIX
from warploom.hardware.swizzles import B128, GRANULE

FILE = Path(__file__).parents[1] / "docs" / "descriptors.svg"
BIT, LEFT, WORD, HEIGHT, GAP = 28, 32, 32, 110, 34
WIDTH = 2 * LEFT + WORD * BIT
CELL, LINES = 34, 8
NARROW = 3
"""Fields of at most so many bits have their name written upwards."""
STYLE = """<style>
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #656d76; }
  .title { font-size: 14px; font-weight: 600; }
  .bits { font-size: 9px; }
  .field { fill: none; stroke: #3b7dd8; }
  .zero { fill: #8c959f; fill-opacity: 0.25; stroke: #8c959f; }
  .first { fill: #3b7dd8; fill-opacity: 0.3; stroke: #3b7dd8; }
  .other { fill: none; stroke: #8c959f; }
  @media (prefers-color-scheme: dark) { text { fill: #d1d7e0; } }
</style>"""


def text(x: float, y: float, words: str, kind: str = "", *, upwards: bool = False, middle: bool = True) -> str:
    name = f' class="{kind}"' if kind else ""
    turned = f' transform="rotate(-90 {x:g} {y:g})"' if upwards else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text{name} x="{x:g}" y="{y:g}"{anchor}{turned}>{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def word(fields: Sequence[BitField], first: int, top: float) -> list[str]:
    """Draw 32 bits from bit `first` up, the highest at the left."""
    drawn = []
    for field in fields:
        low, high = max(field.low, first), min(field.low + field.width, first + WORD) - 1
        if low > high:
            continue
        x, width = LEFT + (first + WORD - 1 - high) * BIT, (high - low + 1) * BIT
        is_zero = field.name == "reserved"
        drawn.append(box(x, top, width, HEIGHT, "zero" if is_zero else "field"))
        span = f"{high}" if high == low else f"{high}-{low}"
        drawn.append(text(x + width / 2, top + HEIGHT + 11, span, "bits"))
        name = "0" if is_zero else field.name.replace("_", " ")
        upwards = high - low < NARROW and not is_zero
        place = (x + width / 2 + 4, top + HEIGHT / 2) if upwards else (x + width / 2, top + HEIGHT / 2 + 4)
        drawn.append(text(*place, name, upwards=upwards))
    return drawn


def descriptor(title: str, fields: Sequence[BitField], bits: int, top: float) -> tuple[list[str], float]:
    """Draw a descriptor, the highest 32 bits first; return the drawing and its end."""
    drawn = [text(LEFT, top + 12, title, "title", middle=False)]
    top += 22
    for first in range(bits - WORD, -1, -WORD):
        drawn += word(fields, first, top)
        top += HEIGHT + GAP / 2
    return drawn, top + GAP / 2


def swizzle(top: float) -> tuple[list[str], float]:
    """Draw the granules of one repeat of the 128-byte swizzle: which granule of its row is at each place."""
    title = f"Swizzle 128B: 8 rows of 128 bytes repeat after {B128.period} bytes; the granule of 16 bytes at each place"
    drawn = [text(LEFT, top + 12, title, "title", middle=False)]
    top, count = top + 24, B128.span // GRANULE
    for line in range(LINES):
        drawn.append(text(LEFT + 30, top + line * CELL + 22, f"row {line}"))
        for place in range(count):
            held = B128.apply(line * B128.span + place * GRANULE) // GRANULE % count
            x, y = LEFT + 70 + place * CELL * 1.5, top + line * CELL
            drawn.append(box(x, y, CELL * 1.5, CELL, "first" if held == 0 else "other"))
            drawn.append(text(x + CELL * 0.75, y + 22, str(held)))
    return drawn, top + LINES * CELL + GAP


def picture() -> str:
    """Draw all of it."""
    parts: list[str] = []
    top = 16.0
    for title, fields, bits in (
        ("Matrix descriptor of wgmma (sm_90a); start, leading and stride count 16 bytes", MATRIX["sm_90"], 64),
        ("Matrix descriptor of tcgen05 (sm_100a)", MATRIX["sm_100"], 64),
        ("Instruction descriptor: kind::f16, tf32, f8f6f4, i8; N counts 8 columns, M 16 rows", INSTRUCTION["f16"], 32),
        ("Instruction descriptor: kind::mxf8f6f4; M counts 128 rows", INSTRUCTION["mxf8f6f4"], 32),
        ("Instruction descriptor: kind::mxf4 and mxf4nvf4", INSTRUCTION["mxf4"], 32),
    ):
        drawn, top = descriptor(title, fields, bits, top)
        parts += drawn
    drawn, top = swizzle(top)
    label = "Bit fields of matrix and instruction descriptors, and the 128-byte swizzle"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:g}" role="img" aria-label="{label}">'
    return "\n".join((head, STYLE, *parts, *drawn, "</svg>", ""))


if __name__ == "__main__":
    FILE.write_text(picture(), "utf-8")
