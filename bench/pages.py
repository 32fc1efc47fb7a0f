"""The numbers in the documents: every block between two marks is made of the result files.

    python bench/pages.py             write the blocks of README.md, docs/hopper.md and docs/gpu.md, and docs/ladder.svg
    python bench/pages.py --check     only say what would change

A block begins with `<!-- made by bench/pages.py: NAME -->` and ends with `<!-- end -->`. One whose results are not there
is empty. `tests/test_numbers.py` holds the pages to the files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from charts import Bar, bars

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGES = ("README.md", "docs/hopper.md", "docs/gpu.md")
CHART = "docs/ladder.svg"
BLOCK = re.compile(r"(<!-- made by bench/pages.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]
FAMILIES = ("grouped", "blockwise", "fp8", "batched")


def results(name: str) -> Row | None:
    """A file of results; None if there is none."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else None


def rows_of(name: str) -> list[Row]:
    """The rows of a file that did not fail."""
    found = results(name)
    return [row for row in found["rows"] if "error" not in row] if found else []


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(each) + " |" for each in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines) + "\n"


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def times(shape: list[int]) -> str:
    return "×".join(map(str, shape))


def summary() -> str:
    plain, random, fused = (results(f"matmul_{what}") for what in ("plain", "random", "fused"))
    if not (plain and random and fused):
        return ""
    compiled = fused["summary"].get("mean_to_compiled")
    more = f" and are {compiled:.3f} times as fast as what `torch.compile` makes of them" if compiled else ""
    return (
        f"On an H200, against `torch.mm` in the same run: geometric mean {plain['summary']['geometric_mean']:.3f} over eleven "
        f"shapes, {random['summary']['geometric_mean']:.3f} over {random['summary']['shapes']} random ones; bias, gelu and residual in one kernel take "
        f"at most {fused['summary']['most_of_plain']:.3f} times cuBLAS's *plain* time where that is 100 µs or more{more} "
        f"([docs/hopper.md](docs/hopper.md#numbers)).\n"
    )


def plain() -> str:
    fused = {times(row["shape"]): row for row in rows_of("matmul_fused")}
    head = (
        *("M × N × K", "configuration", "µs", "TFLOP/s", "plain: to cuBLAS"),
        *("fused: to eager", "fused: of cuBLAS's plain time"),
    )
    has_compiled = any("ratio_to_compiled" in row for row in fused.values())
    lines = []
    for row in rows_of("matmul_plain"):
        other = fused.get(times(row["shape"]), {})
        cells = (ratio(row["ratio"]), ratio(other.get("ratio")), ratio(other.get("of_plain_cublas")))
        more = (ratio(other.get("ratio_to_compiled")),) if has_compiled else ()
        lines.append((times(row["shape"]), row["config"], f"{row['us']:.1f}", f"{row['tflops']:.0f}", *cells, *more))
    return table((*head, *(("fused: to torch.compile",) if has_compiled else ())), lines) if lines else ""


def seeds_of(document: Row) -> str:
    """The seeds of one run, or of several that were put together."""
    seeds = document["seed"] if isinstance(document["seed"], list) else [document["seed"]]
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def few(rows: list[Row], bound: float = 0.8) -> str:
    """How many were slower than a bound."""
    count = sum(row["ratio"] < bound for row in rows)
    return "one is" if count == 1 else f"{count or 'none'} are"


def means() -> str:
    plain, fused, random, odd = (results(f"matmul_{what}") for what in ("plain", "fused", "random", "odd"))
    if not (plain and fused and random and odd):
        return ""
    own, compiled = plain["summary"], fused["summary"].get("mean_to_compiled")
    text = f"The geometric means are {own['geometric_mean']:.3f} (plain) and {fused['summary']['geometric_mean']:.3f} (fused"
    text += f"; {compiled:.3f} to `torch.compile` in the mode max-autotune-no-cudagraphs)." if compiled else ")."
    at_once = "" if "settled_s" in fused else "; times of the fused one were taken at once"
    text += f" Plain and fused are two runs, each with its peers in it{at_once}. cuBLAS against itself differs by up to {own['spread_of_the_peer']:.3f}."
    if "mean_to_beside" in own:
        text += f" Kernels written as PTX by hand for these shapes, in the same run, take {own['mean_to_beside']:.3f} times our time."
    text += (
        f"\nOf {random['summary']['shapes']} shapes drawn at random (M 1–8192, N and K multiples of 8 up to 16384; {seeds_of(random)}) the mean is "
        f"{random['summary']['geometric_mean']:.3f} and the lowest {random['summary']['lowest']:.3f}; {few(random['rows'])}\n"
        f"below 0.80, {few(random['rows'], 0.9)} below 0.90. These were chosen by {random.get('chosen_by', 'the model and its trees')}; what was measured then went into it. Where K is "
        f"an odd\nmultiple of 8, rows begin in the middle of a sector and L2 is what limits. Of {odd['summary']['shapes']} odd shapes "
        f"the mean is {odd['summary']['geometric_mean']:.3f}, because cuBLAS\nleaves its fast kernels where a size is odd, "
        f"and the lowest {odd['summary']['lowest']:.3f}.\n"
    )
    return text


