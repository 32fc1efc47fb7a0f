"""Fences, the register pool, and signals between grids."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_SCOPE = "cta cluster gpu sys"
_ASYNC = Effect("fences", space="{space}", proxy="async")

form("fence", "membar.{level}", effects=(Effect("fences", scope="{level}", detail="sc"),), level="cta gl sys")
form(
    "fence",
    "fence{.sem?}.{scope}",
    effects=(Effect("fences", scope="{scope}", detail="{sem}"),),
    version=(6, 0),
    sem="sc acq_rel acquire release",
    scope=_SCOPE,
)
for _sem, _space in (("acquire", "shared::cluster"), ("release", "shared::cta")):
    form(
        "fence",
        "fence.{sem}.sync_restrict::{space}.{scope}",
        effects=(Effect("fences", space="{space}", scope="{scope}", detail="{sem}"),),
        version=(8, 6),
        targets="sm_90",
        sem=_sem,
        space=_space,
        scope="cluster",
    )
    form(
        "fence.proxy.async",
        "fence.proxy.async::generic.{sem}.sync_restrict::{space}.{scope}",
        effects=(Effect("fences", space="{space}", proxy="async", scope="{scope}", detail="{sem}"),),
        version=(8, 6),
        targets="sm_90",
        sem=_sem,
        space=_space,
        scope="cluster",
    )
form(
    "fence",
    "fence.mbarrier_init.{sem}.{scope}",
    effects=(Effect("fences", space="shared::cta", scope="{scope}", detail="mbarrier_init"),),
    version=(8, 0),
    targets="sm_90",
    sem="release",
    scope="cluster",
)
form("fence", "fence.proxy.alias", effects=(Effect("fences", proxy="alias"),), version=(7, 5))
form("fence", "membar.proxy.alias", effects=(Effect("fences", proxy="alias"),), version=(7, 5))
form(
    "fence.proxy.async",
    "fence.proxy.async{.space?}",
    effects=(_ASYNC,),
    version=(8, 0),
    targets="sm_90",
    space="global shared::cta shared::cluster",
)
form(
    "fence.tensormap",
    "fence.proxy.tensormap::generic.{sem}.{scope}",
    effects=(Effect("fences", proxy="tensormap", scope="{scope}", detail="{sem}"),),
    version=(8, 3),
    targets="sm_90",
    sem="release",
    scope=_SCOPE,
)
form(
    "fence.tensormap",
    "fence.proxy.tensormap::generic.{sem}.{scope}",
    "address a; immediate size",
    effects=(Effect("fences", "a", proxy="tensormap", scope="{scope}", detail="{sem}"),),
    version=(8, 3),
    targets="sm_90",
    sem="acquire",
    scope=_SCOPE,
)

form(
    "griddepcontrol",
    "griddepcontrol.{action}",
    effects=(Effect("waits", scope="grid"),),
    version=(7, 8),
    targets="sm_90",
    action="wait",
)
form(
    "griddepcontrol",
    "griddepcontrol.{action}",
    effects=(Effect("arrives", scope="grid"),),
    version=(7, 8),
    targets="sm_90",
    action="launch_dependents",
)
for _action, _verb in (("inc", "allocates"), ("dec", "frees")):
    form(
        "setmaxnreg",
        "setmaxnreg.{action}.sync.aligned.u32",
        "immediate count",
        effects=(Effect(_verb, "count", space="register"),),
        issuer="warpgroup",
        blocks=True,
        version=(8, 0),
        targets="sm_90a sm_100a sm_100f",
        action=_action,
    )
