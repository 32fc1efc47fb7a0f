"""Run and check CUTLASS's CuTe tutorials as they are, and with their defects corrected.

    python bench/cutlass_programs.py --source CHECKOUT [--only NAME …] [--out bench/results/cutlass_programs.json]

The checkout is of github.com/NVIDIA/cutlass; nvcc must be on the PATH. Nothing of a program is kept but the verdicts.
Rows of other programs in the result file stay, so that the table can be made in parts; the table in docs/cuda.md is
written from it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "cuda.md"
TUTORIALS = "examples/cute/tutorial"
SYNC = ("mma_barrier, mma_barrier_phase_bit);", "\n    __syncthreads();")
LOADED = ("copy(t2r_copy, tTR_tAcc(_,_,epi_tile_idx), tTR_rD);", "\n    cutlass::arch::fence_view_async_tmem_load();")
FENCE = ("tCgB(_,_,_,k_tile), tCsB);", "\n    cutlass::arch::fence_view_async_shared();")


WAITED = (
    "cp_async_wait<0>();",
    """
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();""",
)


@dataclass(frozen=True)
class Case:
    """A program, its arguments, and corrections: each adds a text after the first occurrence of another."""

    file: str
    target: str
    arguments: str
    corrections: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    @property
    def name(self) -> str:
        return Path(self.file).name


LAPPED = "all warps wait for the TMA barrier, but only warp 0 holds the next phase back: a warp that falls a phase behind waits for ever"
CASES = (
    Case(
        f"{TUTORIALS}/hopper/wgmma_sm90.cu", "sm_90a", "256 256 128 T N", (WAITED,),
        "each thread waits for its own `cp.async`, and no barrier for those of others; no proxy fence before the wgmma",
    ),
    Case(f"{TUTORIALS}/hopper/wgmma_tma_sm90.cu", "sm_90a", "256 256 128 T N"),
    Case(
        f"{TUTORIALS}/blackwell/01_mma_sm100.cu", "sm_100a", "512 1024 128", (FENCE,),
        "operands are written by ordinary stores and read by the MMA without `fence.proxy.async`",
    ),
    Case(f"{TUTORIALS}/blackwell/02_mma_tma_sm100.cu", "sm_100a", "512 1024 128", (SYNC,), LAPPED),
    Case(f"{TUTORIALS}/blackwell/03_mma_tma_multicast_sm100.cu", "sm_100a", "512 1024 128", (SYNC,), LAPPED),
    Case(f"{TUTORIALS}/blackwell/04_mma_tma_2sm_sm100.cu", "sm_100a", "512 1024 128", (SYNC,), LAPPED),
    Case(f"{TUTORIALS}/blackwell/05_mma_tma_epi_sm100.cu", "sm_100a", "512 1024 128", (SYNC, LOADED), f"{LAPPED}; TMEM is freed without `tcgen05.wait::ld`, and not every branch reads what was loaded"),
)  # fmt: skip


def run(case: Case, source: Path, checkout: Path, folder: Path) -> dict[str, Any]:
    """Compile and check one program; what was seen."""
    flags = f"--expt-relaxed-constexpr -I{checkout}/include -I{checkout}/tools/util/include -I{(checkout / case.file).parent}"
    command = [
        sys.executable, "-m", "warploom", "cuda", "--target", case.target, "--check", "--profile", "lenient",
        "--repeats", "1", "--nvcc", flags, "--build", str(folder), str(source), *case.arguments.split(),
    ]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(set(re.findall(r"^  ([A-Z]+(?:_[A-Z]+)+)  ", done.stderr, re.MULTILINE)))
    verdict = "REFUTED" if "REFUTED" in done.stderr else "PROVED" if "PROVED" in done.stderr else "INCOMPLETE"
    hangs = "warps blocked" in done.stderr
    return {
        "status": done.returncode,
        "verdict": verdict,
        "findings": found,
        "witness": "hang" if hangs else "wrong numbers" if "differ from the eager run" in done.stderr else "",
        "said": (done.stderr.strip().splitlines() or [""])[-1],
        "seconds": round(time.perf_counter() - began, 1),
    }


def measure(case: Case, checkout: Path) -> dict[str, Any]:
    """A row of the table: the program as it is, and corrected."""
    with tempfile.TemporaryDirectory() as folder:
        path = checkout / case.file
        row = {
            "target": case.target,
            "arguments": case.arguments,
            "as it is": run(case, path, checkout, Path(folder, "a")),
        }
        if case.corrections:
            text = path.read_text()
            for after, added in case.corrections:
                text = text.replace(after, after + added, 1)
            copy = Path(folder, case.name)
            copy.write_text(text)
            row |= {"reason": case.reason, "corrected": run(case, copy, checkout, Path(folder, "b"))}
    return row


def table(results: dict[str, Any]) -> str:
    """The table for docs/cuda.md."""
    lines = ["| program | as it is | corrected | defect |", "|---|---|---|---|"]
    for case in CASES:
        row = results["programs"].get(case.name)
        if row is not None:
            first, second = row["as it is"], row.get("corrected")
            seen = first["verdict"] + "".join(f" {code}" for code in first["findings"])
            seen += f"; witness: {first['witness']}" if first["witness"] else ""
            fixed = "" if second is None else second["verdict"]
            lines.append(f"| `{case.name}` {row['arguments']} | {seen} | {fixed} | {row.get('reason', '')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cutlass_programs.json")
    options = parser.parse_args()
    checkout = options.source.resolve()
    results = json.loads(options.out.read_text()) if options.out.is_file() else {"programs": {}}
    log = ["git", "-C", str(checkout), "log", "-1", "--format=%h"]
    results["commit"] = subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()
    for case in CASES:
        if not options.only or any(part in case.name for part in options.only):
            results["programs"][case.name] = row = measure(case, checkout)
            print(case.name, row, flush=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    begin, end = "<!-- programs -->\n", "\n<!-- end -->"
    page = PAGE.read_text("utf-8")
    if begin in page:
        head, rest = page.split(begin)
        PAGE.write_text(head + begin + table(results) + end + rest.split(end)[1], "utf-8")


if __name__ == "__main__":
    main()
