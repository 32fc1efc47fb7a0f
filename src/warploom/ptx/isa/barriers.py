"""Barriers among the threads of a CTA."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_SYNC = (Effect("syncs", "a", scope="cta"),)
_ARRIVE = (Effect("arrives", "a", scope="cta"),)
for _name, _aligned in (("bar{.cta?}", ""), ("barrier{.cta?}", "{.aligned?}")):
    form("bar.sync", f"{_name}.sync{_aligned}", "in a u32; opt in b u32", effects=_SYNC, blocks=True)
    form("bar.arrive", f"{_name}.arrive{_aligned}", "in a u32; in b u32", effects=_ARRIVE, blocks=True)
    form(
        "bar.red",
        f"{_name}.red.{{op}}{_aligned}.pred",
        "out d pred; in a u32; opt in b u32; pred c",
        effects=_SYNC,
        blocks=True,
        op="and or",
    )
    form(
        "bar.red",
        f"{_name}.red.{{op}}{_aligned}.u32",
        "out d u32; in a u32; opt in b u32; pred c",
        effects=_SYNC,
        blocks=True,
        op="popc",
    )
