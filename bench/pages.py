"""Write the measured numbers into the documents, from the result files.

    python bench/pages.py             write the blocks of README.md and of pages in docs, and docs/ladder.svg
    python bench/pages.py --check     only list the files that would change

A block begins with `<!-- made by bench/pages.py: NAME -->` and ends with `<!-- end -->`. A block without results is
empty. `tests/test_numbers.py` compares the pages with the files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from charts import Bar, bars

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGES = ("README.md", "docs/hopper.md", "docs/gpu.md", "docs/conv2d.md", "docs/engine.md")
CHART = "docs/ladder.svg"
BLOCK = re.compile(r"(<!-- made by bench/pages.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]
FAMILIES = ("grouped", "blockwise", "fp8", "batched")


def results(name: str) -> Row | None:
    """Read a file of results; None if it does not exist."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else None


def rows_of(name: str) -> list[Row]:
    """List the rows of a file that did not fail."""
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


LARGE = 6
"""The shapes with the most FLOPs, which are at the power limit."""


def large_rows() -> list[Row]:
    """Return the rows of the largest shapes of the measurement with each side alone."""
    rows = rows_of("alone")
    return sorted(rows, key=lambda row: -prod(row["shape"]))[:LARGE]


def mean(rows: list[Row], name: str) -> float:
    return geometric_mean(row[name] for row in rows)


def summary() -> str:
    plain, random, fused = (results(f"matmul_{what}") for what in ("plain", "random", "fused"))
    found = results("alone")
    if not (plain and random and fused and found):
        return ""
    own, rows = found["summary"], large_rows()
    compiled = fused["summary"].get("mean_to_compiled")
    more = f", and are {compiled:.3f} times as fast as the `torch.compile` version" if compiled else ""
    lower = min(own["alone"], own["cool"])
    return (
        f"bf16 GEMM on an H200, speed relative to cuBLAS (`torch.mm`), geometric mean over {own['shapes']} shapes: **{lower:.3f}** with each side\n"
        f"running alone ({own['alone']:.3f} under sustained load, {own['cool']:.3f} cool; {mean(rows, 'alone'):.3f} over the {LARGE} largest shapes, lowest {own['lowest_worst']:.3f}).\n"
        f"With the two sides alternating every few milliseconds, where they share one power budget, it is {plain['summary']['geometric_mean']:.3f} over {plain['summary']['shapes']} of them, and\n"
        f"{random['summary']['geometric_mean']:.3f} over {random['summary']['shapes']} random shapes. Bias, GELU and residual fused into the GEMM take at most "
        f"{fused['summary']['most_of_plain']:.3f} times the\n*plain* cuBLAS time where that is 100 µs or more{more} (alternating).\n"
        f"[docs/hopper.md](docs/hopper.md#numbers) has the tables and the method.\n"
    )


def alone() -> str:
    rows = rows_of("alone")
    if not rows:
        return ""
    alternating = {times(row["shape"]): row["ratio"] for row in rows_of("matmul_plain")}
    lines = []
    for row in rows:
        ours, peer = row["sides"]["shipped"], row["sides"]["cublas"]
        label = times(row["shape"])
        clocks = f"{ours['mhz']:.0f} / {peer['mhz']:.0f}" if "mhz" in ours and "mhz" in peer else ""
        energy = f"{ours['joules'] * 1e3:.3g} / {peer['joules'] * 1e3:.3g}" if "joules" in ours else ""
        ratios = (ratio(alternating.get(label)), ratio(row["alone"]), ratio(row["cool"]))
        lines.append((label, f"`{row['config']}`", *ratios, clocks, energy))
    for name, some in ((f"geometric mean of {len(rows)}", rows), (f"of the {LARGE} largest", large_rows())):
        own = tuple(ratio(mean(some, column)) for column in ("alone", "cool"))
        is_whole = all(times(row["shape"]) in alternating for row in some)
        others = [{"ratio": alternating[times(row["shape"])]} for row in some] if is_whole else []
        lines.append((name, "", ratio(mean(others, "ratio") if is_whole else None), *own, "", ""))
    head = ("M × N × K", "configuration", "alternating", "alone", "cool")
    return table((*head, "MHz alone, ours / cuBLAS", "mJ per call, ours / cuBLAS"), lines)


ROWS = ((1, 16), (17, 128), (129, 1024), (1025, 8192))
"""Ranges of M by which the shapes of models are reported."""


def models() -> str:
    return by_rows(rows_of("alone_models"))


def fresh_models() -> str:
    return by_rows(rows_of("alone_fresh"))