def against_cublas(name: str) -> str:
    head = ("M × N × K", "configuration", "µs", "TFLOP/s", "to cuBLAS")
    lines = [
        (times(row["shape"]), row["config"], f"{row['us']:.1f}", f"{row['tflops']:.0f}", ratio(row["ratio"]))
        for row in rows_of(name)
    ]
    return table(head, lines) if lines else ""


def odd() -> str:
    return against_cublas("matmul_odd")


def mn_major() -> str:
    found = results("matmul_mn_major")
    if not found:
        return ""
    return (
        f"With B as K × N, the columns of a tile are copied in pieces of 128 bytes, so that its width is a multiple of 64: "
        f"geometric\nmean {found['summary']['geometric_mean']:.3f}, lowest {found['summary']['lowest']:.3f}.\n\n"
        + against_cublas("matmul_mn_major")
    )


def dependent() -> str:
    """Apart from the others: torch's launches of cuBLAS do not overlap."""
    rows = rows_of("matmul_dependent")
    if not rows:
        return ""
    text = (
        "With `HopperConfig(dependent=True)` a launch may begin while the one ahead of it ends (programmatic dependent launch). "
        "PyTorch's\nlaunches of cuBLAS do not, so this is no comparison of kernels, and stands apart:\n\n"
    )
    head = ("M × N × K", "µs", "to the same without", "to cuBLAS", "without: to cuBLAS")
    lines = [
        (
            times(row["shape"]),
            f"{row['us']:.1f}",
            *(ratio(row[name]) for name in ("ratio_to_plain", "ratio", "plain_ratio")),
        )
        for row in rows
    ]
    return text + table(head, lines)


def families() -> str:
    head = ("family", "case", "µs", "TFLOP/s", "to PyTorch's")
    measured = [(name, row) for name in FAMILIES for row in rows_of(f"matmul_{name}")]
    lines = [
        (name, row["label"], f"{row['us']:.1f}", f"{row['tflops']:.0f}", ratio(row["ratio"])) for name, row in measured
    ]
    return table(head, lines) if lines else ""


def host() -> str:
    lines = [
        (row["call"], f"{row['us']:.1f}", f"{row['ratio']:.2f} × {row['yardstick']}" if row["yardstick"] else "")
        for row in rows_of("host_cost")
    ]
    return table(("call", "µs of the host", ""), lines) if lines else ""


def first() -> str:
    lines = [(row["case"], f"{row['without_ms']:.0f}", f"{row['with_ms']:.0f}") for row in rows_of("first_result")]
    return table(("first result of a new process, ms", "without a cache", "with one"), lines) if lines else ""


def ladder_rows() -> tuple[list[str], list[tuple[str, list[Row | None]]]]:
    """The shapes, and for each rung what it adds and its row by shape."""
    rows = rows_of("ladder")
    shapes = list(dict.fromkeys(row["label"] for row in rows))
    found = {(row["rung"], row["label"]): row for row in rows}
    rungs = sorted({(row["rung"], row["adds"]) for row in rows})
    return shapes, [(adds, [found.get((number, shape)) for shape in shapes]) for number, adds in rungs]


