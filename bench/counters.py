"""Hardware counters of our kernels and the baselines': bytes through L2 and DRAM, activity of the tensor cores, clocks.

    PYTHONPATH=src python3 bench/counters.py --out FILE.json [--cases dense,2048x2048x2048 …]

Runs itself under Nsight Compute (`ncu`), which must be on the PATH; clocks are not changed. Each side of a case runs once,
warm, at the free clock. Counters that this `ncu` does not know are left out.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.avg.per_second",
    "lts__cycles_elapsed.avg.per_second",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "launch__registers_per_thread",
    "launch__grid_size",
)
CASES = (
    "dense,2048x2048x2048",
    "dense,512x4096x16384",
    "dense,4096x4096x14336",
    "fp8 by rows,4096x14336x4096",
    "fp8,4096x4096x4096",
    "swiglu,16x28672x8192",
)
MARK = "case:"


def run(cases: list[str]) -> None:
    """Run each side of each case once between profiler marks, after a warm-up."""
    import torch
    from inputs import Maker
    from screening import ALL

    for case in cases:
        name, sizes = case.split(",")
        family = ALL[name]
        given = family.make(Maker("cuda"), *(int(each) for each in sizes.split("x")))
        peer, baseline = next(iter(family.peers.items()))
        for title, side in (("ours", family.ours), (peer, baseline)):
            for _ in range(3):
                side(given)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda.nvtx.range_push(f"{MARK}{case}:{title}")
            side(given)
            torch.cuda.synchronize()
            torch.cuda.nvtx.range_pop()
            torch.cuda.profiler.stop()
        torch.cuda.empty_cache()


def known_metrics() -> list[str]:
    """Return the counters that this `ncu` knows for Hopper; all of them if it does not list any."""
    query = ["ncu", "--query-metrics", "--chip", "gh100"]
    listed = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout
    names = {line.split()[0] for line in listed.splitlines() if line.strip()}
    found = [each for each in METRICS if each.partition(".")[0] in names or each.startswith("launch__")]
    return found if len(found) > len(METRICS) // 2 else list(METRICS)


def rows_of(output: str) -> list[dict[str, Any]]:
    """Parse the CSV of `ncu --page raw`: a header, units, and a row for each kernel."""
    text = "\n".join(line for line in output.splitlines() if line.startswith('"'))
    lines = list(csv.reader(io.StringIO(text)))
    if len(lines) < 3:
        return []
    header, units = lines[0], lines[1]
    found = []
    for line in lines[2:]:
        row: dict[str, Any] = {"case": next((cell for cell in line if MARK in cell), "")}
        for name, unit, cell in zip(header, units, line, strict=False):
            if name == "Kernel Name" or name in METRICS:
                row[f"{name} [{unit}]" if unit else name] = cell
        found.append(row)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), help="FAMILY,SIZES of bench/screening.py")
    parser.add_argument("--run", action="store_true", help="only run the cases, as under ncu")
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--out", type=Path, default=Path("counters.json"))
    asked = parser.parse_args()
    if asked.run:
        run(asked.cases)
        return 0
    options = ["--nvtx", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    command = ["ncu", *options, "--metrics", ",".join(known_metrics())]
    command += [sys.executable, __file__, "--run", "--cases", *asked.cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=asked.seconds, check=False)
    rows = rows_of(done.stdout)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"what": "counters", "when": when, "rows": rows}
    if not rows:
        about["output"] = (done.stdout + done.stderr)[-3000:]
    asked.out.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    print(json.dumps(rows or about, indent=None)[:4000])
    return int(not rows)


if __name__ == "__main__":
    sys.exit(main())
