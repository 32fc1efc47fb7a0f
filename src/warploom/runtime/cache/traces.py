"""Traces on disk: PTX by a fingerprint of everything it depends on, so that later processes need not trace."""

from __future__ import annotations

import json
from collections.abc import Callable

from warploom.diagnostics import WarploomError
from warploom.host.program import Printed, Traced, head_of, text_of, without_statements
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.printer import print_module
from warploom.runtime.cache.disk import user_cache
from warploom.runtime.cache.fingerprint import fingerprint, source_version

_AS_NAMES_ARE = "surrogateescape"
"""File names that are not valid text contain such characters."""


def kept(parts: tuple[object, ...], make: Callable[[], Traced]) -> Traced:
    """Return the stored trace of equal parts, or make and store it; parts without a fingerprint are always traced."""
    cache, version = user_cache(), source_version()
    digest = fingerprint(parts) if cache.limit and version else None
    if digest is None:
        return make()
    key = ("ptx", digest, str(version))
    found = cache.get(key)
    traced = None if found is None else _unpacked(found)
    if traced is None:
        made = make()
        traced = Traced(Printed(head_of(made.program), text_of(made.program)), made.shared_bytes)
        cache.put(key, _packed(traced))
    return traced


def _packed(traced: Traced) -> bytes:
    """Store the head separately at the front: parsing the whole text would cost as much as everything else."""
    head = print_module(without_statements(head_of(traced.program)))
    header = json.dumps({"shared_bytes": traced.shared_bytes, "head": head})
    return f"{header}\n{text_of(traced.program)}".encode(errors=_AS_NAMES_ARE)


def _unpacked(found: bytes) -> Traced | None:
    """Return a trace that was packed; None for anything else, which is then replaced."""
    try:
        header, _, text = found.decode(errors=_AS_NAMES_ARE).partition("\n")
        facts = json.loads(header)
        return Traced(Printed(parse(facts["head"]), text), int(facts["shared_bytes"]))
    except (ValueError, KeyError, TypeError, WarploomError):
        return None
