from __future__ import annotations

from pathlib import Path

from warploom.diagnostics import Loc
from warploom.runtime.toolchain.ptxas_log import Places, Resources, remarks, resources, without_places

# Printed by ptxas 13.4 with -v.
TWO_KERNELS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k2' for 'sm_90a'
ptxas info    : Function properties for k2
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers
ptxas info    : Compile time = 1.951 ms
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    368 bytes stack frame, 400 bytes spill stores, 460 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 368 bytes cumulative stack size, 24000 bytes smem
ptxas info    : Compile time = 2.239 ms
ptxas info    : Function properties for helper
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
"""
# Printed by ptxas 12.
OLD = """\
ptxas info    : 77696 bytes gmem, 72 bytes cmem[3]
ptxas info    : Compiling entry function '_Z3fooPf' for 'sm_90a'
ptxas info    : Function properties for _Z3fooPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 16384 bytes smem, 360 bytes cmem[0]
"""
SERIALISED = """\
ptxas info    : (C7517) wgmma.wait_group is injected in around line 6 by compiler to allow use of registers in function 'k'
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas warning : Something that has no code
ptxas kernel.ptx, line 9; warning : A line is named in front
"""
ERRORS = """\
ptxas a, line 5.ptx, line 7; error   : Unknown symbol '%r99'
ptxas fatal   : Ptx assembly aborted due to errors
"""
PTX = """\
.version 8.6
.target sm_90a
.file 1 "C:\\\\some dir\\\\foo.py"
.visible .entry k() {
	.loc 1 12 3
	wgmma.fence.sync.aligned;
	add.s32 %r1, %r2, %r99;
	.loc 2 30 0, function_name $info, inlined_at 1 3 0
	ret;
}
.visible .entry other() {
	ret;
	.loc 1 0 0
	ret;
	.loc 7 3 0
	ret;
}
.file 2 "bar.py", 12345, 678
"""


def test_each_kernel_has_its_row():
    assert resources(TWO_KERNELS) == (
        Resources("helper", spill_stores=8, spill_loads=12, stack_frame=16),
        Resources(
            "k", registers=24, spill_stores=400, spill_loads=460, stack_frame=368, shared_bytes=24000, barriers=1
        ),
        Resources("k2", registers=4),
    )
    assert remarks(TWO_KERNELS, PTX) == ()


def test_an_older_ptxas_is_read():
    assert resources(OLD) == (Resources("_Z3fooPf", registers=40, shared_bytes=16384),)
    assert remarks(OLD, "") == ()


def test_remarks_have_codes_and_places():
    told = remarks(SERIALISED, PTX)
    assert [(each.severity, each.code, each.line) for each in told] == [
        ("info", "C7517", 6),
        ("info", "C7508", 0),
        ("warning", "", 0),
        ("warning", "", 9),
    ]
    assert [each.loc for each in told] == [Loc("C:\\some dir\\foo.py", 12, 3), None, None, Loc("bar.py", 30, 0)]
    assert str(told[0]).startswith("foo.py:12, PTX line 6: C7517 wgmma.wait_group is injected")
    assert not any(each.is_error for each in told)


def test_errors_are_reported_without_the_summary():
    (error,) = remarks(ERRORS, PTX)
    assert (error.is_error, error.line, error.text) == (True, 7, "Unknown symbol '%r99'")


def test_a_line_has_no_place_from_another_function_or_an_unknown_file():
    places = Places(PTX)
    assert [places.of(line) for line in (0, 1, 4, 5, 12, 14, 16, -3)] == [
        None,
        None,
        None,
        Loc("C:\\some dir\\foo.py", 12, 3),
        None,
        None,
        None,
        None,
    ]
    assert places.of(10_000) is None


def test_text_without_places_keeps_its_line_numbers():
    bare = without_places(PTX)
    assert ".loc" not in bare
    assert ".file" not in bare
    assert bare.splitlines()[6] == PTX.splitlines()[6]
    assert len(bare.splitlines()) == len(PTX.splitlines())


def test_foreign_text_has_no_surprises():
    for file in (Path(__file__).parents[1] / "foreign").glob("*.ptx"):
        text = file.read_text("utf-8")
        kept = [line for line in text.splitlines() if not line.strip().startswith((".loc", ".file"))]
        assert [line for line in without_places(text).splitlines() if line] == [line for line in kept if line]
