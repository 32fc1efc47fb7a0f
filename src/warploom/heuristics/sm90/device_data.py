"""Fitted data of one GPU: its measured table, the constants of the cost model and the decision trees, from one file.

A file `heuristics/data/<device>.json` is written by `warploom tune … --data FILE`; it names the device and what it was
measured with. A GPU whose name and number of SMs match uses all of it. Any other Hopper GPU uses the constants of the
cost model only, with its own number of SMs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from warploom.heuristics.device import Device
from warploom.heuristics.problem_key import ProblemKey
from warploom.heuristics.sm90.candidates import Fields
from warploom.heuristics.sm90.cost_model import Model, Models
from warploom.heuristics.sm90.trees import Trees, read_trees
from warploom.structured.config.deprecation import with_current_names
from warploom.structured.config.sm90 import HopperConfig

TableKey = tuple[str, int, int, int, int, str, str, str, bool, bool, bool]
"""Kind, m, n, k, count, A's type, the majors of A and B, `fused`, `residual` and `gated`; a gated problem has the
columns of gate and up together."""
POWER_BOUND_FLOPS = 2e10
"""Floating-point operations of a 16-bit GEMM from which an H200 runs at its power limit whatever its shape is: kernels
that were timed in turns have then lent each other clock (bench/results/alone.json has clocks and watts)."""
_POWER_BOUND_ROWS, _LEAST_POWER_BOUND = 128, 4e9
"""Rows and floating-point operations from which some shapes do."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The fastest measured configuration of a problem; `peer_us` is None if no other library was measured."""

    config: Fields
    us: float
    peer_us: float | None


@dataclass(frozen=True)
class DeviceData:
    """The contents of one data file."""

    device: Device
    provenance: Mapping[str, Any]
    """When and with what it was measured."""
    models: Models
    table: Mapping[TableKey, TableEntry]
    tree_document: Mapping[str, Any] | None
    power_bound_document: Mapping[str, Any] | None = None

    @cached_property
    def trees(self) -> Trees | None:
        return None if self.tree_document is None else read_trees(self.tree_document, self.device.sms)

    @cached_property
    def power_bound_trees(self) -> Trees | None:
        """The trees for problems that may reach the power limit: fitted to times at the free clock, too."""
        document = self.power_bound_document
        return self.trees if document is None else read_trees(document, self.device.sms)

    def trees_for(self, problem: ProblemKey) -> Trees | None:
        """Return the trees for a problem.

        A kernel at the power limit is bound by the tensor cores, and at the free clock, which the L2 does not follow,
        often by the L2: choices that are fast in one may be slow in the other.
        """
        is_bound = problem.m >= _POWER_BOUND_ROWS and problem.flops >= _LEAST_POWER_BOUND
        return self.power_bound_trees if is_bound else self.trees

    def is_measured_on(self, device: Device) -> bool:
        """Return True if the table and the trees hold for a device: name and number of SMs must be equal."""
        return (self.device.name, self.device.sms) == (device.name, device.sms)

    def find(self, problem: ProblemKey) -> Fields | None:
        """Return the configuration fields of a measured problem.

        The entry of the plain GEMM serves a problem with an epilogue that was not measured itself.
        """
        keys = (_key_of(problem, *_marks_of(problem)), _key_of(problem, False, False, False))
        return next((self.table[key].config for key in keys if key in self.table), None)

    def has(self, problem: ProblemKey) -> bool:
        """Return True if the problem was measured with its own kind of epilogue."""
        return _key_of(problem, *_marks_of(problem)) in self.table

    def describe(self, device: Device) -> str:
        """Say what of the data a device uses."""
        if not self.is_measured_on(device):
            return f"cost model with {device.sms} SMs, extrapolated from {self.device.name}"
        trees = "" if self.tree_document is None else ", decision trees"
        when = str(self.provenance.get("when", ""))[:10]
        return f"measured on {self.device.name} ({when}): table of {len(self.table)} problems, cost model{trees}"


def _marks_of(problem: ProblemKey) -> tuple[bool, bool, bool]:
    return problem.fused, problem.residual, problem.gated


def _key_of(problem: ProblemKey, fused: bool, residual: bool, gated: bool) -> TableKey:
    return (problem.kind, *problem.sizes, problem.a_type, *problem.majors, fused, residual, gated)


def read_data(document: Mapping[str, Any]) -> DeviceData:
    """Return the data of a JSON document."""
    table = {}
    for row in document["table"]:
        marks = (row.get("fused", False), row.get("residual", False), row.get("gated", False))
        majors = (row.get("a_major", "k"), row.get("b_major", "k"))
        key = (row["kind"], *row["sizes"], row.get("count", 1), row["a_type"], *majors, *marks)
        table[key] = TableEntry(fields_of_json(row["config"]), row["us"], row.get("peer_us"))
    models = {name: Model(**constants) for name, constants in document["models"].items()}
    trees = (document.get("trees"), document.get("power_bound_trees"))
    return DeviceData(Device(**document["device"]), document["measured"], models, table, *trees)


@cache
def shipped() -> tuple[DeviceData, ...]:
    """Return the data of all files in the package; they are read at the first choice."""
    folder = files("warploom.heuristics") / "data"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return tuple(read_data(json.loads(file.read_text("utf-8"))) for file in found)


@cache
def data_for(device: Device) -> DeviceData:
    """Return the data that were measured on a device, or else those to extrapolate from."""
    measured = (data for data in shipped() if data.is_measured_on(device))
    alike = (data for data in shipped() if data.device.target == device.target)
    return next(measured, None) or next(alike)


def fields_of_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return configuration fields with tuples for JSON's lists, and current names: files of 0.1 have other ones."""
    current = with_current_names(fields, HopperConfig.renamed, warning_level=None)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in current.items()}