def ladder() -> str:
    shapes, rungs = ladder_rows()
    if not rungs:
        return ""
    text = (
        "## The ladder\n\nOne kernel with one thing added at a time, each line on top of those above it; TFLOP/s, and the ratio to cuBLAS in "
        "the same run\n(`python bench/ladder.py`). The clock moves with the power limit from run to run: compare the ratios.\n\n"
    )
    lines = [
        (
            adds if number == 0 else f"+ {adds}",
            *(f"{row['tflops']:.0f} ({row['ratio']:.3f})" if row else "–" for row in found),
        )
        for number, (adds, found) in enumerate(rungs)
    ]
    return text + table(("", *shapes), lines) + "\n![The ladder: every step's speed against cuBLAS](ladder.svg)\n"


def chart() -> str:
    shapes, rungs = ladder_rows()
    if not rungs:
        return ""
    values = [
        [Bar(row["ratio"], f"{row['ratio']:.2f} · {row['tflops']:.0f} TFLOP/s") if row else None for row in found]
        for _, found in rungs
    ]
    labels = [adds if number == 0 else f"+ {adds}" for number, (adds, _) in enumerate(rungs)]
    title, axis = "Speed against cuBLAS, with one thing added at a time", "speed relative to cuBLAS in the same run"
    return bars(title, labels, shapes, values, (1.0, "cuBLAS"), axis)


def roofline() -> str:
    rows = rows_of("roofline")
    peaks = {row["element"]: row for row in rows if row["label"] == "peak"}
    rates = {row["label"]: row for row in rows if row["element"] == "bytes"}
    products = [row for row in rows if "fraction" in row]
    if not products:
        return ""
    text = (
        f"## The roof\n\nWhat the GPU gives at best, by kernels that do nothing else (`python bench/roofline.py`): multiplications of random "
        f"operands in shared\nmemory at {peaks['bf16']['tflops']:.0f} TFLOP/s in bf16 and {peaks['e4m3']['tflops']:.0f} in "
        f"e4m3, reading at {rates['read']['terabytes']:.2f} TB/s, PyTorch's copy at {rates['copy']['terabytes']:.2f}. The roof of "
        f"a product is the longer\nof the two times that its operations and its bytes take at these rates; where it takes long, "
        f"the peak is measured beside it, at the\nclock that the power limit leaves.\n\n"
    )
    head = ("M × N × K", "type", "bound by", "µs", "TFLOP/s", "TB/s", "of the roof", "peer: of the roof")
    lines = [
        (
            *(row["label"], row["element"], row["bound"], f"{row['us']:.1f}", f"{row['tflops']:.0f}"),
            *(f"{row['terabytes']:.2f}", ratio(row["fraction"]), ratio(row["peer_fraction"])),
        )
        for row in products
    ]
    return text + table(head, lines)


def sanitizer() -> str:
    found = results("sanitizer")
    if not found:
        return ""
    own = [row for row in found["rows"] if not row["case"].startswith("planted")]
    clean = [row for row in own if row["well"]]
    tools = sorted({row["tool"] for row in own})
    planted = [row for row in found["rows"] if row["case"].startswith("planted")]
    text = (
        f"## Checked\n\ncompute-sanitizer ({', '.join(tools)}) over {len({row['case'] for row in own})} small cases of all families: "
        f"{len(clean)} of {len(own)} runs without a finding and with the right\nresult; of {len(planted)} planted faults it found "
        f"{sum(row['well'] for row in planted)} (`python tests/gpu/sanitise.py`)."
    )
    bad = [f"{row['tool']} on {row['case']}" for row in own if not row["well"]]
    return text + (f" Not clean: {'; '.join(bad)}.\n" if bad else "\n")


BLOCKS: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (summary, plain, means, mn_major, odd, dependent, families, ladder, roofline, sanitizer, host, first)
}


def rendered(text: str) -> str:
    """A page with its blocks made anew."""

    def made(match: re.Match[str]) -> str:
        block = BLOCKS[match[2]]()
        return f"{match[1]}\n{block}\n{match[3]}" if block else f"{match[1]}{match[3]}"

    return BLOCK.sub(made, text)


def pages() -> dict[Path, str]:
    """Every file that is made here, as it should be."""
    made = {ROOT / name: rendered((ROOT / name).read_text("utf-8")) for name in PAGES}
    drawn = chart()
    return made | ({ROOT / CHART: drawn} if drawn else {})


def main() -> int:
    changed = [file for file, text in pages().items() if not file.exists() or file.read_text("utf-8") != text]
    for file in changed:
        print(file.relative_to(ROOT))
        if "--check" not in sys.argv:
            file.write_text(pages()[file], "utf-8")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
