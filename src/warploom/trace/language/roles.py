"""Warp roles: the warps of a CTA divided by what they do, each with its own branch of the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from warploom.diagnostics import Diag
from warploom.hardware.targets import machine
from warploom.hardware.threads import WARP_LANES, WARPGROUP_WARPS
from warploom.trace.builder import Region, current, here
from warploom.trace.isa.emit import emit
from warploom.trace.language.control import leave_unless
from warploom.trace.language.values import Value
from warploom.trace.language.warps import elect, thread, warp_index

if TYPE_CHECKING:
    from warploom.trace.builder import Builder


class Role:
    """Some warps in a row: `with roles.load:` is the code they execute."""

    def __init__(self, name: str, first: int, count: int, warp: Value, registers: int | None) -> None:
        self.name, self.first, self.count = name, first, count
        self.registers = registers
        self._warp = warp
        self._elected: Value | None = None
        self._open: list[tuple[Region, str]] = []

    @property
    def threads(self) -> int:
        return self.count * WARP_LANES

    @property
    def warp(self) -> Value:
        """The warp's number in the role."""
        return self._warp - self.first

    @property
    def thread(self) -> Value:
        """The thread's number in the role."""
        return thread() - self.first * WARP_LANES

    @property
    def elected(self) -> Value:
        """True in one lane of each warp: the same each time, because a commit speaks for the thread that issued."""
        if self._elected is None or not self._open:
            raise Diag.BAD_KERNEL.error(here(), what=f"`{self.name}.elected` outside `with roles.{self.name}`")
        return self._elected

    @property
    def first_thread(self) -> Value:
        """True in one thread of the role."""
        return self.elected if self.count == 1 else (self._warp == self.first) & self.elected

    def __enter__(self) -> Self:
        builder = current(f"Role `{self.name}`")
        if builder.region.role:
            what = f"role `{self.name}` is opened inside role `{builder.region.role}`"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        builder.start_roles()
        end = builder.label(f"end_{self.name}")
        builder.note(f"role {self.name} {self.first}-{self.first + self.count - 1}")
        leave_unless(builder, self._is_mine(builder), end)
        self._open.append((builder.open("role", self.name), end))
        if self.registers is not None:
            grows = self.registers > builder.registers_at_launch
            emit(f"setmaxnreg.{'inc' if grows else 'dec'}.sync.aligned.u32", self.registers)
        self._elected = elect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        region, end = self._open.pop()
        if kind is None:
            builder = current(f"Role `{self.name}`")
            builder.close(region)
            builder.place(end)

    def _is_mine(self, builder: Builder) -> Value:
        """One comparison, whichever warps they are."""
        if self.count == 1:
            return self._warp == self.first
        if builder.threads == (self.first + self.count) * WARP_LANES:
            return self._warp >= self.first
        return self.warp < self.count


class Roles:
    """The roles of a CTA, as attributes."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._roles = roles

    def __getattr__(self, name: str) -> Role:
        try:
            return self._roles[name]
        except KeyError:
            raise AttributeError(f"no role `{name}`; there are {', '.join(self._roles)}") from None

    def __iter__(self) -> Iterator[Role]:
        return iter(self._roles.values())

    @property
    def threads(self) -> int:
        """Threads of all roles."""
        return sum(role.threads for role in self._roles.values())


def warp_roles(registers: Mapping[str, int] | None = None, **warps: int) -> Roles:
    """Divide the CTA's warps, in order: `warp_roles(epilogue=4, load=1, mma=1)`.

    `registers` are the registers per thread that a role asks for when it begins; roles that do must fill warpgroups.
    """
    builder = current("warp_roles()")
    total = sum(warps.values()) * WARP_LANES
    wanted = dict(registers or {})
    allowed = machine(builder.target).setmaxnreg
    problems = [
        *(f"role `{name}` has {count} warps" for name, count in warps.items() if count < 1),
        *(f"`registers` names `{name}`, which is not a role" for name in wanted if name not in warps),
        *(f"role `{name}` asks for {count} registers" for name, count in wanted.items() if count not in allowed),
    ]
    if builder.threads is None:
        builder.set_threads(total)
    if builder.threads != total:
        problems.append(f"the roles have {total} threads and the block {builder.threads}")
    if problems:
        raise Diag.BAD_KERNEL.error(here(), what="; ".join(problems))
    warp = warp_index()
    roles, first = dict[str, Role](), 0
    for name, count in warps.items():
        if name in wanted and (first % WARPGROUP_WARPS or count % WARPGROUP_WARPS):
            what = f"role `{name}` asks for registers but is warps {first} to {first + count - 1}, not whole warpgroups"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        roles[name] = Role(name, first, count, warp, wanted.get(name))
        first += count
    return Roles(roles)
