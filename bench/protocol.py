"""One side at a time: alone at the power limit, and cool at the free clock; medians of rounds in random order.

A side is a CUDA graph, or any function that enqueues work: a training step, say. SM clock, power and energy per call are
logged where the driver reports them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch
from measuring import IDLE, run_alone, run_cool
from tables import Row

SAMPLE_MS = 20
WARM = 1.1
"""Seconds of work before the first side of a round: 0.8 to 1.0 s after a load begins, the power limit takes the clock down
once more, and would do so for one of the sides only."""


class Sensors:
    """SM clock (MHz) and power (W) of the GPU, sampled by nvidia-smi in the background."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float, float]] = []
        query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits"]
        try:
            self._process = subprocess.Popen([*query, "-i", "0", "-lms", str(SAMPLE_MS)], stdout=-1, text=True)
        except OSError:
            return
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                clock, power = (float(each) for each in line.split(","))
            except ValueError:
                continue
            self.samples.append((time.monotonic(), clock, power))

    def between(self, start: float, end: float) -> tuple[float, float] | None:
        """Return the mean clock and power of a stretch of time, or None without samples."""
        found = [(clock, power) for at, clock, power in list(self.samples) if start <= at <= end]
        if not found:
            return None
        return statistics.fmean(each[0] for each in found), statistics.fmean(each[1] for each in found)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Durations and repetitions of each side."""

    settle: float = 0.5
    """Seconds before timing, in which the clock settles."""
    time: float = 0.5
    repeats: int = 3
    bursts: int = 3
    """Cool bursts of a side per round."""
    is_limited: bool = True
    """False for work that stays below the power limit: the clock does not change then, and nothing is warmed up."""

    @staticmethod
    def of(asked: argparse.Namespace) -> Protocol:
        return Protocol(settle=asked.settle, time=asked.time, repeats=asked.repeats, bursts=asked.bursts)

    def about(self) -> Row:
        """Return the fields by which a results file names the method."""
        times = {"settle_s": self.settle, "time_s": self.time}
        return {**times, "repeats": self.repeats, "bursts": self.bursts, "idle_s": IDLE}


def add_protocol(parser: argparse.ArgumentParser) -> None:
    """Add the options of a protocol."""
    usual = Protocol()
    parser.add_argument("--settle", type=float, default=usual.settle, help="seconds before timing")
    parser.add_argument("--time", type=float, default=usual.time, help="seconds timed")
    parser.add_argument("--repeats", type=int, default=usual.repeats)
    parser.add_argument("--bursts", type=int, default=usual.bursts, help="cool bursts of a side per round")


class Calls:
    """A function with the methods of a CUDA graph: `replay` calls it once."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.replay = run


@dataclass
class Timed:
    """A side: what is replayed, the calls in it, how many replays are enqueued at once, and its times so far."""

    graph: Any
    calls: int
    batch: int = 8
    alone: list[float] = field(default_factory=list)
    cool: list[float] = field(default_factory=list)
    clocks: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of_graph(cls, graph: torch.cuda.CUDAGraph, calls: int) -> Timed:
        return cls(graph, calls)

    @classmethod
    def of_function(cls, run: Callable[[], Any], batch: int = 1) -> Timed:
        return cls(Calls(run), 1, batch)

    @property
    def alone_us(self) -> float:
        return statistics.median(self.alone)

    @property
    def cool_us(self) -> float:
        return statistics.median(self.cool)

    def row(self) -> Row:
        """Return the times, and the clock, power and energy of a call."""
        found: Row = {"alone_us": self.alone_us, "cool_us": self.cool_us, "alone_runs_us": self.alone}
        if self.clocks:
            clock, power = (statistics.fmean(pair[part] for pair in self.clocks) for part in range(2))
            found |= {"mhz": clock, "watts": power, "joules": power * self.alone_us * 1e-6}
        return found


def order_of(seed: int, label: str) -> random.Random:
    """Return the random order of a case: if it were the same in every case, a side could always be the second one."""
    return random.Random(f"{seed} {label}")


def take_turns(sides: Mapping[str, Timed], protocol: Protocol, rng: random.Random, sensors: Sensors | None) -> None:
    """Time every side alone, then every side cool, in random order, in several rounds."""
    for _ in range(protocol.repeats):
        if protocol.is_limited:
            first = rng.choice(list(sides.values()))
            run_alone(first.graph, first.calls, WARM, 0.01, first.batch)
        for name in rng.sample(list(sides), len(sides)):
            each = sides[name]
            us, start, end = run_alone(each.graph, each.calls, protocol.settle, protocol.time, each.batch)
            each.alone.append(us)
            seen = sensors.between(start + 0.1, end) if sensors is not None else None
            if seen:
                each.clocks.append(seen)
        time.sleep(2 * IDLE)
        for name in rng.sample(list(sides), len(sides)):
            each = sides[name]
            each.cool.append(run_cool(each.graph, each.calls, protocol.bursts))


def ratios_to(peer: str, sides: Mapping[str, Timed]) -> dict[str, dict[str, float]]:
    """Return the speed of each other side relative to the peer, alone and cool."""
    base = sides[peer]
    return {
        name: {"alone": base.alone_us / each.alone_us, "cool": base.cool_us / each.cool_us}
        for name, each in sides.items()
        if name != peer
    }
