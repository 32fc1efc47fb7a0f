"""Barriers among the threads of a CTA."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_SYNC = (Effect("syncs", "a", scope="cta"),)
for _name in ("bar{.cta?}", "barrier{.cta?}"):
    form("bar.sync", f"{_name}.sync{{.aligned?}}", "in a u32; opt in b u32", effects=_SYNC, blocks=True)
    form("bar.arrive", f"{_name}.arrive{{.aligned?}}", "in a u32; in b u32", effects=(Effect("arrives", "a", scope="cta"),))
    form(
        "bar.red",
        f"{_name}.red.{{op}}{{.aligned?}}.pred",
        "out d pred; in a u32; opt in b u32; pred c",
        effects=_SYNC,
        blocks=True,
        result="pure",
        op="and or",
    )
    form(
        "bar.popc",
        f"{_name}.red.popc{{.aligned?}}.u32",
        "out d u32; in a u32; opt in b u32; pred c",
        effects=_SYNC,
        blocks=True,
    )
