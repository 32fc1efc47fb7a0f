"""Prepared programs on disk: the same results, the same messages, and nothing is parsed again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warploom
from warploom import WarploomError, launch
from warploom.launch_file import load
from warploom.machine.engine import selection
from warploom.machine.translate import prepared, translator
from warploom.machine.translate.stored import packed, unpacked
from warploom.machine.translate.translator import translate
from warploom.ptx.syntax.parser import parse
from warploom.runtime.cache.disk import user_cache
from warploom.runtime.cache.fingerprint import source_version

DATA = Path(warploom.__file__).parent / "data"
PTX = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 far)
{
 .reg .pred %p<4>; .reg .b32 %r<80>; .reg .b64 %rd<8>;
 .shared .align 16 .b8 sh[512];
 ld.param.u64 %rd0, [out]; ld.param.u32 %r2, [far];
 mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1;
 mov.u32 %r3, sh; shl.b32 %r4, %r0, 2; add.u32 %r3, %r3, %r4;
 st.shared.u32 [%r3], %r0; bar.sync 0; ld.shared.u32 %r5, [%r3];
 and.b32 %r6, %r0, 3; setp.eq.u32 %p1, %r6, 1; @%p1 bra ODD;
""" + "".join(f" mad.lo.u32 %r{8 + at}, %r5, {at + 3}, {at};\n" for at in range(64)) + """
 bra.uni END;
ODD:
 mov.u32 %r71, 5;
END:
 mul.wide.u32 %rd2, %r2, 4; add.u64 %rd0, %rd0, %rd2;
 st.global.u32 [%rd0], %r71;
 ret;
}
""" + "// padding\n" * 800  # fmt: skip


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache of its own, and a function that forgets what is in memory, as another process would start."""
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    if source_version() is None:
        pytest.skip("the library's files were changed after they were imported")

    def forget():
        prepared.store_waiting()
        monkeypatch.setattr(prepared, "MODULES", prepared.Kept(1 << 20))
        monkeypatch.setattr(prepared, "PROGRAMS", prepared.Kept(1 << 20))

    forget()
    return forget


def run(**options):
    out = np.full(128, 99, np.uint32)
    launch(PTX, grid=1, block=128, args=[out, 0], **options)
    return out


@pytest.mark.parametrize("engine", ["numpy", "auto"])
def test_a_stored_program_runs_without_being_parsed(fresh, monkeypatch, engine):
    monkeypatch.setenv("WARPLOOM_ENGINE", engine)
    expected = np.where(np.arange(128) % 4 == 1, 5, np.arange(128) * 66 + 63)
    runs = [run(), run(schedule="random", seed=3)]
    fresh()

    def refuse(*_):
        raise AssertionError("parsed again")

    monkeypatch.setattr(prepared, "parse", refuse)
    monkeypatch.setattr(prepared, "translate", refuse)
    runs += [run(), run(schedule="random", seed=3), run()]
    for found in runs:
        assert (found == expected).all()


@pytest.mark.parametrize("name", ["library", "calls"])
def test_a_program_that_is_read_back_is_the_same(name):
    """Its parts are equal, and its instructions are those of its kernel's body."""
    calls = PTX.replace(".visible .entry", ".func f() { ret; }\n.visible .entry").replace("bar.sync 0;", "call f;", 1)
    module = parse(PTX if name == "library" else calls)
    before = translate(module, module.kernels[-1], follow_x=128)
    after = unpacked(packed(before))
    assert after is not None
    assert (after.module, after.kernel, after.layout) == (before.module, before.kernel, before.layout)
    assert [(each.targets, each.next) for each in after.flow.blocks] == [
        (each.targets, each.next) for each in before.flow.blocks
    ]
    assert [len(each.ops) for each in after.flow.blocks] == [len(each.ops) for each in before.flow.blocks]
    assert after.ops == before.ops
    assert all(one.form is other.form for one, other in zip(after.ops, before.ops, strict=True))
    body = {id(each) for each in after.kernel.body}
    assert {id(op.instruction) for op in after.ops} <= body
    assert after.module.kernels[0].body == before.module.kernels[0].body


def test_a_fault_has_the_same_message(fresh):
    run()
    messages = []
    for _ in range(2):
        with pytest.raises(WarploomError) as caught:
            launch(PTX, grid=1, block=128, args=[np.zeros(128, np.uint32), 4000])
        messages.append(str(caught.value))
        fresh()
    assert messages[0] == messages[1]
    assert "st.global.u32" in messages[0]


def test_a_damaged_entry_is_prepared_anew(fresh):
    run()
    (found, _), *_ = prepared.PROGRAMS._values.values()
    whole = packed(found.program)
    assert unpacked(whole) is not None
    assert [unpacked(part) for part in (b"", whole[: len(whole) // 2], b"no pickle", whole[1:])] == [None] * 4
    user_cache().put(found.key, whole[: len(whole) // 2])
    fresh()
    assert (run() == np.where(np.arange(128) % 4 == 1, 5, np.arange(128) * 66 + 63)).all()


def test_tables_of_native_code_are_read_back(fresh, monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setenv("WARPLOOM_ENGINE", "native")
    expected = np.where(np.arange(128) % 4 == 1, 5, np.arange(128) * 66 + 63)
    assert (run() == expected).all()
    fresh()
    with monkeypatch.context() as patch:
        patch.setattr(translator.Program, "_written", lambda *_: pytest.fail("a text was written again"))
        assert (run() == expected).all()
    (found, _), *_ = prepared.PROGRAMS._values.values()
    tables = [text.table for text in found.program.stored.values() if text.table is not None]
    assert tables


def test_tables_of_another_engine_are_written_anew(fresh, monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setenv("WARPLOOM_ENGINE", "native")
    run()
    fresh()
    engine = selection.engine()
    assert engine is not None
    monkeypatch.setattr(engine, "version", "another")
    written = list[str]()
    write = translator.Program._written

    def counted(self, name, *given):
        written.append(name)
        return write(self, name, *given)

    monkeypatch.setattr(translator.Program, "_written", counted)
    assert (run() == np.where(np.arange(128) % 4 == 1, 5, np.arange(128) * 66 + 63)).all()
    assert written
    fresh()
    again = len(written)
    run()
    assert len(written) == again, "the new tables have replaced the old ones"


@pytest.mark.parametrize("engine", ["numpy", "auto"])
@pytest.mark.parametrize("name", ["matmul_tma_sm90", "matmul_persistent_sm100"])
def test_matmuls_whose_mmas_are_issued_together_are_read_back(fresh, monkeypatch, engine, name):
    monkeypatch.setenv("WARPLOOM_ENGINE", engine)
    file = load(DATA / f"{name}.launch.json")
    for _ in range(2):
        fresh()
        buffers = file.allocate()
        launch(file.launch(buffers))
        assert file.check(buffers) == []
    (found, _), *_ = prepared.PROGRAMS._values.values()
    assert bool(found.program.batches) == (selection.engine() is not None)