def by_rows(rows: list[Row]) -> str:
    """Means and the lowest of shapes by their number of rows."""
    lines = []
    for least, most in (*ROWS, (ROWS[0][0], ROWS[-1][1])):
        some = [row for row in rows if least <= row["shape"][0] <= most]
        if not some:
            return ""
        lowest = min(some, key=lambda row: row["worst"])
        means = (ratio(mean(some, name)) for name in ("alone", "cool", "worst"))
        below = (str(sum(row["worst"] < bound for row in some)) for bound in (1.0, 0.95))
        lines.append(
            (f"{least}–{most}", str(len(some)), *means, f"{ratio(lowest['worst'])} ({times(lowest['shape'])})", *below)
        )
    head = ("M", "shapes", "alone", "cool", "lower of both", "lowest", "below 1.00", "below 0.95")
    return table(head, lines)


def alone_families() -> str:
    lines = []
    for row in rows_of("alone_families"):
        bounds = row.get("bound", {})
        bound = " / ".join(ratio(bounds[how]) for how in ("alone", "cool")) if bounds else ""
        lines.append((row["family"], row["label"], row["best_peer"], ratio(row["alone"]), ratio(row["cool"]), bound))
    for name in dict.fromkeys(row["family"] for row in rows_of("alone_families")):
        some = [row for row in rows_of("alone_families") if row["family"] == name]
        means = (ratio(mean(some, how)) for how in ("alone", "cool"))
        lower = f"lower of both {ratio(mean(some, 'worst'))}, lowest {ratio(min(row['worst'] for row in some))}"
        bounds = [row["bound"] for row in some if "bound" in row]
        both = (ratio(mean(bounds, how)) for how in ("alone", "cool"))
        bound = " / ".join(both) if len(bounds) == len(some) else ""
        lines.append((name, f"geometric mean of {len(some)}", lower, *means, bound))
    head = ("operation", "sizes", "fastest baseline", "alone", "cool", "bound: alone / cool")
    return table(head, lines) if lines else ""


SHIPPED_FROM = 0.004
"""Gain from which `bench/screening.py --ship` takes a configuration."""


def screened() -> str:
    """The choice before and after a screening, each alone and cool against PyTorch's first way."""
    lines = []
    for row in rows_of("screened"):
        if row.get("best", "ours") == "ours" or row["best_worst"] < row["worst"] + SHIPPED_FROM:
            continue
        before, after = (row["sides"][name] for name in ("ours", row["best"]))
        ratios = (ratio(each[how]) for each in (before, after) for how in ("alone", "cool"))
        lines.append((row["family"], row["label"], f"`{row['best']}`", *ratios))
    head = ("operation", "sizes", "best", "before: alone", "cool", "best: alone", "cool")
    return table(head, lines) if lines else ""


def counters() -> str:
    lines = []
    for row in rows_of("counters"):
        case, _, side = row["case"].partition(":")[2].partition(":none")[0].rpartition(":")
        if "elementwise" in row["Kernel Name"] or not case:
            continue
        family, _, sizes = case.removeprefix("case:").split("case:")[-1].partition(",")

        def read(name: str, scale: float, row: Row = row) -> float:
            return next(float(value.replace(",", "")) for key, value in row.items() if key.startswith(name)) * scale

        numbers = (
            f"{read('gpu__time_duration', 1e-3):.1f}",
            f"{read('sm__cycles_elapsed', 1e-6):.0f} / {read('lts__cycles_elapsed', 1e-6):.0f}",
            f"{read('sm__pipe_tensor_cycles', 1):.0f}",
            f"{read('lts__t_sectors_op_read', 32e-9):.2f}",
            f"{read('lts__throughput', 1):.0f}",
            f"{read('dram__bytes_read', 1e-9):.2f}",
            f"{read('dram__throughput', 1):.0f}",
        )
        lines.append((f"{family} {sizes.replace('x', '×')}", side, *numbers))
    head = ("GEMM", "side", "µs", "MHz, SM / L2", "tensor cores active, %", "read from L2, GB")
    return table((*head, "L2 throughput, %", "read from DRAM, GB", "DRAM throughput, %"), lines) if lines else ""


def end_to_end() -> str:
    lines = []
    for row in rows_of("end_to_end"):
        own, base = row["sides"][row["best"]], row["sides"]["torch"]
        memory = f"{own['peak_bytes'] / 2**20:.0f} / {base['peak_bytes'] / 2**20:.0f}"
        ratios = (ratio(row["sides"]["swapped"]["alone"]), ratio(row["alone"]), ratio(row["cool"]))
        lines.append((row["label"], f"{base['alone_us'] / 1e3:.3f}", *ratios, memory))
    head = ("task", "PyTorch, ms", "swapped layers, alone", "best, alone", "best, cool", "peak MiB, best / PyTorch")
    return table(head, lines) if lines else ""


