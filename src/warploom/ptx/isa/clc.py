"""Cluster launch control: a running cluster cancels one that has not started and takes over its work."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_ASKED = (
    Effect("writes", "a", space="shared", proxy="async", later=True),
    Effect("completes", "barrier", space="shared", scope="cluster", later=True),
)
_CLC = "clusterlaunchcontrol"
for _cast, _targets in (("", "sm_100"), (".{multicast}", "sm_100a sm_100f")):
    form(
        "clusterlaunchcontrol.try_cancel",
        f"{_CLC}.try_cancel.async{{.space?}}.mbarrier::complete_tx::bytes{_cast}.b128",
        "address a; address barrier",
        effects=_ASKED,
        version=(8, 6),
        targets=_targets,
        space="shared::cta",
        multicast="multicast::cluster::all",
    )
for _family, _template, _slots in (
    ("is_canceled", "is_canceled.pred", "out d pred"),
    ("get_first_ctaid", "get_first_ctaid::{axis}.b32", "out d b32"),
    ("get_first_ctaid.v4", "get_first_ctaid.v4.b32", "outs d b32"),
):
    form(
        f"clusterlaunchcontrol.{_family}",
        f"{_CLC}.query_cancel.{_template}.b128",
        f"{_slots}; in response b128",
        version=(8, 6),
        targets="sm_100",
        axis="x y z",
    )
