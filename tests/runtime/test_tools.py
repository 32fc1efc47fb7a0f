from __future__ import annotations

import sys

import pytest

from warploom.diagnostics import AssemblyError
from warploom.runtime.toolchain.tools import find

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")


def program(path, version="13.4.92", body=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body or f"#!/bin/sh\necho 'Cuda compilation tools, release 1.2, V{version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A computer without any tool."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("WARPLOOM_PTXAS", raising=False)
    return tmp_path


@pytest.mark.parametrize("layout", ["cu13", "cuda_nvcc"])
def test_both_layouts_of_pip_are_found(bare, layout):
    path = program(bare / f"site/nvidia/{layout}/bin/ptxas", "13.0.88")
    tool = find("ptxas")
    assert (tool.path, tool.origin, tool.version, tool.cuda) == (path, "pip", "13.0.88", (13, 0))


def test_the_newest_toolkit_of_pip_is_taken(bare):
    for layout, version in (("cuda_nvcc", "12.8.1"), ("cu9", "9.2.1"), ("cu13", "13.4.92"), ("cu12", "12.9.2")):
        program(bare / f"site/nvidia/{layout}/bin/ptxas", version)
    assert find("ptxas").version == "13.4.92"


def test_pip_comes_before_the_path_and_the_variable_before_both(bare, monkeypatch):
    on_path = program(bare / "bin/ptxas", "11.1.1")
    assert (find("ptxas").path, find("ptxas").origin) == (on_path, "PATH")
    program(bare / "site/nvidia/cu13/bin/ptxas", "13.1.1")
    assert find("ptxas").origin == "pip"
    monkeypatch.setenv("WARPLOOM_PTXAS", str(program(bare / "own tools/ptxas-new", "14.0.1")))
    assert (find("ptxas").version, find("ptxas").origin) == ("14.0.1", "WARPLOOM_PTXAS")


def test_tritons_own_comes_last(bare):
    path = program(bare / "site/triton/backends/nvidia/bin/ptxas", "12.8.93")
    assert (find("ptxas").path, find("ptxas").origin) == (path, "Triton")
    program(bare / "bin/ptxas", "11.1.1")
    assert find("ptxas").origin == "PATH"


def test_files_that_cannot_be_executed_are_ignored(bare):
    program(bare / "site/nvidia/cu13/bin/ptxas").chmod(0o644)
    on_path = program(bare / "bin/ptxas")
    assert find("ptxas").path == on_path


def test_a_missing_tool_is_reported_with_how_to_install_it(bare):
    with pytest.raises(AssemblyError) as caught:
        find("ptxas")
    assert caught.value.code == "NO_TOOL"
    assert "pip install 'warploom[cuda]'" in str(caught.value)
    assert "WARPLOOM_PTXAS" in str(caught.value)


def test_a_variable_that_names_nothing_is_an_error_though_pip_has_one(bare, monkeypatch):
    program(bare / "site/nvidia/cu13/bin/ptxas")
    monkeypatch.setenv("WARPLOOM_PTXAS", str(bare / "gone"))
    with pytest.raises(AssemblyError, match="NO_TOOL") as caught:
        find("ptxas")
    assert str(bare / "gone") in caught.value.what


@pytest.mark.parametrize("body", ["#!/bin/sh\nexit 3\n", "not a program"], ids=["fails", "no format"])
def test_a_program_that_does_not_run_is_a_sentence(bare, body):
    program(bare / "bin/ptxas", body=body)
    with pytest.raises(AssemblyError) as caught:
        find("ptxas")
    assert "does not run" in caught.value.what


def test_a_program_that_was_replaced_is_asked_again(bare):
    path = program(bare / "bin/ptxas", "12.0.1")
    assert find("ptxas").version == "12.0.1"
    program(path, "13.10.11")
    assert find("ptxas").version == "13.10.11"


def test_a_program_without_a_version_is_used(bare):
    program(bare / "bin/ptxas", body="#!/bin/sh\necho hello\n")
    assert find("ptxas").cuda == (0, 0)
