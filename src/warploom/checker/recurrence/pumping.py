"""Pumping: the conditions under which parts of a run between equal states may be repeated for larger sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

from warploom.checker.recurrence.cuts import Cuts, Repeat, Warp
from warploom.checker.recurrence.loops import Counted, Expression, evaluate, params_of, registers_in
from warploom.checker.recurrence.turning import is_irregular, turns_of
from warploom.checker.recurrence.variants import Dimension, Refused, Tiles, Variants

FAR = tuple(range(1, 9)) + tuple(1 << bit for bit in range(4, 18))
"""Multiples of the period at which bounds and steering values are evaluated: they must be linear and constant there."""
_SAMPLES = {1: range(64), 2: range(16), 3: range(6)}
"""Values of registers, by their number, at which functions of them and of a parameter are evaluated."""


def k_parts(variants: Variants, k: Dimension, cuts: Cuts) -> Iterator[tuple[Repeat, ...]]:
    """The parts of a run that may be repeated together for more K steps: one, or one on each side of comparisons.

    Of those that move the same counters on the same sides, the first stands for all.
    """
    found = cuts.repeats()
    alike: dict[frozenset[tuple[tuple[Warp, int], int, bool]], Repeat] = {}
    for each in found:
        alike.setdefault(frozenset((key, by, each.before[key]) for key, by in each.moved.items()), each)
    for each in alike.values():
        yield (each,)
    several: list[Repeat] = []
    for each in found:
        sides = _sides(variants, k, each)
        if not several or (each.first >= several[-1].second and all(sides != _sides(variants, k, x) for x in several)):
            several.append(each)
    if len(several) > 1:
        yield tuple(several)


def _sides(variants: Variants, k: Dimension, repeat: Repeat) -> frozenset[tuple[tuple[Warp, int], bool]]:
    sized = {key for key, each in variants.steering.counted.items() if k.name in _params(each)}
    return frozenset((key, side) for key, side in repeat.before.items() if key[1] in sized)


def k_period(variants: Variants, k: Dimension, parts: tuple[Repeat, ...]) -> int:
    """The K steps that parts add together."""
    step = evaluate(k.primary.step, variants.values) or 1
    period = 0
    for part in parts:
        moves = {delta for (_, key), delta in part.moved.items() if key == id(k.primary.op)}
        if len(moves) != 1:
            raise Refused("warps do not repeat the loop equally often")
        period += moves.pop() // step
    if period < 1:
        raise Refused("the part that recurs moves no counter")
    return period


def check_k(
    variants: Variants, k: Dimension, users: Collection[tuple[Warp, int]], parts: tuple[Repeat, ...], steps: int
) -> None:
    """Refuse parts of the run with `steps` K steps that do not make the runs with further multiples of their period.

    `users` are the warps and comparisons that get these K steps.
    """
    period = k_period(variants, k, parts)
    counted = variants.steering.counted
    for key, each in counted.items():
        if k.name not in _params(each) and any(part.before[at] for part in parts for at in part.moved if at[1] == key):
            raise Refused(f"`{text_of(each)}` is not passed where the state recurs")
    for user in users:
        if k.name in _params(counted[user[1]]):
            moved = sum(part.moved.get(user, 0) for part in parts if part.before.get(user, True))
            _check_growth(variants, k, period, steps, counted[user[1]], moved)
    for value, name in (*variants.steering.values.items(), *variants.steering.mixed.items()):
        if k.name in params_of(value):
            sizes = [variants.at(k, steps + period * multiple) for multiple in (0, *FAR)]
            if not _is_constant(value, sizes) or not _stays(variants, k, value, steps, period):
                raise Refused(f"{name} depends on {k.name}, and steers more than the number of steps")


def check_between(variants: Variants, k: Dimension, least: int) -> None:
    """Refuse a parameter of which two values give equally many steps and differ in anything that steers."""
    values = [each for each in (*variants.steering.values, *variants.steering.mixed) if k.name in params_of(each)]
    counted = [each for each in variants.steering.counted.values() if k.name in _params(each)]
    for steps in (*range(1, least + 1), *(least + multiple for multiple in FAR)):
        sizes = [{**variants.at(k, steps), k.name: variants.value_for(k, steps - 1) + 1}, variants.at(k, steps)]
        if sizes[0][k.name] == sizes[1][k.name]:
            continue
        is_same = all(_is_constant(each, sizes, known=False) for each in values)
        if not is_same or not all(_compares_alike(variants, each, sizes) for each in counted):
            raise Refused(f"control depends on {k.name} by more than the number of steps")
    if not all(_is_same_between(variants, k, each) for each in values):
        raise Refused(f"control depends on {k.name} by more than the number of steps")


def _is_same_between(variants: Variants, k: Dimension, value: Expression) -> bool:
    """True if an expression is the same for all sizes of equally many steps where a comparison in it turns."""
    for extra in _samples(value):
        for turn in turns_of(value, k.name, partial(variants.with_size, k), 1, extra):
            for size in range(max(turn - 1, 1), turn + 2):
                steps = variants.trips(k.primary, k.name, size)
                if not steps:
                    continue
                other = {**variants.at(k, steps), **extra}
                if evaluate(value, {**variants.with_size(k, size), **extra}) != evaluate(value, other):
                    return False
    return True


_BEFORE, _UP_TO = frozenset({"lt", "ge", "lo", "hs"}), frozenset({"le", "gt", "ls", "hi"})
"""Relations of a counter to its bound that change at the bound, and after it."""


def _compares_alike(variants: Variants, counted: Counted, sizes: list[Mapping[str, int]]) -> bool:
    """True if a comparison has the same results at all sizes, pass by pass."""
    if all(_is_constant(each, sizes, known=False) for each in (counted.bound, counted.first)):
        return True
    added = [(sign, variants.loops.expression(operand, counted.op)) for sign, operand in counted.added]
    terms = [(1, counted.bound), (-1, counted.first), *((-sign, each) for sign, each in added)]
    found = set[int]()
    for values in sizes:
        given = [(sign, evaluate(each, values)) for sign, each in terms]
        step = evaluate(counted.step, values)
        if not step or counted.relation not in _BEFORE | _UP_TO or any(each is None for _, each in given):
            return False
        bound = given[0][1] or 0
        left = sum(sign * (each or 0) for sign, each in given)
        if counted.op["type"].startswith("u") and min(bound, bound - left) < 0:
            return False  # these are large numbers to the comparison
        found.add(-(-left // step) if counted.relation in _BEFORE else left // step)
    return len(found) == 1


def least_steps(variants: Variants, k: Dimension, cuts: Cuts, repeat: Repeat) -> int:
    """The least number of steps with which a run begins like the one in which the state recurred."""
    needed = []
    for key in repeat.moved:
        counted = variants.steering.counted[key[1]]
        if repeat.before[key]:
            width = evaluate(counted.step, variants.values) or 1
            needed.append((counted, cuts.found[repeat.first].comparisons[key].compared + 2 * width))
    steps = 1
    while any((evaluate(counted.bound, variants.at(k, steps)) or 0) <= at for counted, at in needed):
        steps += 1
    return steps


def is_like(variants: Variants, k: Dimension, steps: int, others: range) -> bool:
    """True if everything that steers is the same with `others` as with `steps`, but for the bounds of loops."""
    found = [*variants.steering.values, *variants.steering.mixed]
    return all(
        _is_constant(value, [variants.at(k, steps), variants.at(k, other)])
        for value in found
        if k.name in params_of(value)
        for other in others
    )


def _stays(variants: Variants, k: Dimension, value: Expression, steps: int, period: int) -> bool:
    """True if an expression is the same where a comparison in it turns, with any further multiple of the period."""
    sizes = [variants.at(k, steps + period * multiple) for multiple in (0, *FAR)]
    for extra in _samples(value):
        if is_irregular(value, k.name, sizes, extra):
            return False
        first = evaluate(value, {**sizes[0], **extra})
        for turn in turns_of(value, k.name, partial(variants.with_size, k), sizes[0][k.name], extra):
            for multiple in _near(variants, k, turn, steps, period):
                if evaluate(value, {**variants.at(k, steps + period * multiple), **extra}) != first:
                    return False
    return True


def _near(variants: Variants, k: Dimension, turn: int, steps: int, period: int) -> set[int]:
    """The multiples of the period next to a value of the parameter."""
    near = ((variants.trips(k.primary, k.name, turn) or 0) - steps) // period
    return {*range(max(near - 1, 0), near + 2)}


def _is_fixed(value: Expression, name: str, sizes: Sequence[Mapping[str, int]]) -> bool:
    """True if an expression is the same for every value of a parameter from the one of the first size on."""
    start, low = sizes[0], sizes[0][name]
    for extra in _samples(value):
        if is_irregular(value, name, sizes, extra):
            return False
        first = evaluate(value, {**start, **extra})
        for turn in turns_of(value, name, lambda at: {**start, name: at}, low, extra):
            near = [{**start, **extra, name: max(turn + by, low)} for by in (-1, 0, 1)]
            if any(evaluate(value, each) != first for each in near):
                return False
    return True


def _samples(value: Expression) -> Iterator[Mapping[str, int]]:
    """Values of the registers in an expression."""
    registers = sorted(registers_in(value))
    for given in product(*(_SAMPLES[len(registers)] for _ in registers)) if registers else [()]:
        yield dict(zip(registers, given, strict=True))


def _is_constant(value: Expression, sizes: Sequence[Mapping[str, int]], *, known: bool = True) -> bool:
    """True if an expression has the same value at all sizes, whatever registers in it are."""
    if len(registers_in(value)) > max(_SAMPLES):
        return False
    for extra in _samples(value):
        found = {evaluate(value, {**values, **extra}) for values in sizes}
        if len(found) != 1 or (known and None in found):
            return False
    return True


def _check_growth(variants: Variants, k: Dimension, period: int, steps: int, counted: Counted, moved: int) -> None:
    """The bound of a loop must move by as much as the parts move its counter, for all larger sizes."""
    start = _distance(counted, variants.at(k, steps))
    low, multiples = variants.value_for(k, steps), {*FAR}
    for each in (counted.bound, counted.first):
        for turn in turns_of(each, k.name, partial(variants.with_size, k), low, {}):
            multiples |= _near(variants, k, turn, steps, period)
    grown = {multiple: _distance(counted, variants.at(k, steps + period * multiple)) for multiple in multiples}
    if start is None or any(grown[multiple] != start + moved * multiple for multiple in multiples):
        raise Refused(f"`{text_of(counted)}` does not move with {k.name}")


def _distance(counted: Counted, values: Mapping[str, int]) -> int | None:
    bound, first = evaluate(counted.bound, values), evaluate(counted.first, values)
    return None if bound is None or first is None else bound - first


def _params(counted: Counted) -> frozenset[str]:
    return params_of(counted.bound) | params_of(counted.first)


def check_tiles(variants: Variants, tiles: Tiles, cuts: Cuts, repeat: Repeat, scout: int) -> int:
    """The tiles that a part adds; refused if anything but the number of passes of tile loops depends on tiles."""
    if not tiles.names:
        if any(repeat.before.values()):
            raise Refused("counters move with the tiles")
        first, second = cuts.found[repeat.first], cuts.found[repeat.second]
        period = second.taken - first.taken
        if period < 1 or period != second.loop[1] - first.loop[1]:
            raise Refused("the part that recurs asks for another number of tiles than it computes")
        return period
    name, counted = tiles.names[0], variants.steering.counted
    start = {**variants.own_cluster(), **variants.values, **dict.fromkeys(tiles.names, 1)}
    for value, register in (*variants.steering.values.items(), *variants.steering.mixed.items()):
        if params_of(value) & set(tiles.names):
            counts = (1, 2, scout, scout + 1, *FAR)
            sizes = [{**start, name: count} for count in counts]
            if not _is_constant(value, sizes) or not _is_fixed(value, name, sizes):
                raise Refused(f"{register} depends on {name}, and steers more than the number of tiles")
    keys = {user for user in cuts.users if params_of(counted[user[1]].bound) & set(tiles.names)}
    for user in repeat.moved.keys() - keys:
        if repeat.before[user]:
            raise Refused(f"`{text_of(counted[user[1]])}` moves with the tiles")
    moves = {repeat.moved.get(user, 0) if repeat.before.get(user) else 0 for user in keys}
    if len(moves) != 1 or (period := moves.pop()) < 1:
        raise Refused("warps do not repeat the loop over tiles equally often")
    for user in keys:
        bounds = [
            evaluate(counted[user[1]].bound, {**start, name: scout + period * multiple}) for multiple in (0, *FAR)
        ]
        if bounds[0] is None or bounds[1:] != [bounds[0] + period * multiple for multiple in FAR]:
            raise Refused(f"`{text_of(counted[user[1]])}` does not move with {name}")
    return period


def text_of(counted: Counted) -> str:
    """The comparison in PTX."""
    return " ".join(counted.op.instruction.text.split())
