"""Charts as SVG text, readable on light and on dark pages, without a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#3b7dd8", "#e08a1e", "#2f9e77", "#a05bc2")
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #656d76; }
  .small { font-size: 11px; }
  .line { stroke: #8c959f; stroke-width: 1; }
  .grid { stroke: #8c959f; stroke-width: 1; opacity: 0.3; }
  .mark { stroke: #656d76; stroke-width: 1.5; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) { text { fill: #d1d7e0; } .mark { stroke: #d1d7e0; } }
"""
WIDTH, LABELS, RIGHT, TOP, FOOT = 1000, 440, 130, 58, 44
BAR, GAP, ROW_GAP = 12, 2, 12
TICK = 0.25


@dataclass(frozen=True)
class Bar:
    """A length in units of the axis, and the text at its right end."""

    value: float
    text: str


def bars(
    title: str,
    labels: Sequence[str],
    series: Sequence[str],
    values: Sequence[Sequence[Bar | None]],
    mark: tuple[float, str],
    axis: str,
) -> str:
    """Draw rows of horizontal bars, one for each series, with a vertical mark; `values` are by row, then by series.

    `axis` labels the lengths, with their unit.
    """
    most = max([mark[0], *(bar.value for row in values for bar in row if bar)])
    unit = (WIDTH - LABELS - RIGHT) / most
    height = len(series) * (BAR + GAP) + ROW_GAP
    bottom = TOP + len(labels) * height
    at = LABELS + mark[0] * unit
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + FOOT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        *_legend(series),
        *_axis(axis, most, unit, bottom),
    ]
    for number, (label, row) in enumerate(zip(labels, values, strict=True)):
        first = TOP + number * height
        middle = first + (height - ROW_GAP) / 2 + 4
        parts.append(f'<text x="{LABELS - 10}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>')
        for place, (bar, colour) in enumerate(zip(row, COLOURS, strict=False)):
            if bar is not None:
                top, length = first + place * (BAR + GAP), bar.value * unit
                parts.append(f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
                where = f'x="{WIDTH - 4}" y="{top + BAR - 2}" text-anchor="end"'
                parts.append(f'<text class="small" {where}>{escape(bar.text)}</text>')
    parts += [
        f'<line class="mark" x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{bottom}"/>',
        f'<text class="small" x="{at:.1f}" y="{TOP - 14}" text-anchor="middle">{escape(mark[1])}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axis(text: str, most: float, unit: float, bottom: float) -> list[str]:
    parts = []
    for tick in range(int(most / TICK) + 1):
        x = LABELS + tick * TICK * unit
        kind = "grid" if tick else "line"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text class="small" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick * TICK:g}</text>')
    middle = LABELS + most * unit / 2
    parts.append(f'<text class="small" x="{middle:.1f}" y="{bottom + 32}" text-anchor="middle">{escape(text)}</text>')
    return parts


def _legend(series: Sequence[str]) -> list[str]:
    parts, left = [], LABELS
    for name, colour in zip(series, COLOURS, strict=False):
        parts.append(f'<rect x="{left}" y="10" width="{BAR}" height="{BAR}" fill="{colour}"/>')
        parts.append(f'<text x="{left + BAR + 5}" y="20">{escape(name)}</text>')
        left += BAR + 5 + 8 * len(name) + 24
    return parts
