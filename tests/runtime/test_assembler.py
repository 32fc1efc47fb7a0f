from __future__ import annotations

import sys

import pytest
from tests.assembly import assemble_ok, sass_of
from tests.runtime.kernels import ERRORS, LOCAL_AND_FENCES, READS_TOO_EARLY, example, sums

from warploom.diagnostics import AssemblyError, Loc, PtxError, WarploomError
from warploom.runtime import Cache, assemble
from warploom.runtime.toolchain.tools import find

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"


@pytest.fixture
def ptxas():
    try:
        return find("ptxas")
    except WarploomError as error:
        pytest.skip(error.what)


class TestExamples:
    def test_the_blackwell_matmul(self):
        launch = example("first_blackwell_kernel", 192)
        assembly = assemble_ok(launch)
        assert assembly.target == "sm_100a"
        assert 0 < assembly.kernel("matmul").registers <= 128
        assert assembly.cubin.startswith(b"\x7fELF")
        code = sass_of(launch)
        assert code.count("UTCHMMA") == 4
        assert code.count("UTCHMMA", "2CTA") == 0
        assert code.count("UTMALDG", "2D") == 2
        assert code.count("LDTM", "x32") == 4
        assert code.counts["HGMMA"] == 0
        assert code.lints == ()

    def test_the_hopper_matmul(self):
        launch = example("first_kernel", 288)
        assert assemble_ok(launch).target == "sm_90a"
        code = sass_of(launch)
        assert code.count("HGMMA", "64x128x16", "F32", "BF16") == 4
        assert code.count("UTMALDG", "2D") == 2
        assert code.lints == ()


class TestResources:
    def test_of_one_kernel(self, ptxas):
        row = assemble(sums(20, 64)).kernel()
        assert row.name == "sums"
        assert 20 <= row.registers <= 64
        assert (row.spill_stores, row.spill_loads, row.stack_frame, row.barriers) == (0, 0, 0, 1)

    def test_of_several_kernels(self, ptxas):
        assembly = assemble(LOCAL_AND_FENCES)
        assert [row.name for row in assembly.kernels] == ["caller", "helper", "second"]
        assert assembly.kernel("second").shared_bytes == 77 * 4
        assert assembly.kernel("caller").stack_frame >= 64
        with pytest.raises(PtxError, match="NO_SUCH_ENTRY"):
            assembly.kernel()
        with pytest.raises(PtxError, match="NO_SUCH_ENTRY"):
            assembly.kernel("third")

    def test_lines_can_be_left_out_and_change_nothing_else(self, ptxas):
        launch = example("first_kernel", 288)
        whole, bare = assemble(launch.program), assemble(launch.program, lineinfo=False)
        assert whole.kernels == bare.kernels
        assert b"first_kernel.py" in whole.cubin
        assert b"first_kernel.py" not in bare.cubin

    @pytest.mark.parametrize("name", ["/jos\u00e9/k.py", "/\u7528\u6237/k.py", "/\udcff/k.py", '/a \\"b\\"/k.py'])
    @pytest.mark.parametrize("lineinfo", [True, False])
    def test_files_may_have_any_name(self, ptxas, tmp_path, name, lineinfo):
        """ptxas takes no other characters than those of ASCII, nor a quote in quotes."""
        text = f'{HEAD}.file 1 "{name}"\n.visible .entry k()\n{{\n\t.loc 1 3 0\n\tret; // \u00e9\n}}\n'
        assert assemble(text, lineinfo=lineinfo, cache=Cache(tmp_path)).kernels[0].name == "k"

    def test_another_target_is_the_callers_choice(self, ptxas):
        text = sums(4, 32).replace("sm_90a", "sm_90")
        assert assemble(text, "sm_90a").target == "sm_90a"
        assert assemble(text, "sm_100a").target == "sm_100a"
        assert assemble(text).target == "sm_90"


class TestLosses:
    def test_a_spill_is_an_error_that_says_how_much(self, ptxas):
        with pytest.raises(AssemblyError) as caught:
            assemble(sums(64, 24))
        row = assemble(sums(64, 24), strict=False).kernel()
        assert row.spill_stores > 0
        assert caught.value.code == "SLOW_CODE"
        for said in ("`sums`", "24 registers", f"{row.spill_stores} bytes stored", f"{row.spill_loads} bytes loaded"):
            assert said in caught.value.what
        assert "strict=False" in caught.value.advice

    def test_a_remark_on_wgmma_is_an_error_at_the_authors_line(self, ptxas):
        with pytest.raises(AssemblyError) as caught:
            assemble(READS_TOO_EARLY)
        assert caught.value.code == "SLOW_CODE"
        assert "C75" in str(caught.value)
        assert caught.value.loc is not None
        assert caught.value.loc.file == "author.py"
        assert caught.value.loc.line in (57, 58)
        assert "wait_group" in caught.value.advice

    def test_the_caller_may_take_them(self, ptxas):
        assembly = assemble(READS_TOO_EARLY, strict=False)
        assert assembly.losses
        assert all(remark.code.startswith("C75") for remark in assembly.remarks)
        assert assembly.cubin.startswith(b"\x7fELF")

    def test_cached_code_is_rejected_too(self, ptxas, tmp_path):
        cache = Cache(tmp_path)
        assemble(sums(64, 24), strict=False, cache=cache)
        with pytest.raises(AssemblyError, match="SLOW_CODE"):
            assemble(sums(64, 24), cache=cache)


