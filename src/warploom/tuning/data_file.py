"""Writing of a heuristics data file: table, constants and trees of one GPU, from its measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from warploom.heuristics.sm90.cost_model import Models
from warploom.tuning.fitting import device_of
from warploom.tuning.measurements import compared_times

_MARKS = ("a_major", "b_major", "fused", "residual", "gated")
_DERIVED_FROM_TILE = ("stage_columns", "num_output_stages")
"""Subtile fields: a table leaves them to be derived, so that a time may be of other ones; not of screened rows."""


def data_text(documents: Sequence[Mapping[str, Any]], models: Models, trees: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the JSON of a data file; an entry and a tree are a line each, so that differences can be read."""
    last = documents[-1]
    head = {
        "device": asdict(device_of(last)),
        "measured": {
            "when": last["when"],
            **{name: last["machine"].get(name) for name in ("driver", "cuda", "torch")},
            "inputs": last["inputs"],
            "by": "warploom tune --fit",
        },
    }
    constants = {name: asdict(model) for name, model in models.items()}
    parts = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    parts.append(f'"models": {json.dumps(constants, indent=1)}')
    parts.append(f'"table": {_lines(table_entries(documents))}')
    for title, each in trees.items():
        first = ",\n".join(f"{json.dumps(name)}: {json.dumps(each[name])}" for name in ("features", "start", "depth"))
        parts.append(f'"{title}": {{\n{first},\n"trees": {_lines(each["trees"], (",", ":"))}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(rows: Sequence[Any], separators: tuple[str, str] | None = None) -> str:
    return "[\n" + ",\n".join(json.dumps(row, separators=separators) for row in rows) + "\n]"


def table_entries(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an entry for each problem: its fastest configuration.

    Rows under `one_by_one` were measured through the array operations and have priority over `rows`. Of a problem that
    was measured more than once, rows whose configurations ran alone have priority, first those with times at the free
    clock, then the row that is fastest relative to the other library. A light epilogue is not a problem of its own, and
    the plain GEMM has priority.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (each for document in documents for each in _fastest_rows(document)):
        marks = {name: row[name] for name in _MARKS if row.get(name)}
        entry = {
            "kind": row["kind"],
            "sizes": row["shape"],
            **({"count": row["count"]} if row["count"] != 1 else {}),
            "a_type": row["a_type"],
            **marks,
            "config": row["config"] if row.get("how") == "screened" else _without_subtiles(row["config"]),
            "us": row["us"],
            **({"peer_us": row["peer_us"]} if row.get("peer_us") else {}),
        }
        found.setdefault((row["kind"], *row["shape"], row["count"], row["a_type"], *marks.items()), entry)
    return list(found.values())


def _fastest_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a document with their fastest configuration, those with priority first."""
    yield from document.get("one_by_one", ())
    compared = [_fastest(row, document["configs"]) for row in document["rows"] if len(compared_times(row)) > 1]

    def priority(row: Mapping[str, Any]) -> tuple[bool, bool, bool, float]:
        is_shared, is_warm = row.get("how") != "alone", "cool_us" not in row
        ratio = row["us"] / row["peer_us"] if row.get("peer_us") else 0
        return row.get("light_epilogue", False), is_shared, is_warm, ratio

    yield from sorted(compared, key=priority)


def _fastest(row: Mapping[str, Any], configs: Mapping[str, Any]) -> dict[str, Any]:
    times = compared_times(row)
    name = min(times, key=times.__getitem__)
    return {**row, "config": configs[name], "us": round(times[name], 3)}


def _without_subtiles(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose subtiles are derived, if they were given."""
    is_given = _DERIVED_FROM_TILE[0] in config
    return {name: value for name, value in config.items() if name not in _DERIVED_FROM_TILE or not is_given}
