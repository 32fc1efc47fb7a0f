"""Instruction semantics are found by the name of the ISA table that declares the instruction."""

from __future__ import annotations

import pytest

import warploom.machine.instructions  # noqa: F401  (fills the registry)
from warploom.machine.core.registry import MEANINGS
from warploom.ptx.isa import FORMS

TABLES = {row.family: row.table for row in FORMS}


def test_every_row_knows_its_table():
    assert TABLES["mbarrier.try_wait"] == "mbarrier"
    assert TABLES["tcgen05.alloc"] == "tcgen05"
    assert "" not in TABLES.values()


@pytest.mark.parametrize("family", sorted(MEANINGS))
def test_semantics_live_in_the_module_named_like_the_table(family):
    module = MEANINGS[family].__module__.removeprefix("warploom.machine.instructions.")
    assert module.partition(".")[0] == TABLES[family]
