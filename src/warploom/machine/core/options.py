"""The options of a step, as schedules see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warploom.machine.core.async_operations import Operation
    from warploom.machine.core.group import Group
    from warploom.machine.memory.store_buffers import Store


@lru_cache(1 << 14)
def family_of(option: str) -> str:
    """The instruction family of an operation in flight, from the description of the step that completes it."""
    return option.partition(": ")[2].partition(" ")[0]


class Options(Sequence[str]):
    """Descriptions of the possible steps, written only when a schedule reads them."""

    def __init__(
        self,
        groups: Sequence[Group],
        completions: Sequence[Operation | Store],
        launch: bool,
        counts: Mapping[str, int],
    ) -> None:
        self.groups, self.completions, self.launch, self.counts = groups, completions, launch, counts
        self._first, self._last = len(groups), len(groups) + len(completions)

    def __len__(self) -> int:
        return self._last + self.launch

    def __getitem__(self, index: Any) -> Any:
        first, last = self._first, self._last
        if isinstance(index, slice):
            start, end, step = index.indices(last + self.launch)
            if step == 1 and first <= start and end <= last:  # schedules look for an operation among many
                return [operation.name for operation in self.completions[start - first : end - first]]
            return [self[each] for each in range(start, end, step)]
        if index < 0:
            index += last + self.launch
        if first <= index < last:
            return self.completions[index - first].name
        if 0 <= index < first:
            group = self.groups[index]
            return f"{group.cta.name} {group.name}"
        if index == last and self.launch:
            return "launch"
        raise IndexError(index)