def plain() -> str:
    fused = {times(row["shape"]): row for row in rows_of("matmul_fused")}
    head = (
        *("M × N × K", "configuration", "µs", "TFLOP/s", "plain: speed vs cuBLAS"),
        *("fused: speed vs eager", "fused: time / plain cuBLAS time"),
    )
    has_compiled = any("ratio_to_compiled" in row for row in fused.values())
    lines = []
    for row in rows_of("matmul_plain"):
        other = fused.get(times(row["shape"]), {})
        cells = (ratio(row["ratio"]), ratio(other.get("ratio")), ratio(other.get("of_plain_cublas")))
        more = (ratio(other.get("ratio_to_compiled")),) if has_compiled else ()
        lines.append((times(row["shape"]), row["config"], f"{row['us']:.1f}", f"{row['tflops']:.0f}", *cells, *more))
    return table((*head, *(("fused: speed vs torch.compile",) if has_compiled else ())), lines) if lines else ""


def seeds_of(document: Row) -> str:
    """Name the seeds of one run, or of several merged ones."""
    seeds = document["seed"] if isinstance(document["seed"], list) else [document["seed"]]
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def few(rows: list[Row], bound: float = 0.8) -> str:
    """Count the shapes that are slower than a bound, in words."""
    count = sum(row["ratio"] < bound for row in rows)
    return "one is" if count == 1 else f"{count or 'none'} are"


def means() -> str:
    plain, fused, random, odd = (results(f"matmul_{what}") for what in ("plain", "fused", "random", "odd"))
    if not (plain and fused and random and odd):
        return ""
    own, compiled = plain["summary"], fused["summary"].get("mean_to_compiled")
    text = f"Geometric means: {own['geometric_mean']:.3f} plain, {fused['summary']['geometric_mean']:.3f} fused"
    text += f" ({compiled:.3f} against `torch.compile`, mode max-autotune-no-cudagraphs)." if compiled else "."
    unsettled = "" if "settled_s" in fused else "; the fused run was timed without settling first"
    text += (
        f" Plain and fused are two runs, each\nwith its own baselines{unsettled}. "
        f"cuBLAS against itself differs by up to {own['spread_of_the_peer']:.3f}."
    )
    if "mean_to_third" in own:
        text += f"\nPTX kernels written by hand for these shapes, in the same run, take {own['mean_to_third']:.3f} times our time."
    text += (
        f"\n\nOver {random['summary']['shapes']} random shapes (M 1–8192, N and K multiples of 8 up to 16384; {seeds_of(random)}) the mean is "
        f"{random['summary']['geometric_mean']:.3f} and\nthe lowest {random['summary']['lowest']:.3f}; {few(random['rows'])} "
        f"below 0.80 and {few(random['rows'], 0.9)} below 0.90. Their configurations were chosen by {random.get('chosen_by', 'the cost model and its trees')},\n"
        f"which were fitted to these measurements afterwards. Where K is an odd multiple of 8, rows start in the middle of a\n32-byte sector and L2 "
        f"is the bottleneck. Over {odd['summary']['shapes']} odd shapes the mean is {odd['summary']['geometric_mean']:.3f}, because cuBLAS does not use its fast "
        f"kernels\nfor odd sizes, and the lowest {odd['summary']['lowest']:.3f}.\n"
    )
    return text


def against_cublas(name: str) -> str:
    head = ("M × N × K", "configuration", "µs", "TFLOP/s", "speed vs cuBLAS")
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
        f"With B stored as K × N (N contiguous), the columns of a tile are copied in 128-byte pieces, so the tile width is a multiple of\n64: "
        f"geometric mean {found['summary']['geometric_mean']:.3f}, lowest {found['summary']['lowest']:.3f}.\n\n"
        + against_cublas("matmul_mn_major")
    )


