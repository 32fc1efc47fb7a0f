"""`tune`: the fastest candidate for given arguments, of an operation of the library or of your own kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

from warploom.diagnostics import Diag
from warploom.heuristics import Device as RankedFor
from warploom.heuristics import ProblemKey, choose, rank
from warploom.heuristics.sm90.candidates import row_of
from warploom.host.arrays import buffer_of
from warploom.host.launch import Launch
from warploom.ops.operation import Operation, replan
from warploom.ops.planning.arrays import leaves
from warploom.ops.planning.planner import completed, tuned
from warploom.ops.planning.prepare import bound
from warploom.runtime.cache.winners import recall, remember
from warploom.runtime.gpu.driver import Device, device_of
from warploom.runtime.gpu.hangs import default_timeout
from warploom.structured.config.sm90 import HopperConfig
from warploom.tuning.contest import Contestant, OnProgress, compete, silent, winner
from warploom.tuning.report import Report, Row
from warploom.tuning.rig import GpuRig, Made, Region, gpu_arrays, regions_of

_Own = tuple[Any, Launch | Callable[[], Any]]
"""A configuration of your own kernel, and its launch or a function that makes it."""
MOST = 16
"""Candidates of an operation that are measured by default: those that rank first."""


def tune(
    what: Operation | Callable[[Any], Launch] | Mapping[Any, Launch],
    /,
    *,
    candidates: Iterable[Any] | None = None,
    most: int | None = MOST,
    out: Any = None,
    key: Any = None,
    again: bool = False,
    on_progress: OnProgress = silent,
    **arguments: Any,
) -> Report:
    """Measure candidates on the GPU of the arrays, and remember the fastest one whose result is right.

    An operation takes its arguments: `tune(matmul, a=a, b=b, bias=bias, out=d)`. Its candidates are the library's, as
    many as `most` of them (None for all), or those given; later calls with such sizes, types and strides use the
    winner, also in other processes.

    Your own kernel is a function of a configuration that returns its launch, with `candidates`, or a mapping of
    configurations to launches: `tune(lambda config: scan.bind(x, y, config=config, …), candidates=[…], out=y)`. The
    first candidate is the default: results of the others are compared with its own. `out` names the arrays that a
    launch writes completely; without it all its arrays are compared. With a `key` the winner is remembered, and a later
    `tune` with that key returns it without measuring, unless `again`.
    """
    if default_timeout():
        raise Diag.NOTHING_TO_TUNE.error(what="WARPLOOM_TIMEOUT is set, and bounded waits would be what is measured")
    if not (hasattr(what, "plan") or isinstance(cast("object", what), Mapping) or callable(cast("object", what))):
        named = f"{what!r:.60} is neither an operation, nor a function of a configuration, nor a mapping of launches"
        raise Diag.NOTHING_TO_TUNE.error(what=named)
    given = None if candidates is None else list(candidates)
    if hasattr(what, "plan"):
        return _of_operation(cast("Operation", what), {**arguments, "out": out}, given, most, on_progress)
    launches: list[_Own]
    launches = (
        list(what.items()) if isinstance(what, Mapping) else [(each, partial(what, each)) for each in given or ()]
    )
    wrong = [f"`{name}`: a launch has its arguments already" for name in arguments]
    wrong += ["there are no candidates"] if not launches else []
    if wrong:
        raise Diag.NOTHING_TO_TUNE.error(what="; ".join(wrong))
    results = () if out is None else tuple(out) if isinstance(out, list | tuple) else (out,)
    return _of_launches(launches, results, key, again, on_progress)


def _of_operation(
    operation: Operation,
    arguments: Mapping[str, Any],
    given: Sequence[Any] | None,
    most: int | None,
    on_progress: OnProgress,
) -> Report:
    problem = _Problem.of(operation, arguments, given)
    configs = problem.configs(given, most)
    contestants = [Contestant(each, problem.label(each), partial(problem.made, each)) for each in configs]
    with GpuRig(problem.device, problem.regions) as rig:
        rows = compete(contestants, rig, flops=problem.flops, on_progress=on_progress)
    best = winner(rows, configs[0])
    kept = problem.remembered(best)
    return Report(str(problem), problem.device.gpu.name, rows, configs[0], best, kept, problem.key)


@dataclass(frozen=True)
class _Problem:
    """An operation with its arguments, on their GPU."""

    operation: Operation
    arguments: Mapping[str, Any]
    device: Device
    regions: tuple[Region, ...]
    key: ProblemKey | None
    """The problem that is tuned; None on GPUs for which only the caller has candidates."""

    @staticmethod
    def of(operation: Operation, arguments: Mapping[str, Any], given: Sequence[Any] | None) -> _Problem:
        """Examine the arguments; everything that is wrong with them is one error."""
        given_arrays = dict(leaves(arguments))
        wrong = [f"`{name}` is chosen by tuning" for name in ("config", "target") if arguments.get(name) is not None]
        if "out" not in given_arrays:
            wrong.append("`out` is missing: what is measured writes into an array")
        buffers = {name: buffer_of(array) for name, array in given_arrays.items()}
        wrong += [f"`{name}` is on {each.device}" for name, each in buffers.items() if not each.is_on_gpu]
        if len({each.device for each in buffers.values()}) > 1:
            wrong.append("the arrays are not all on one GPU")
        if wrong:
            raise Diag.NOTHING_TO_TUNE.error(what="; ".join(wrong))
        device = device_of(buffers["out"].device, buffers["out"].address)
        made = bound(operation, arguments, device)
        if made.copied:
            copied = ", ".join(f"`{name}`" for name in made.copied)
            what = f"the kernel gets a copy of {copied}, or does not read it: make it contiguous, or leave it out"
            raise Diag.NOTHING_TO_TUNE.error(what=what)
        if made.key is None and not given:
            raise Diag.NOTHING_TO_TUNE.error(what=f"there are no candidates for {device.target}; pass `candidates`")
        regions = tuple(
            Region(each.address, max(each.span, 1), each.dtype, name == "out") for name, each in buffers.items()
        )
        return _Problem(operation, arguments, device, regions, made.key)

    def __str__(self) -> str:
        return self.operation.__name__ if self.key is None else str(self.key)

    @property
    def flops(self) -> float | None:
        return None if self.key is None else self.key.flops

    def configs(self, given: Sequence[Any] | None, most: int | None) -> list[Any]:
        """Return the default, the winner of an earlier tuning, and the candidates."""
        if self.key is None:
            return list(given or ())
        gpu = self.device.gpu
        on = RankedFor.of(gpu)
        default, before = choose(self.key, on), tuned(self.key, gpu)
        known = [default] if before is None else [default, before]
        if given is not None:
            return list(dict.fromkeys((*known, *(completed(each, dict(self.key.fields)) for each in given))))
        return list(dict.fromkeys((*known, *islice(rank(self.key, on), most))))

    def made(self, config: Any) -> Made:
        """Return the launch with a configuration."""
        made = bound(self.operation, {**self.arguments, "config": config}, self.device)
        return Made(made.launch, tuple(made.arrays.values()), tuple(range(len(self.regions))))

    def label(self, config: Any) -> str:
        if self.key is None or not isinstance(config, HopperConfig):
            return label_of(config)
        return label_of(row_of(config, self.key))

    def remembered(self, config: Any) -> bool:
        """Store the winner for later calls, including those of this process."""
        if self.key is None:
            return False
        kept = remember(self.device.gpu.name, str(self.key), row_of(config, self.key))
        replan()
        return kept


def _of_launches(
    launches: Sequence[_Own],
    results: Sequence[Any],
    key: Any,
    again: bool,
    on_progress: OnProgress,
) -> Report:
    configs = [config for config, _ in launches]
    first = _launch(launches[0][1])
    device = _device_of(first)
    problem = f"own {key!r}" if key is not None else "your own kernel"
    kept = recall(device.gpu.name, problem) if key is not None and not again else None
    before = [each for each in configs if kept is not None and repr(each) == kept.get("config")]
    if before:
        return Report(problem, device.gpu.name, (), configs[0], before[0], is_remembered=True)
    rows = _measured(launches, first, results, device, on_progress)
    best = winner(rows, configs[0])
    is_kept = key is not None and remember(device.gpu.name, problem, {"config": repr(best)})
    return Report(problem, device.gpu.name, rows, configs[0], best, is_kept)


def _measured(
    launches: Sequence[_Own],
    first: Launch,
    results: Sequence[Any],
    device: Device,
    on_progress: OnProgress,
) -> tuple[Row, ...]:
    """Return the rows of your own launches. Memory that a candidate allocates itself is not rotated."""
    regions = regions_of([first], results)

    def made(make: Launch | Callable[[], Any]) -> Made:
        launch = first if make is launches[0][1] else _launch(make)
        starts = [buffer_of(array).address for array in gpu_arrays(launch)]
        used = [
            number
            for number, region in enumerate(regions)
            if any(region.address <= start < region.address + region.size for start in starts)
        ]
        return Made(launch, tuple(regions[number] for number in used), tuple(used))

    contestants = [Contestant(each, label_of(each), partial(made, make)) for each, make in launches]
    with GpuRig(device, regions) as rig:
        return compete(contestants, rig, on_progress=on_progress)


def _launch(make: Launch | Callable[[], Any]) -> Launch:
    made = make if isinstance(make, Launch) else make()
    if not isinstance(made, Launch):
        raise Diag.NOTHING_TO_TUNE.error(what=f"a candidate is a {type(made).__name__}, not a launch: bind the kernel")
    return made


def _device_of(launch: Launch) -> Device:
    buffers = [buffer_of(array) for array in gpu_arrays(launch)]
    if not buffers or not all(each.is_on_gpu for each in buffers):
        raise Diag.NOTHING_TO_TUNE.error(what="the arrays of the launch are not on a GPU")
    return device_of(buffers[0].device, buffers[0].address)


def label_of(config: Any) -> str:
    """Return a configuration in a few words: the fields that were given."""
    if is_dataclass(config) and not isinstance(config, type):
        config = {
            each.name: getattr(config, each.name)
            for each in fields(config)
            if each.compare and getattr(config, each.name) != each.default
        }
    if not isinstance(config, Mapping):
        return str(config)
    parts = (name if value is True else f"{name}={_compact(value)}" for name, value in config.items())
    return " ".join(parts) or "default"


def _compact(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
