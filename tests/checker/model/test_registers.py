"""Registers of pending wgmmas, by mutants of a kernel of another compiler and of the library."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.machine.families import FAMILIES

import warploom
from warploom.checker.model.registers import hazards
from warploom.host.launch import entry_of
from warploom.launcher import prepare
from warploom.machine.core.schedule import Eager
from warploom.machine.translate.translator import translate
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.printer import print_module


def codes(text: str) -> set[str]:
    module = parse(text)
    return {each.code for each in hazards(translate(module, entry_of(module, None), follow_x=128).flow)}


def without(text: str, words: str) -> str:
    """A text without its lines that contain some words."""
    lines = text.splitlines()
    assert any(words in line for line in lines)
    return "\n".join(line for line in lines if words not in line)


@pytest.fixture(scope="module")
def text() -> str:
    launch, _ = FAMILIES["sm_90a cooperative"]()
    return print_module(prepare(launch, Eager(), None, None, (), None).program.module)


def test_a_whole_kernel_has_no_hazard(text: str) -> None:
    assert codes(text) == set()


def test_accumulators_are_not_touched_before_the_wait(text: str) -> None:
    assert codes(without(text, "wgmma.wait_group")) == {"WGMMA_REGISTERS"}


def test_the_last_wait_before_the_epilogue_matters() -> None:
    """Descriptors that are advanced between the wgmmas of a group must not hide the accumulators."""
    launch, _ = FAMILIES["sm_90a grouped"]()
    text = print_module(prepare(launch, Eager(), None, None, (), None).program.module)
    assert codes(text) == set()
    report = warploom.check(
        replace(launch, program=without(text, "wgmma.wait_group.sync.aligned 0")), profile="lenient"
    )
    assert {each.code for each in report.findings} == {"WGMMA_REGISTERS"}


def test_registers_that_were_read_need_a_fence_before_the_next_wgmma() -> None:
    """The accumulators of a K step are read and added to others, and the wgmmas of a later one overwrite them."""
    launch, _ = FAMILIES["sm_90a blockwise"]()
    text = print_module(prepare(launch, Eager(), None, None, (), None).program.module)
    assert codes(text) == set()
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if "wgmma.fence" in line]
    assert len(fences) > 1
    for number in fences:
        assert codes("\n".join((*lines[:number], *lines[number + 1 :]))) == {"WGMMA_FENCE"}


def test_registers_need_a_fence_before_the_first_wgmma(text: str) -> None:
    assert codes(without(text, "wgmma.fence")) == {"WGMMA_FENCE"}


def test_copies_behind_the_fence_are_a_relaxation(text: str) -> None:
    """LLVM places moves of accumulators there; other writes need the fence under both profiles."""
    lines = text.splitlines()
    fence = next(number for number, line in enumerate(lines) if "wgmma.fence" in line)
    first = next(line for line in lines[fence:] if "wgmma.mma_async" in line)
    a, b = re.findall(r"%\w+", first)[:2]
    for between, relaxed in (
        (f"mov.b32 {a}, {b};", "wgmma-copies"),
        (f"mov.b32 {a}, 0;", ""),
        (f"add.f32 {a}, {b}, {b};", ""),
        (f"mov.b32 {b}, 0; mov.b32 {a}, {b};", ""),
    ):
        changed = parse("\n".join((*lines[: fence + 1], between, *lines[fence + 1 :])))
        found = hazards(translate(changed, entry_of(changed, None), follow_x=128).flow)
        assert {each.relaxation for each in found if each.code == "WGMMA_FENCE"} == {relaxed}, between
