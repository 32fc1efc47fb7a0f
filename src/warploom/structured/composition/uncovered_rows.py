"""Rows of D that no group covers: a kernel that makes a new D sets them to zero itself, and nothing else twice."""

from __future__ import annotations

from warploom.trace.language.control import While, loop, when
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, special, valued
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import Index, View


def clear_uncovered_rows(target: View, ends: View, experts: View | None, size: tuple[Index, Index], role: Role) -> None:
    """Set to zero the rows after the last group, and those of groups whose expert is negative; by all CTAs together.

    `size` has the rows and columns of `target`. The threads of `role` take part.
    """
    rows, columns = (valued(each, "s32") for each in size)
    cta = (special("ctaid.y") * special("nctaid.x") + special("ctaid.x")).to("s32")
    ctas = (special("nctaid.x") * special("nctaid.y")).to("s32")

    def clear(start: Value, end: Value) -> None:
        row, column = Variable("s32", start + cta), Variable("s32", 0)
        for _ in While(lambda: row < end):
            column.set(role.thread.to("s32"))
            for _ in While(lambda: column < columns):
                target[row, column] = 0
                column.set(column + role.threads)
            row.set(row + ctas)

    groups = valued(ends.shape[0], "s32")
    if experts is not None:
        start = Variable("s32", 0)
        for group in loop(groups):
            end = ends[group].to("s32")
            with when(experts[group].to("s32") < 0):
                clear(start.get(), end)
            start.set(end)
    clear(ends[groups - 1].to("s32"), rows)
