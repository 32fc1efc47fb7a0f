"""The model's constants, fitted to measurements: `warploom tune --fit FILE`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.heuristics.problem_key import Sought, sought
from warploom.heuristics.sm90.candidates import made
from warploom.heuristics.sm90.cost_model import MODEL, OTHERS, Model, Numbers, Work, is_single, outlines_of, work_of
from warploom.heuristics.table import hashable
from warploom.structured.config.sm90 import HopperConfig

_SHARPNESS = 40.0
"""How strongly a configuration that is expected to be faster is preferred: one of 5 % by a factor of 8."""
_ACCURACY, _BAD = 0.4, 4.0
"""What a wrong time counts beside a wrong choice, and how much more a bad choice counts than many small losses."""
_NEAR = 4.0
"""How much more the time of a fast configuration counts than that of a slow one: by this power of their times."""
_SHARES = ("one_consumer", "lonely")
"""Constants that are parts of a rate."""
_FIRST_STEP, _LAST_STEP = 1.0, 0.002
"""Of logarithms: a bound that no time comes near is felt only from far away."""
_JUMP = 0.25


@dataclass(frozen=True)
class Measured:
    """The times of some configurations for one problem, in µs."""

    sought: Sought
    configs: tuple[HopperConfig, ...]
    us: Numbers


@dataclass(frozen=True)
class Fit:
    """Constants, and what a choice by them costs: the mean and the largest regret before and after."""

    model: Model
    problems: int
    before: tuple[float, float]
    after: tuple[float, float]


def fit(measured: Sequence[Measured], *, start: Model = MODEL, sms: int, rounds: int = 4, seed: int = 0) -> Fit:
    """The constants by which choices cost least.

    What is minimised is the regret of the chosen configuration, averaged over problems: the logarithm of its measured
    time by that of the fastest one measured, and some of its square, since no choice is to be bad. As the chosen one
    changes in jumps, each configuration counts with a weight that falls with its expected time. To this comes, less
    heavy, how far expected times are from measured ones (the mean of the logarithms' distances), which tells constants
    apart that no choice depends on.
    """
    rows = _rows(measured, sms)
    names = tuple(asdict(start))

    def cost(logarithms: Numbers) -> float:
        return _cost(_model(names, logarithms), rows)

    generator = np.random.default_rng(seed)
    best = _searched(cost, np.log([getattr(start, name) for name in names]))
    for _ in range(rounds):  # constants that are far off together are not found one by one
        other = _searched(cost, best + generator.normal(0, _JUMP, len(best)))
        best = min(best, other, key=cost)
    model = _model(names, best)
    return Fit(model, len(measured), regret(start, measured, sms), regret(model, measured, sms))


def fit_kinds(measured: Sequence[Measured], *, sms: int) -> Iterator[tuple[str, Fit]]:
    """The constants of single 16-bit products by themselves, and those of the others, as far as there are any."""
    single = [each for each in measured if is_single(each.sought)]
    others = [each for each in measured if not is_single(each.sought)]
    for name, start, found in (("single 16-bit products", MODEL, single), ("other products", OTHERS, others)):
        if found:
            yield name, fit(found, start=start, sms=sms)


def regret(model: Model, measured: Sequence[Measured], sms: int) -> tuple[float, float]:
    """How much slower the chosen configuration is than the fastest, where there is a choice: on average, at most."""
    choices = [each for each in measured if len(each.us) > 1]
    lost = [cost_of(each, model.times(work_of(outlines_of(each.configs), each.sought, sms))) for each in choices]
    return (float(np.mean(lost)), max(lost)) if lost else (0.0, 0.0)


def cost_of(each: Measured, expected: Numbers) -> float:
    """How much slower the configuration is that is expected to be fastest than the one that was."""
    return float(each.us[int(np.argmin(expected))] / each.us.min()) - 1


@dataclass(frozen=True)
class _Rows:
    """All measurements as one table, with the number of each one's problem."""

    work: Work
    us: Numbers
    problem: np.ndarray[Any, np.dtype[np.intp]]
    lost: Numbers
    """The logarithm of each time by that of its problem's fastest."""


def _rows(measured: Sequence[Measured], sms: int) -> _Rows:
    works = [work_of(outlines_of(each.configs), each.sought, sms) for each in measured]
    counts = [len(each.us) for each in measured]
    lost = np.concatenate([np.log(each.us / each.us.min()) for each in measured])
    us = np.concatenate([each.us for each in measured])
    work = {name: np.concatenate([each[name] for each in works]) for name in works[0]}
    return _Rows(work, us, np.repeat(np.arange(len(measured)), counts), lost)


def _cost(model: Model, rows: _Rows) -> float:
    expected = model.times(rows.work)
    count = rows.problem[-1] + 1
    least = np.full(count, np.inf)
    np.minimum.at(least, rows.problem, expected)
    weights = (least[rows.problem] / expected) ** _SHARPNESS
    regrets = np.bincount(rows.problem, weights * rows.lost) / np.bincount(rows.problem, weights)
    near = np.exp(-_NEAR * rows.lost)
    missed = float((near * np.abs(np.log(expected / rows.us))).sum() / near.sum())
    return float(regrets.mean() + _BAD * (regrets**2).mean()) + _ACCURACY * missed


def _model(names: tuple[str, ...], logarithms: Numbers) -> Model:
    values = dict(zip(names, np.exp(logarithms).tolist(), strict=True))
    return Model(**values | {name: min(values[name], 1.0) for name in _SHARES})


def _searched(cost: Callable[[Numbers], float], start: Numbers) -> Numbers:
    """A minimum by the search of Hooke and Jeeves: steps along the axes, then one more along all that they came to.

    It needs no derivatives, which the cost does not have where another configuration becomes the slowest part.
    """
    point, best = start.copy(), cost(start)
    steps = np.full(len(start), _FIRST_STEP)
    while steps.max() > _LAST_STEP:
        before = point.copy()
        for axis in range(len(point)):
            for way in (1, -1):
                moved = point.copy()
                moved[axis] += way * steps[axis]
                found = cost(moved)
                if found < best:
                    point, best = moved, found
                    break
            else:
                steps[axis] /= 2
        while (found := cost(further := 2 * point - before)) < best:
            before, point, best = point, further, found
    return point


def load(paths: Sequence[Path]) -> tuple[list[Measured], int]:
    """The measurements of files that `warploom tune … --out FILE` wrote, and the multiprocessors they were made on."""
    documents = [_document(path) for path in paths]
    sms = {document["machine"]["sms"] for document in documents}
    if len(sms) != 1:
        raise Diag.BAD_MEASUREMENTS.error(file=str(paths[0]), what=f"GPUs of {sorted(sms)} multiprocessors are mixed")
    return [each for document in documents for each in _measured(document)], sms.pop()


def _document(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        list(_measured(document))
        int(document["machine"]["sms"])
    except OSError as error:
        raise Diag.UNREADABLE_FILE.error(file=path, what=f"cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise Diag.BAD_MEASUREMENTS.error(file=str(path), what=f"{type(error).__name__}: {error}") from None
    return document


def _measured(document: Mapping[str, Any]) -> Iterator[Measured]:
    for row in document["rows"]:
        m, n, k = row["shape"]
        marks = {name: row.get(name, False) for name in ("fused", "residual")}
        fields = {name: row[name] for name in ("a_type", "a_major", "b_major") if name in row}
        wanted = replace(sought(row["kind"], m, n, k, row.get("count", 1), **fields), **marks)
        found = [(made(hashable(document["configs"][name]), wanted), us) for name, us in row["us"].items()]
        pairs = [(config, us) for config, us in found if config is not None]
        if pairs:
            yield Measured(wanted, tuple(config for config, _ in pairs), np.array([us for _, us in pairs], np.float64))
