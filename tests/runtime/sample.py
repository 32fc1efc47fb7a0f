"""A module that is not warploom's, for what fingerprints must see in it."""

from __future__ import annotations

import enum
import os
import random
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

SCALE = 2.0
TABLE = {"a": [1, 2], "b": (3,)}
ARRAY = np.zeros(3)


def helper(x):
    return x * SCALE


def calls_helper(x):
    return helper(x) + 1


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def reads_array(x):
    return x + ARRAY[0]


def reads_environment(x):
    return x * float(os.environ.get("SCALE", "1"))


def draws(x):
    return x * random.random()


def nested(x):
    inner = lambda: [x, SCALE]  # noqa: E731
    return [helper(value) for value in inner()]


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2

    def twice(self):
        return self.value * 2


@dataclass(frozen=True)
class Config:
    rows: int = 128
    mode: Mode = Mode.FAST
    names: tuple[str, ...] = field(default_factory=tuple)

    @property
    def area(self):
        return self.rows * SCALE

    @cached_property
    def slow(self):
        return self.rows + 1

    def method(self, x):
        return x * self.area


@dataclass(frozen=True, slots=True)
class Slotted:
    dtype: object = np.dtype("f4")