def dependent() -> str:
    """Write the table of dependent launches: the same kernels with and without them."""
    found = results("dependent")
    if not found:
        return ""
    gains = found["summary"]
    text = (
        "**Programmatic dependent launch.** Short and memory-bound GEMMs are launched so that they may start before the previous kernel\n"
        "has ended: they set up their barriers meanwhile, and wait for that kernel before they touch global memory. PyTorch launches\n"
        "cuBLAS without it. The same kernels with and without it, in CUDA graphs of equal launches (`bench/dependent.py`); those that\n"
        f"use it by default gain {100 * gains['gain_alone'] - 100:.1f} % alone and {100 * gains['gain_cool'] - 100:.1f} % cool:\n\n"
    )
    head = ("M × N × K", "configuration", "without, alone", "without, cool", "with, alone", "with, cool", "by default")
    lines = [
        (
            times(row["shape"]),
            f"`{row['config']}`",
            *(ratio(row["sides"][side][how]) for side in ("without", "dependent") for how in ("alone", "cool")),
            "yes" if row["by_default"] else "no",
        )
        for row in rows_of("dependent")
    ]
    return text + table(head, lines)


def families() -> str:
    head = ("family", "case", "µs", "TFLOP/s", "speed vs PyTorch")
    measured = [(name, row) for name in FAMILIES for row in rows_of(f"matmul_{name}")]
    lines = [
        (name, row["label"], f"{row['us']:.1f}", f"{row['tflops']:.0f}", ratio(row["ratio"])) for name, row in measured
    ]
    return table(head, lines) if lines else ""


def conv2d() -> str:
    rows = rows_of("conv2d")
    lines = [
        (
            row["label"],
            f"{row['sides']['warploom']['alone_us']:.1f}",
            f"{row['tflops']:.0f}",
            f"{row['sides']['cudnn']['alone_us']:.1f}",
            ratio(row["alone"]),
            ratio(row["cool"]),
        )
        for row in rows
    ]
    if lines:
        lines.append(
            (f"geometric mean of {len(rows)}", "", "", "", ratio(mean(rows, "alone")), ratio(mean(rows, "cool")))
        )
    head = ("filter, image, channels", "µs", "TFLOP/s", "cuDNN, µs", "speed vs cuDNN, alone", "cool")
    return table(head, lines) if lines else ""


def host() -> str:
    lines = [
        (row["call"], f"{row['us']:.1f}", f"{row['ratio']:.2f} × {row['yardstick']}" if row["yardstick"] else "")
        for row in rows_of("host_cost")
    ]
    return table(("call", "host time, µs", ""), lines) if lines else ""


def first() -> str:
    lines = [(row["case"], f"{row['without_ms']:.0f}", f"{row['with_ms']:.0f}") for row in rows_of("first_result")]
    return table(("first result of a new process, ms", "empty cache", "warm cache"), lines) if lines else ""


def ladder_rows() -> tuple[list[str], list[tuple[str, list[Row | None]]]]:
    """List the shapes and, for each step, what it adds and its row for each shape."""
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
        "## Optimisation steps\n\nOne kernel with one optimisation added at a time, on top of those above it: TFLOP/s, and the speed relative to cuBLAS in the\n"
        "same run (`python bench/ladder.py`). The clock varies from run to run with the power limit, so compare the ratios.\n\n"
    )
    lines = [
        (
            adds if number == 0 else f"+ {adds}",
            *(f"{row['tflops']:.0f} ({row['ratio']:.3f})" if row else "–" for row in found),
        )
        for number, (adds, found) in enumerate(rungs)
    ]
    return (
        text + table(("", *shapes), lines) + "\n![Speed relative to cuBLAS after each optimisation step](ladder.svg)\n"
    )


def chart() -> str:
    shapes, rungs = ladder_rows()
    if not rungs:
        return ""
    values = [
        [Bar(row["ratio"], f"{row['ratio']:.2f} · {row['tflops']:.0f} TFLOP/s") if row else None for row in found]
        for _, found in rungs
    ]
    labels = [adds if number == 0 else f"+ {adds}" for number, (adds, _) in enumerate(rungs)]
    title, axis = (
        "Speed relative to cuBLAS, one optimisation added at a time",
        "speed relative to cuBLAS in the same run",
    )
    return bars(title, labels, shapes, values, (1.0, "cuBLAS"), axis)


FREE_MHZ = 1800
"""The clock below which a side is at the power limit; the free clock is 1980 MHz."""


