"""Write the shipped tuning table from measurements: the fastest configuration of every problem.

    python bench/shipped_table.py                  bench/results/hopper_configurations.json to h200.table.json of the package
    python bench/shipped_table.py FILE TABLE       a file of `warploom tune … --out FILE`, to a table of another GPU

Choices under `one_by_one` were measured through the public operations, and take precedence over those of `rows`. The
width of the epilogue subtiles is derived and not in the table, so a time may be of another width
(structured/config/sm90_subtiles.py).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "bench" / "results" / "hopper_configurations.json"
TABLE = ROOT / "src" / "warploom" / "heuristics" / "data" / "h200.table.json"
MARKS = ("fused", "residual")
MAJORS = ("a_major", "b_major")
STRIPS = ("stage_columns", "num_output_stages")


def entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Make one entry per problem; if it was measured more than once, the entry that is fastest relative to the baseline.

    A bias or an activation that needs no registers is not a problem of its own; the plain GEMM comes first.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    compared = (row for row in document["rows"] if len(row["us"]) > 1)  # a single measurement has no fastest
    measured = [fastest(row, document["configs"]) for row in compared]
    measured.sort(key=lambda row: (row.get("followed", False), row["us"] / row["peer_us"] if row.get("peer_us") else 0))
    for row in (*document.get("one_by_one", ()), *measured):
        marks = {name: row[name] for name in (*MAJORS, *MARKS) if row.get(name)}
        entry = {
            "kind": row["kind"],
            "sizes": row["shape"],
            **({"count": row["count"]} if row["count"] != 1 else {}),
            "a_type": row["a_type"],
            **marks,
            "config": derived(row["config"]),
            "us": row["us"],
            **({"peer_us": row["peer_us"]} if row.get("peer_us") else {}),
        }
        found.setdefault((row["kind"], *row["shape"], row["count"], row["a_type"], *marks.items()), entry)
    return list(found.values())


def derived(config: dict[str, Any]) -> dict[str, Any]:
    """Drop the width of the subtiles from a configuration, so that it is derived."""
    return {name: value for name, value in config.items() if name not in STRIPS or STRIPS[0] not in config}


def fastest(row: dict[str, Any], configs: dict[str, Any]) -> dict[str, Any]:
    name = min(row["us"], key=row["us"].__getitem__)
    return {**row, "config": configs[name], "us": row["us"][name]}


def table(document: dict[str, Any]) -> str:
    """Write a table with one line per entry, for readable diffs."""
    about = {"gpu": document["machine"]["gpu"], "sms": document["machine"]["sms"], "when": document["when"]}
    about |= {name: document["machine"].get(name) for name in ("driver", "cuda", "torch")}
    about["inputs"] = document["inputs"]
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries(document))
    return f'{{\n "measured_on": {json.dumps(about, ensure_ascii=False)},\n "entries": [\n{lines}\n ]\n}}\n'


def main() -> int:
    source, target = (*map(Path, sys.argv[1:3]), MEASURED, TABLE)[:2] if len(sys.argv) == 3 else (MEASURED, TABLE)
    target.write_text(table(json.loads(source.read_text("utf-8"))), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
