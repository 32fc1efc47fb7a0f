"""Fitting of decision trees to the errors of the cost model, by scikit-learn; no GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from warploom.heuristics.sm90.cost_model import CandidateArrays, Model, Numbers, is_dense_16bit
from warploom.heuristics.sm90.device_data import POWER_BOUND_FLOPS
from warploom.heuristics.sm90.ranking import RERANKED
from warploom.heuristics.sm90.trees import FEATURES, features_of, limited
from warploom.tuning.fitting import Measured, regret_of

_NEAR = 4
"""A fast configuration weighs more than a slow one: by this power of their times."""
_WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "trees": {"cool": 30.0, "alone": 30.0, "": 1.0},
    "power_bound_trees": {"cool": 60.0, "alone": 30.0, "": 1.0},
}
"""By the name of the trees, the weights of configurations by how they were timed; others are left out."""
_SHARED_POWER = 0.3
"""Weight of those that shared the power limit with others: alternating configurations lend each other clock, so that
the one that needs more energy looks faster than it is."""
_ENOUGH = 20
"""Measured configurations of a problem from which its regret says something about a choice."""
_FOLDS = 6
_PARAMETERS: Mapping[str, Any] = {
    "max_iter": 240,
    "learning_rate": 0.1,
    "max_leaf_nodes": 32,
    "max_depth": 8,
    "min_samples_leaf": 20,
    "l2_regularization": 5.0,
    "early_stopping": False,
}


@dataclass(frozen=True)
class _Rows:
    """All measurements as one table."""

    features: Numbers
    times: Numbers
    """By the model."""
    errors: Numbers
    """The logarithm of measured by modelled time, relative to the mean of its problem: what all configurations of a
    problem share, such as the clock of the day, decides no choice."""
    weights: Numbers
    problem: Numbers
    shape: Numbers
    """A number for each shape, which may have been measured more than once."""


@dataclass(frozen=True)
class Regrets:
    """The regret of choices for problems with many measured configurations, by the model alone and with trees."""

    model: Numbers
    trees: Numbers


def import_problem() -> str:
    """Return why scikit-learn cannot be imported, or an empty string if it can."""
    try:
        import_module("sklearn.ensemble")
    except ImportError as error:
        return str(error)
    return ""


def fit_trees(measured: Sequence[Measured], model: Model, sms: int) -> dict[str, dict[str, Any]]:
    """Return the trees fitted to the model's errors on dense 16-bit GEMMs, by name, as a data file holds them.

    Those for problems that may reach the power limit are fitted where there are times at the free clock.
    """
    is_cool = any(each.how == "cool" for each in measured)
    return {name: _fit(measured, name, model, sms) for name in _WEIGHTS if is_cool or name == "trees"}


def _fit(measured: Sequence[Measured], name: str, model: Model, sms: int) -> dict[str, Any]:
    rows = _rows_of(_fitted_to(measured, name), model, sms, _WEIGHTS[name])
    found = _fitted(rows, slice(None))
    trees = [each[0] for each in found._predictors]  # noqa: SLF001  there is no public access to the nodes
    return {
        "features": [*FEATURES],
        "start": round(float(found._baseline_prediction.item()), 5),  # noqa: SLF001
        "depth": max(int(tree.get_max_depth()) for tree in trees),
        "trees": [_nodes_of(tree) for tree in trees],
    }


def cross_validate(measured: Sequence[Measured], model: Model, sms: int) -> Regrets:
    """Return the regret of choices by trees that were fitted without the shape in question."""
    single = _fitted_to(measured, "trees")
    rows = _rows_of(single, model, sms, _WEIGHTS["trees"])
    predicted = np.zeros(len(rows.errors))
    folds: Any = import_module("sklearn.model_selection").GroupKFold(_FOLDS)
    for known, left_out in folds.split(rows.features, groups=rows.shape):
        predicted[left_out] = limited(_fitted(rows, known).predict(rows.features[left_out]))
    by_model, by_trees = [], []
    for number, each in enumerate(single):
        if len(each.us) >= _ENOUGH:
            own = rows.problem == number
            times = rows.times[own]
            is_first = times.argsort().argsort() < RERANKED
            by_model.append(regret_of(each, times))
            by_trees.append(regret_of(each, np.where(is_first, times * np.exp(predicted[own]), np.inf)))
    return Regrets(np.array(by_model), np.array(by_trees))


def _fitted_to(measured: Sequence[Measured], name: str) -> list[Measured]:
    """Return the measurements of dense 16-bit GEMMs that trees are fitted to.

    Of a problem that was timed at the free clock, those alone are left out, where the former are not.
    """
    known = [each for each in measured if is_dense_16bit(each.problem) and each.how in _WEIGHTS[name]]
    cool = {each.problem for each in known if each.how == "cool"}
    return [each for each in known if not (each.how == "alone" and each.problem in cool)]


def _rows_of(measured: Sequence[Measured], model: Model, sms: int, weights: Mapping[str, float]) -> _Rows:
    parts: list[tuple[Any, ...]] = []
    shapes: dict[tuple[int, ...], int] = {}
    for number, each in enumerate(measured):
        features, times = features_of(CandidateArrays.of_configs(each.configs), each.problem, model, sms)
        shape = shapes.setdefault(each.problem.sizes, len(shapes))
        count = len(each.us)
        near = (each.us.min() / each.us) ** _NEAR
        errors = np.log(each.us / times)
        errors = errors - np.average(errors, weights=near)
        weight = near * _weight_of(each, weights)
        parts.append((features, times, errors, weight, [number] * count, [shape] * count))
    return _Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _weight_of(each: Measured, weights: Mapping[str, float]) -> float:
    return _SHARED_POWER if not each.how and each.problem.flops > POWER_BOUND_FLOPS else weights[each.how]


def _fitted(rows: _Rows, places: Any) -> Any:
    regressor: Any = import_module("sklearn.ensemble").HistGradientBoostingRegressor
    found = regressor(random_state=0, **_PARAMETERS)
    return found.fit(rows.features[places], rows.errors[places], sample_weight=rows.weights[places])


def _nodes_of(tree: Any) -> list[list[float]]:
    """Return features, thresholds and both children of the nodes; a leaf has feature -1 and its value."""
    nodes = tree.nodes
    is_leaf = nodes["is_leaf"] > 0
    thresholds = [
        float(f"{value:.4g}") if ends else _rounded_up(threshold)
        for ends, value, threshold in zip(is_leaf, nodes["value"], nodes["num_threshold"], strict=True)
    ]
    features = np.where(is_leaf, -1, nodes["feature_idx"].astype(int)).tolist()
    children = (np.where(is_leaf, 0, nodes[side].astype(int)).tolist() for side in ("left", "right"))
    return [features, thresholds, *children]


def _rounded_up(threshold: float) -> float:
    """Return a threshold with fewer digits, never below it: thresholds are values that occur."""
    return next(found for digits in range(7, 18) if (found := float(f"{threshold:.{digits}g}")) >= threshold)
