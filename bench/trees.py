"""Fit the decision trees that re-rank the model's first configurations to the model's errors.

    python bench/trees.py                 bench/results/hopper_configurations.json to heuristics/data/h200.trees.json
    python bench/trees.py --judge         cross-validate them; writes nothing

Needs scikit-learn, and no GPU. Fit them again after `warploom tune --fit` has changed the model's constants.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warploom.heuristics.sm90.cost_model import is_single, outlines_of
from warploom.heuristics.sm90.ranking import LOOKED_AT
from warploom.heuristics.sm90.trees import FEATURES, believed, features_of
from warploom.tuning.fitting import Measured, cost_of, load

try:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import GroupKFold
except ImportError:
    sys.exit("trees are fitted by scikit-learn, which is not installed: pip install scikit-learn")

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "bench" / "results" / "hopper_configurations.json"
TREES = ROOT / "src" / "warploom" / "heuristics" / "data" / "h200.trees.json"
NEAR = 4
"""Weight of a configuration: its time to this power, so that fast ones count more."""
ENOUGH = 20
"""Minimum number of measured configurations for a problem to count."""
FORM = {
    "max_iter": 240,
    "learning_rate": 0.1,
    "max_leaf_nodes": 32,
    "max_depth": 8,
    "min_samples_leaf": 40,
    "l2_regularization": 5.0,
    "early_stopping": False,
}


@dataclass(frozen=True)
class Rows:
    """Collect all measurements in one table."""

    features: np.ndarray[Any, Any]
    missed: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]
    problem: np.ndarray[Any, Any]
    shape: np.ndarray[Any, Any]
    """Number the shapes: one may have been measured more than once."""


def rows_of(measured: list[Measured], sms: int) -> Rows:
    parts: list[tuple[Any, ...]] = []
    shapes: dict[tuple[int, ...], int] = {}
    for number, each in enumerate(measured):
        features, times = features_of(outlines_of(each.configs), each.sought, sms)
        shape = shapes.setdefault(each.sought.sizes, len(shapes))
        count = len(each.us)
        near = (each.us.min() / each.us) ** NEAR
        parts.append((features, np.log(each.us / times), near, [number] * count, [shape] * count))
    return Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def fitted(rows: Rows, places: Any) -> HistGradientBoostingRegressor:
    found = HistGradientBoostingRegressor(random_state=0, **FORM)
    return found.fit(rows.features[places], rows.missed[places], sample_weight=rows.weights[places])


def judge(measured: list[Measured], rows: Rows) -> None:
    """Choose as the library does, among the model's first, with trees that have not seen the shape."""
    told = np.zeros(len(rows.missed))
    for known, left_out in GroupKFold(6).split(rows.features, groups=rows.shape):
        told[left_out] = believed(fitted(rows, known).predict(rows.features[left_out]))
    lost: dict[str, list[float]] = {"the model": [], "with trees": []}
    for number, each in enumerate(measured):
        if len(each.us) >= ENOUGH:
            own = rows.problem == number
            by_model = each.us / np.exp(rows.missed[own])
            by_trees = np.where(by_model.argsort().argsort() < LOOKED_AT, by_model * np.exp(told[own]), np.inf)
            for name, expected in zip(lost, (by_model, by_trees), strict=True):
                lost[name].append(cost_of(each, expected))
    for name, costs in ((name, np.array(each)) for name, each in lost.items()):
        shares = "  ".join(f"more than {limit:.0%}: {(costs > limit).mean():.1%}" for limit in (0.05, 0.1, 0.15))
        print(
            f"{name:12s} {len(costs)} problems, a choice costs {costs.mean():.2%}; {shares}; at most {costs.max():.0%}"
        )


def _rounded(limit: float) -> float:
    """Round a threshold to fewer digits, never down: thresholds are values that occur."""
    return next(found for digits in range(7, 18) if (found := float(f"{limit:.{digits}g}")) >= limit)


def nodes_of(tree: Any) -> list[list[float]]:
    """Flatten a tree: features, thresholds and children; a leaf has feature -1 and a value."""
    nodes = tree.nodes
    is_leaf = nodes["is_leaf"] > 0
    limits = [
        float(f"{value:.4g}") if ends else _rounded(limit)
        for ends, value, limit in zip(is_leaf, nodes["value"], nodes["num_threshold"], strict=True)
    ]
    asked = np.where(is_leaf, -1, nodes["feature_idx"].astype(int)).tolist()
    return [asked, limits, *(np.where(is_leaf, 0, nodes[side].astype(int)).tolist() for side in ("left", "right"))]


def text_of(found: HistGradientBoostingRegressor, document: dict[str, Any]) -> str:
    """Write JSON with one line per tree."""
    about = {name: document["machine"].get(name) for name in ("gpu", "sms", "driver", "cuda", "torch")}
    about["when"] = document["when"]
    trees = [each[0] for each in found._predictors]
    lines = ",\n".join(json.dumps(nodes_of(tree), separators=(",", ":")) for tree in trees)
    head = {
        "measured_on": about,
        "features": [*FEATURES],
        "start": round(float(found._baseline_prediction.item()), 5),
        "depth": max(int(tree.get_max_depth()) for tree in trees),
    }
    told = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items())
    return f'{{\n{told},\n"trees": [\n{lines}\n]\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", action="store_true", help="fit to some shapes, and choose for the others")
    asked = parser.parse_args()
    measured, sms = load([MEASURED])
    single = [each for each in measured if is_single(each.sought)]
    rows = rows_of(single, sms)
    if asked.judge:
        judge(single, rows)
        return 0
    TREES.parent.mkdir(exist_ok=True)
    TREES.write_text(text_of(fitted(rows, slice(None)), json.loads(MEASURED.read_text("utf-8"))), "utf-8")
    print(f"{TREES.relative_to(ROOT)}: {TREES.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
