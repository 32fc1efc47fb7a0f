"""Barriers in shared memory that count arrivals of threads and bytes of asynchronous copies."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_ORDERS = ("{.sem?}{.scope?}{.space?}", "{.scope?}{.sem?}{.space?}", "{.space?}{.sem?}{.scope?}")
"""ptxas accepts the three in any order; these are the orders of compilers and the manual."""
_OWN = "shared shared::cta"
_ANY = "shared shared::cta shared::cluster"
_SCOPE = "cta cluster"


def _effect(verb: str) -> Effect:
    return Effect(verb, "a", space="shared", scope="{scope}", detail="{sem}")


for _family, _verb, _slots in (
    ("mbarrier.init", "allocates", "address a; in count u32"),
    ("mbarrier.inval", "frees", "address a"),
):
    form(_family, f"{_family}{{.space?}}.b64", _slots, effects=(Effect(_verb, "a", space="shared"),), space=_OWN)

for _order in _ORDERS:
    for _family, _verb in (("mbarrier.expect_tx", "expects"), ("mbarrier.complete_tx", "completes")):
        form(
            _family,
            f"{_family}{_order}.b64",
            "address a; in bytes u32",
            effects=(_effect(_verb),),
            version=(8, 0),
            targets="sm_90",
            sem="relaxed",
            scope=_SCOPE,
            space=_ANY,
        )
    for _name in ("arrive", "arrive_drop"):
        form(
            f"mbarrier.{_name}",
            f"mbarrier.{_name}{_order}.b64",
            "out state b64; address a; opt in count u32",
            effects=(_effect("arrives"),),
            sem="release relaxed",
            scope=_SCOPE,
            space=_ANY,
        )
        form(
            f"mbarrier.{_name}.expect_tx",
            f"mbarrier.{_name}.expect_tx{_order}.b64",
            "out state b64; address a; in bytes u32",
            effects=(_effect("expects"), _effect("arrives")),
            version=(8, 0),
            targets="sm_90",
            sem="release relaxed",
            scope=_SCOPE,
            space=_ANY,
        )
        form(
            f"mbarrier.{_name}.noComplete",
            f"mbarrier.{_name}.noComplete{_order}.b64",
            "out state b64; address a; in count u32",
            effects=(_effect("arrives"),),
            result="lane",
            sem="release",
            scope="cta",
            space=_OWN,
        )
    for _name in ("test_wait", "try_wait"):
        for _parity, _operand in (("", "in state b64"), (".parity", "in parity u32")):
            form(
                f"mbarrier.{_name}{_parity}",
                f"mbarrier.{_name}{_parity}{_order}.b64",
                f"out done pred; address a; {_operand}" + ("; opt in limit u32" if _name == "try_wait" else ""),
                effects=(_effect("waits"),),
                blocks=True,
                sem="acquire relaxed",
                scope=_SCOPE,
                space=_OWN,
            )

form("mbarrier.pending_count", "mbarrier.pending_count.b64", "out count u32; in state b64")
