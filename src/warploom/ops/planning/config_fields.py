"""What of a configuration follows from the arrays of a request, whichever target it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warploom.kernels.call import Config
from warploom.ops.planning.arrays import ROUNDED, Array, element_of
from warploom.ops.planning.request import Majors, Product, Request
from warploom.trace.language.types import OF_NUMPY


def majors_of(product: Product, major: Callable[[Array], str | None]) -> Majors:
    """The majors of A and B, as a target sees them; of a pair of B's it is the one that both have.

    Groups begin at any row, and the copy engine at every 16 bytes: their rows do not lie side by side.
    """
    of_a, of_b = major(product.a), major(product.b)
    of_a = None if product.kind == "grouped" and of_a == "mn" else of_a
    return of_a, of_b if product.up is None or major(product.up) == of_b else None


def common_fields(request: Request, majors: Majors) -> dict[str, Any]:
    """The fields that all configurations have; an array without a major is copied so that K is contiguous."""
    product = request.product
    return {
        "a_type": element_of(product.a),
        "b_type": element_of(product.b),
        "c_type": OF_NUMPY[request.dtype.name],
        "a_major": majors[0] or "k",
        "b_major": majors[1] or "k",
        "use_tma_store": request.is_storable,
        **({"output_types": request.output_types} if request.output_types else {}),
        **({} if product.up is None else {"paired": True}),
        **product.fields,
    }


def completed(given: Config, fields: Mapping[str, Any]) -> Config:
    """The caller's configuration with what follows from the arrays, and what follows from that anew."""
    names = {"a": "b", "b": "a"} if given.AB_swapped else {"a": "a", "b": "b"}
    stores = given.use_tma_store and fields["use_tma_store"]
    changes = {"paired": False, "output_types": (), **fields, "use_tma_store": stores}
    for own, theirs in names.items():
        changes[f"{own}_major"] = fields[f"{theirs}_major"]
        element, asked = fields[f"{theirs}_type"], getattr(given, f"{own}_type")
        changes[f"{own}_type"] = asked if {element, asked} == ROUNDED else element
    config = given.replace(**changes)
    return config if stores and config.stages_outputs else config.replace(output_types=())