class TestErrors:
    def test_all_are_reported_at_the_source_lines(self, ptxas):
        with pytest.raises(AssemblyError) as caught:
            assemble(ERRORS)
        text = str(caught.value)
        assert caught.value.code == "NOT_ASSEMBLED"
        assert caught.value.loc == Loc("author.py", 5, 0)
        for said in (
            "author.py:5",
            "%r99",
            "author.py:6",
            "tcgen05.wait",
            f"PTX line {ERRORS[: ERRORS.index('tcgen05')].count(chr(10)) + 1}",
        ):
            assert said in text

    def test_places_are_known_though_the_lines_are_left_out(self, ptxas):
        with pytest.raises(AssemblyError) as caught:
            assemble(ERRORS, lineinfo=False)
        assert caught.value.loc == Loc("author.py", 5, 0)

    def test_text_without_locations_is_reported_by_its_own_lines(self, ptxas):
        bare = "".join(line for line in ERRORS.splitlines(keepends=True) if not line.startswith((".loc", ".file")))
        with pytest.raises(AssemblyError) as caught:
            assemble(bare)
        number = 1 + next(index for index, line in enumerate(bare.splitlines()) if "%r99" in line)
        assert caught.value.loc == Loc("kernel.ptx", number)

    def test_errors_without_a_line(self, ptxas):
        huge = LOCAL_AND_FENCES.replace("word[77]", "word[77777]")
        with pytest.raises(AssemblyError, match="NOT_ASSEMBLED") as caught:
            assemble(huge)
        assert "too much shared data" in caught.value.what
        with pytest.raises(AssemblyError, match="NOT_ASSEMBLED") as caught:
            assemble(sums(4, 32), "sm_5000")
        assert "sm_5000" in caught.value.what

    def test_very_many_errors_are_truncated(self, ptxas):
        many = ERRORS.replace("ret;", "add.s32 %r1, %r2, %x;\n" * 500 + "ret;")
        with pytest.raises(AssemblyError) as caught:
            assemble(many)
        assert len(str(caught.value).splitlines()) < 30
        assert caught.value.notes[-1].endswith("more")

    def test_a_text_that_is_not_ptx(self, ptxas):
        with pytest.raises(WarploomError, match="SYNTAX"):
            assemble("hello")
        with pytest.raises(AssemblyError, match="NOT_ASSEMBLED"):
            assemble(".target sm_90a\n\0")

    @pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
    def test_an_assembler_that_dies_silently(self, tmp_path, monkeypatch):
        script = tmp_path / "ptxas"
        script.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo V1.2.3; exit 0; }\nkill -SEGV $$\n')
        script.chmod(0o755)
        monkeypatch.setenv("WARPLOOM_PTXAS", str(script))
        with pytest.raises(AssemblyError) as caught:
            assemble(sums(4, 32))
        assert "-11" in caught.value.what


class TestCaching:
    def test_the_second_time_nothing_is_run(self, ptxas, tmp_path, monkeypatch):
        cache = Cache(tmp_path)
        first = assemble(sums(20, 64), cache=cache)
        monkeypatch.setattr("warploom.runtime.toolchain.assembler._run", lambda *_: pytest.fail("ptxas was run"))
        assert assemble(sums(20, 64), cache=cache) == first

    def test_everything_that_matters_is_in_the_key(self, ptxas, tmp_path, monkeypatch):
        cache = Cache(tmp_path)
        text = sums(20, 64).replace("sm_90a", "sm_90")
        assemble(text, cache=cache)
        for change in (
            lambda: assemble(text.replace("bar.sync 0", "bar.sync 1"), cache=cache),
            lambda: assemble(text, "sm_90a", cache=cache),
            lambda: assemble(text, opt=1, cache=cache),
            lambda: assemble(text, lineinfo=False, cache=cache),
        ):
            before = cache.usage().entries
            change()
            assert cache.usage().entries == before + 1
        other = type(ptxas)(ptxas.name, ptxas.path, ptxas.origin, "0.0.1")
        monkeypatch.setattr("warploom.runtime.toolchain.assembler.find", lambda _: other)
        before = cache.usage().entries
        assemble(text, cache=cache)
        assert cache.usage().entries == before + 1

    def test_without_lines_a_moved_line_is_the_same_code(self, ptxas, tmp_path):
        cache = Cache(tmp_path)
        assemble(sums(20, 64), lineinfo=False, cache=cache)
        assemble(sums(20, 64).replace(".loc 1 12", ".loc 1 13"), lineinfo=False, cache=cache)
        assert cache.usage().entries == 1

    def test_errors_are_not_cached(self, ptxas, tmp_path):
        cache = Cache(tmp_path)
        with pytest.raises(AssemblyError):
            assemble(ERRORS, cache=cache)
        assert cache.usage().entries == 0