def roofline() -> str:
    """Write the fractions of the measured roofline that both sides reach, alone and cool."""
    rows = rows_of("roofline")
    peaks = {row["element"]: row for row in rows if row["label"] == "peak"}
    rates = {row["label"]: row for row in rows if row["element"] == "bytes"}
    products = [("bf16", row, "shipped", "cublas") for row in rows_of("alone")]
    products += [("e4m3", row, "ours", "_scaled_mm") for row in rows_of("alone_families") if row.get("family") == "fp8"]
    if not peaks or not rates or not products:
        return ""
    rate = {how: max(row[f"{how}_terabytes"] for row in rates.values()) for how in ("alone", "cool")}
    peak = {each: {how: row[f"{how}_tflops"] for how in ("alone", "cool")} for each, row in peaks.items()}
    text = (
        "## Roofline\n\nPeak rates, measured alone and cool like the GEMMs (`bench/roofline.py`): MMAs on random operands in shared memory run\n"
        f"at {peak['bf16']['alone']:.0f} TFLOP/s alone and {peak['bf16']['cool']:.0f} cool in bf16, {peak['e4m3']['alone']:.0f} and {peak['e4m3']['cool']:.0f} in e4m3; "
        f"DRAM reads at {rates['read']['alone_terabytes']:.2f} TB/s, PyTorch's copy at {rates['copy']['alone_terabytes']:.2f}.\n"
        "The roofline of a GEMM is the longer of its compute time and its memory time at these rates; where a side stays at the free\n"
        "clock, its roofline alone is that of the free clock.\n\n"
    )
    head = ("M × N × K", "type", "bound by", "µs alone", "TFLOP/s", *_FRACTIONS)
    lines = []
    for element, row, ours, theirs in products:
        shape = row.get("shape") or [int(each) for each in row["label"].split("×")]
        m, n, k = shape
        size = {"bf16": 2, "e4m3": 1}[element]
        flops, moved = 2e-6 * m * n * k, 1e-6 * (size * (m + n) * k + 2 * m * n)
        bound = "memory" if moved / rate["cool"] > flops / peak[element]["cool"] else "tensor core"
        found = []
        for side in (ours, theirs):
            for how in ("alone", "cool"):
                is_limited = how == "alone" and row["sides"][side].get("mhz", FREE_MHZ) < FREE_MHZ
                least = max(flops / peak[element]["alone" if is_limited else "cool"], moved / rate[how])
                found.append(ratio(least / row["sides"][side][f"{how}_us"]))
        us = row["sides"][ours]["alone_us"]
        lines.append((times(shape), element, bound, f"{us:.1f}", f"{flops / us:.0f}", *found))
    return text + table(head, lines)


_FRACTIONS = tuple(f"{side}: fraction {how}" for side in ("ours", "cuBLAS") for how in ("alone", "cool"))


def sanitizer() -> str:
    found = results("sanitizer")
    if not found:
        return ""
    own = [row for row in found["rows"] if not row["case"].startswith("planted")]
    clean, right = [row for row in own if not row["errors"]], [row for row in own if row["well"]]
    tools = sorted({row["tool"] for row in own})
    planted = [row for row in found["rows"] if row["case"].startswith("planted")]
    text = (
        f"## compute-sanitizer\n\n{', '.join(tools)} over {len({row['case'] for row in own})} small cases of all families: "
        f"{len(clean)} of {len(own)} runs without a finding,\n{len(right)} of them with the right result; "
        f"{sum(row['well'] for row in planted)} of {len(planted)} planted faults found (`python tests/gpu/sanitise.py`)."
    )
    bad = [f"{row['tool']} on {row['case']}" for row in own if not row["well"]]
    return text + (f" Not right: {'; '.join(bad)}.\n" if bad else "\n")


def engine() -> str:
    """The emulator's speed: version 0.1, native code, and native code against its own eager run without observers."""
    rows = {row["row"]: row for row in rows_of("engine_speed") if "speedup" in row}
    made = []
    for name, row in rows.items():
        plain = rows.get(name.partition(",")[0], row)
        of_plain = "" if plain is row else f"{row['here_ms'] / plain['here_ms']:.1f}"
        made.append((name, f"{row['baseline_ms']:.0f}", f"{row['here_ms']:.1f}", f"{row['speedup']:.1f}", of_plain))
    return table(("", "0.1", "native", "ratio", "× the eager run"), made) if made else ""


BLOCKS: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        summary,
        alone,
        models,
        fresh_models,
        alone_families,
        screened,
        counters,
        end_to_end,
        plain,
        means,
        mn_major,
        odd,
        dependent,
        families,
        ladder,
        roofline,
        sanitizer,
        host,
        conv2d,
        engine,
        first,
    )
}


def rendered(text: str) -> str:
    """Write the blocks of a page anew."""

    def made(match: re.Match[str]) -> str:
        block = BLOCKS[match[2]]()
        return f"{match[1]}\n{block}\n{match[3]}" if block else f"{match[1]}{match[3]}"

    return BLOCK.sub(made, text)


def pages() -> dict[Path, str]:
    """Render every file that this script writes."""
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
