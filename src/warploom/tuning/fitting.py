"""Fitting of the cost model's constants to measurements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.heuristics import Device, ProblemKey, key_of
from warploom.heuristics.sm90.candidates import build
from warploom.heuristics.sm90.cost_model import CandidateArrays, Model, Models, Numbers, Work, model_name, work_of
from warploom.heuristics.sm90.dependent_launches import SAVED_US
from warploom.heuristics.sm90.device_data import fields_of_json
from warploom.structured.config.sm90 import HopperConfig
from warploom.tuning.measurements import fitted_times

_SHARPNESS = 40.0
"""Preference for a configuration that is expected to be faster: one of 5 % by a factor of 8."""
_ACCURACY, _BAD = 0.4, 4.0
"""Weight of a wrong time relative to a wrong choice, and of a bad choice relative to many small losses."""
_NEAR = 4.0
"""The time of a fast configuration weighs more than that of a slow one: by this power of their times."""
_SHARES = ("one_consumer", "lone_pingpong")
"""Constants that are parts of a rate, at most 1."""
_FIRST_STEP, _LAST_STEP = 1.0, 0.002
"""Of logarithms: a bound that no time comes close to shows an effect only after a large step."""
_JUMP = 0.25


@dataclass(frozen=True)
class Measured:
    """The times of some configurations for one problem, in µs."""

    problem: ProblemKey
    configs: tuple[HopperConfig, ...]
    us: Numbers
    how: str = ""
    """`alone` if each configuration ran alone, as it does for a user, `cool` if it did so at the free clock; otherwise
    they alternated and shared one power budget."""


@dataclass(frozen=True)
class Fit:
    """Fitted constants, and the regret of choices by them: mean and largest, before and after."""

    model: Model
    problems: int
    before: tuple[float, float]
    after: tuple[float, float]


def fit(measured: Sequence[Measured], *, start: Model, sms: int, rounds: int = 4, seed: int = 0) -> Fit:
    """Return the constants whose choices cost least.

    The objective is the regret of the chosen configuration, averaged over problems: the logarithm of its measured time
    relative to the fastest measured one, plus a part of its square, since no single choice should be bad. As the choice
    changes in jumps, each configuration counts with a weight that falls with its expected time. The distance of
    expected from measured times (the mean of the logarithms' differences) is added with a smaller weight; it determines
    constants that no choice depends on. Constants are varied by their logarithms; one that is zero remains zero.
    """
    rows = _rows(measured, sms)
    names = tuple(name for name, value in asdict(start).items() if value)

    def model_of(logarithms: Numbers) -> Model:
        values = dict(zip(names, np.exp(logarithms).tolist(), strict=True))
        return replace(start, **values | {name: min(values[name], 1.0) for name in _SHARES if name in values})

    def cost(logarithms: Numbers) -> float:
        return _cost(model_of(logarithms), rows)

    generator = np.random.default_rng(seed)
    best = _minimise(cost, np.log([getattr(start, name) for name in names]))
    for _ in range(rounds):  # constants that are far off together are not found one by one
        other = _minimise(cost, best + generator.normal(0, _JUMP, len(best)))
        best = min(best, other, key=cost)
    model = rounded(model_of(best))
    return Fit(model, len(measured), regret(start, measured, sms), regret(model, measured, sms))


def fit_models(measured: Sequence[Measured], models: Models, *, sms: int) -> Iterator[tuple[str, Fit]]:
    """Yield the fitted constants of each class of problems that was measured, starting from given constants."""
    for name, start in models.items():
        found = [each for each in measured if model_name(each.problem) == name]
        if found:
            yield name, fit(found, start=start, sms=sms)


def rounded(model: Model) -> Model:
    """Return constants with three digits, as data files hold them."""
    return Model(**{name: float(f"{value:.3g}") for name, value in asdict(model).items()})


def regret(model: Model, measured: Sequence[Measured], sms: int) -> tuple[float, float]:
    """Return how much slower the chosen configuration is than the fastest: on average, and at most."""
    choices = [each for each in measured if len(each.us) > 1]
    works = [work_of(CandidateArrays.of_configs(each.configs), each.problem, sms) for each in choices]
    lost = [regret_of(each, model.times(work)) for each, work in zip(choices, works, strict=True)]
    return (float(np.mean(lost)), max(lost)) if lost else (0.0, 0.0)


def regret_of(each: Measured, expected: Numbers) -> float:
    """Return how much slower the configuration with the least expected time is than the fastest measured one."""
    return float(each.us[int(np.argmin(expected))] / each.us.min()) - 1


@dataclass(frozen=True)
class _Rows:
    """All measurements as one table, with the number of each one's problem."""

    work: Work
    us: Numbers
    problem: np.ndarray[Any, np.dtype[np.intp]]
    lost: Numbers
    """The logarithm of each time relative to its problem's fastest."""


def _rows(measured: Sequence[Measured], sms: int) -> _Rows:
    works = [work_of(CandidateArrays.of_configs(each.configs), each.problem, sms) for each in measured]
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
    error = float((near * np.abs(np.log(expected / rows.us))).sum() / near.sum())
    return float(regrets.mean() + _BAD * (regrets**2).mean()) + _ACCURACY * error


def _minimise(cost: Callable[[Numbers], float], start: Numbers) -> Numbers:
    """Return a local minimum by the method of Hooke and Jeeves: steps along the axes, then a step along their sum.

    It needs no gradient, which does not exist where another part of a configuration's time becomes the longest.
    """
    point, best = start.copy(), cost(start)
    steps = np.full(len(start), _FIRST_STEP)
    while steps.max() > _LAST_STEP:
        before = point.copy()
        for axis in range(len(point)):
            for sign in (1, -1):
                moved = point.copy()
                moved[axis] += sign * steps[axis]
                found = cost(moved)
                if found < best:
                    point, best = moved, found
                    break
            else:
                steps[axis] /= 2
        while (found := cost(further := 2 * point - before)) < best:
            before, point, best = point, further, found
    return point


def load(paths: Sequence[Path]) -> tuple[list[Measured], Device]:
    """Return the measurements in files that `warploom tune … --out FILE` wrote, and the GPU that they are of."""
    documents = [read_document(path) for path in paths]
    devices = {device_of(document) for document in documents}
    if len(devices) != 1:
        names = " and ".join(sorted(f"{each.name} ({each.sms} SMs)" for each in devices))
        raise Diag.BAD_MEASUREMENTS.error(file=str(paths[0]), what=f"the files are of different GPUs: {names}")
    return [each for document in documents for each in measured_in(document)], devices.pop()


def read_document(path: Path) -> dict[str, Any]:
    """Return the contents of a measurements file, or raise `BAD_MEASUREMENTS`."""
    try:
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        list(measured_in(document))
        device_of(document)
    except OSError as error:
        raise Diag.UNREADABLE_FILE.error(file=path, what=f"cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise Diag.BAD_MEASUREMENTS.error(file=str(path), what=f"{type(error).__name__}: {error}") from None
    return document


def device_of(document: Mapping[str, Any]) -> Device:
    """Return the GPU that a document's measurements are of."""
    return Device(str(document["machine"]["gpu"]), int(document["machine"]["sms"]))


def measured_in(document: Mapping[str, Any]) -> Iterator[Measured]:
    """Yield the measurements of a document, without configurations that are no longer valid."""
    for row in document["rows"]:
        m, n, k = row["shape"]
        marks = {name: row.get(name, False) for name in ("fused", "residual")}
        fields = {name: row[name] for name in ("a_type", "a_major", "b_major") if name in row}
        problem = replace(key_of(row["kind"], m, n, k, row.get("count", 1), **fields), **marks)
        times = fitted_times(row).items()
        found = [(build(fields_of_json(document["configs"][name]), problem), us) for name, us in times]
        saved = SAVED_US if row.get("dependent") else 0.0  # model and trees are of launches that do not overlap
        pairs = [(config, us + saved * config.dependent) for config, us in found if config is not None]
        if pairs:
            configs, us = zip(*pairs, strict=True)
            how = "cool" if "cool_us" in row else row.get("how", "")
            yield Measured(problem, configs, np.array(us, np.float64), how)
