"""The command line: output, exit statuses, and no traceback for any input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from warploom.checker.codes import CODES
from warploom.checker.rules import ASSUMPTIONS, RELAXATIONS
from warploom.cli import main
from warploom.diagnostics import Diag

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
KERNEL = (
    HEAD
    + """
.visible .entry twice(.param .u64 in, .param .u64 out, .param .u32 count)
{
  .reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .f32 %f<3>; .reg .pred %p;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %tid.x;
  mad.lo.s32 %r1, %r0, 32, %r1;
  ld.param.u32 %r2, [count];
  setp.ge.u32 %p, %r1, %r2;
  @%p bra done;
  ld.param.u64 %rd0, [in];
  ld.param.u64 %rd1, [out];
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd0, %rd2;
  add.u64 %rd4, %rd1, %rd2;
  ld.global.f32 %f0, [%rd3];
  add.f32 %f1, %f0, %f0;
  st.global.f32 [%rd4], %f1;
done:
  ret;
}
"""
)
FILE = {
    "ptx": "twice.ptx",
    "grid": [3, 1, 1],
    "block": [32, 1, 1],
    "buffers": {"x": {"dtype": "float32", "shape": [77]}, "y": {"dtype": "float32", "shape": [77], "output": True}},
    "args": [{"pointer": "x"}, {"pointer": "y"}, {"u32": 77}],
    "compare": [{"expr": "y == x + x"}],
}


def write(folder: Path, kernel: str = KERNEL, **parts: object) -> str:
    (folder / "twice.ptx").write_text(kernel)
    path = folder / "twice.launch.json"
    path.write_text(json.dumps({**FILE, **parts}))
    return str(path)


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, captured.out, captured.err


def body(text: str) -> str:
    """A kernel of one lane's worth of instructions."""
    return f"{HEAD}.visible .entry k()\n{{\n.reg .b32 %r; .reg .b64 %rd; .reg .pred %p;\n{text}\n}}\n"


class TestRun:
    def test_a_correct_result_exits_0_and_prints_counts(self, tmp_path, capsys):
        status, out, err = call(capsys, "run", write(tmp_path))
        assert (status, err) == (0, "")
        assert "ok        y == x + x" in out
        assert re.search(r"\badd +\d", out)
        assert "warp instructions" in out

    def test_a_mismatch_exits_1_with_its_place(self, tmp_path, capsys):
        status, out, _ = call(capsys, "run", write(tmp_path, compare=[{"expr": "y == x"}, {"expr": "y == x * 2"}]))
        assert status == 1
        assert "MISMATCH  `y == x` does not hold for 77 of 77 elements: first at [0]" in out
        assert "ok        y == x * 2" in out

    @pytest.mark.parametrize("end", ["ret;", "trap;"])
    def test_the_output_of_printf_is_shown(self, tmp_path, capsys, end):
        text = "\\x1b[31mred [bold]9[/bold]\\n"
        codes = ", ".join(str(each) for each in (*text.encode().decode("unicode_escape").encode(), 0))
        kernel = f"""{HEAD}.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 format[32] = {{{codes}}};
.visible .entry k()
{{
.reg .b64 %rd;
mov.u64 %rd, format; cvta.global.u64 %rd, %rd;
{{ .param .b64 p0; .param .b64 p1; .param .b32 r0;
st.param.b64 [p0], %rd; st.param.b64 [p1], 0;
call.uni (r0), vprintf, (p0, p1); }}
{end}
}}
"""
        path = write(tmp_path, kernel, grid=[1, 1, 1], block=[1, 1, 1], buffers={}, args=[], compare=[])
        status, out, err = call(capsys, "run", path)
        assert (status, "TRAP" in err) == ((5, False) if end == "ret;" else (2, True))
        assert out.startswith("\N{REPLACEMENT CHARACTER}[31mred [bold]9[/bold]\n"), "without control characters"
        _, out, _ = call(capsys, "run", path, "--json")
        assert json.loads(out)["printed"] == "\x1b[31mred [bold]9[/bold]\n"

    def test_a_file_without_compare_exits_5(self, tmp_path, capsys):
        status, out, _ = call(capsys, "run", write(tmp_path, compare=[], expect="twice x"))
        assert status == 5
        assert "nothing compared: the file has no `compare`; it ran without a fault" in out
        assert "the file expects: twice x" in out

    def test_json(self, tmp_path, capsys):
        wrong = [{"expr": "y == x"}, {"expr": "y == x + x", "atol": 0.5}]
        status, out, _ = call(capsys, "run", write(tmp_path, compare=wrong, seed=3), "--json", "--schedule", "lazy")
        document = json.loads(out)
        assert status == 1
        assert (document["outcome"], document["schedule"], document["data_seed"]) == ("mismatch", "lazy", 3)
        assert document["instructions"] == sum(document["counts"].values()) > 0
        first, second = document["comparisons"]
        assert (first["ok"], first["mismatch"]["where"], first["mismatch"]["count"]) == (False, [0], 77)
        assert (second["ok"], second["mismatch"], second["atol"]) == (True, None, 0.5)

    @pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
    def test_schedules(self, tmp_path, capsys, schedule):
        status, out, _ = call(capsys, "run", write(tmp_path), "--schedule", schedule, "--seed", "5")
        assert status == 0
        assert schedule in out

    def test_a_recording_is_replayed(self, tmp_path, capsys):
        record = tmp_path / "choices.json"
        arguments = ("run", write(tmp_path), "--json")
        _, first, _ = call(capsys, *arguments, "--schedule", "random", "--seed", "8", "--record", str(record))
        status, second, _ = call(capsys, *arguments, "--schedule", str(record))
        assert status == 0
        assert json.loads(first)["counts"] == json.loads(second)["counts"]

    def test_a_recording_is_compared_with_an_eager_run_where_the_file_compares_nothing(self, tmp_path, capsys):
        record = str(tmp_path / "choices.json")
        path = write(tmp_path, compare=[])
        assert call(capsys, "run", path, "--schedule", "random", "--record", record)[0] == 5
        status, out, _ = call(capsys, "run", path, "--schedule", record)
        assert status == 5
        assert "nothing compared" in out

    def test_launches_that_a_function_returns(self, capsys):
        status, out, _ = call(capsys, "run", "tests.checker.launches:both")
        assert status == 1
        assert "2 launches, 2 not ok" in out
        assert "MISMATCH  disagreement under `" in out
        status, out, _ = call(capsys, "run", "tests.checker.launches:clean", "--json")
        assert status == 5
        assert (json.loads(out)["file"], json.loads(out)["outcome"]) == ("tests.checker.launches:clean", "not compared")
        status, _, err = call(capsys, "run", "tests.checker.launches:missing")
        assert (status, "has no attribute" in err) == (3, True)

    def test_a_recording_that_cannot_be_written(self, tmp_path, capsys):
        record = str(tmp_path / "none" / "r.json")
        status, _, err = call(capsys, "run", write(tmp_path), "--schedule", "lazy", "--record", record)
        assert status == 3
        assert err.startswith("UNWRITABLE_FILE")

    def test_by_default_several_schedules_are_tried_and_a_failing_one_is_recorded(self, tmp_path, capsys):
        """Six CTAs add to one word by load and store: right only if no two overlap."""
        kernel = f"""{HEAD}.visible .entry k(.param .u64 out)
            {{ .reg .b32 %r<2>; .reg .b64 %rd; .reg .pred %p; mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 0; @%p bra END;
            ld.param.u64 %rd, [out]; ld.global.u32 %r0, [%rd]; add.u32 %r0, %r0, 1; st.global.u32 [%rd], %r0; END: ret; }}"""
        parts = {
            "grid": [6, 1, 1],
            "buffers": {"y": {"dtype": "uint32", "shape": [1], "init": "zeros", "output": True}},
            "args": [{"pointer": "y"}],
            "compare": [{"expr": "y == 6"}],
        }
        path, record = write(tmp_path, kernel, **parts), tmp_path / "lost.json"
        status, out, _ = call(capsys, "run", path, "--schedule", "eager")
        assert status == 0
        status, out, _ = call(capsys, "run", path, "--record", str(record))
        assert status == 1
        assert "MISMATCH  mismatch under `" in out
        status, out, _ = call(capsys, "run", path, "--schedule", str(record))
        assert status == 1
        status, out, _ = call(capsys, "run", write(tmp_path), "--budget", "5")
        assert status == 0
        assert "the same under 5 schedules" in out

    def test_seeds_change_the_data(self, tmp_path, capsys):
        path = write(tmp_path, compare=[{"expr": "y == 0"}])
        lefts = set()
        for seed in ("1", "2", "2"):
            _, out, _ = call(capsys, "run", path, "--json", "--data-seed", seed)
            lefts.add(json.loads(out)["comparisons"][0]["mismatch"]["left"])
        assert len(lefts) == 2

    def test_a_fault_exits_2(self, tmp_path, capsys):
        status, _, err = call(capsys, "run", write(tmp_path, args=[{"pointer": "x"}, {"pointer": "y"}, {"u32": 96}]))
        assert status == 2
        assert err.startswith("OUT_OF_BOUNDS")

    def test_inputs_cannot_be_written(self, tmp_path, capsys):
        status, _, err = call(capsys, "run", write(tmp_path, args=[{"pointer": "y"}, {"pointer": "x"}, {"u32": 77}]))
        assert status == 2
        assert err.startswith("READ_ONLY")

    def test_an_endless_loop_reaches_the_limit(self, tmp_path, capsys):
        path = write(tmp_path, body("again: add.u32 %r, %r, 1; bra again;"), args=[], compare=[])
        status, out, err = call(capsys, "run", path, "--limit", "5000", "--json")
        assert status == 2
        assert json.loads(out)["error"]["code"] in ("LIMIT", "NO_PROGRESS", "DEADLOCK")
        assert err.startswith(("LIMIT", "NO_PROGRESS", "DEADLOCK"))

    def test_a_trap_exits_2(self, tmp_path, capsys):
        status, _, err = call(capsys, "run", write(tmp_path, body("trap;"), args=[], compare=[]))
        assert status == 2
        assert err.startswith("TRAP")

    @pytest.mark.parametrize(
        ("parts", "code"),
        [
            ({"grid": [0, 1, 1]}, "BAD_LAUNCH_FILE"),
            ({"args": [{"pointer": "x"}]}, "BAD_LAUNCH"),
            ({"entry": "other"}, "NO_SUCH_ENTRY"),
            ({"ptx": "gone.ptx"}, "BAD_LAUNCH_FILE"),
            ({"shared_bytes": 1 << 30}, "TOO_MUCH_SHARED"),
        ],
    )
    def test_bad_input_exits_3(self, tmp_path, capsys, parts, code):
        status, out, err = call(capsys, "run", write(tmp_path, **parts), "--json")
        assert status == 3
        assert err.startswith(f"{code}:")
        assert json.loads(out)["error"]["code"] == code

    @pytest.mark.parametrize(
        ("command", "name", "advised"),
        [
            ("run", "k.ptx", "`warploom new-launch {}`"),
            ("run", "k.py", "`warploom triton {}`"),
            ("run", "k.cu", "`warploom cuda {}`"),
            ("check", "k.ptx", "`warploom new-launch {}`"),
            ("check", "k.py", "`--check`"),
            ("triton", "k.cu", "`warploom cuda {}`"),
            ("triton", "k.launch.json", "`warploom run {}`"),
            ("cuda", "k.py", "`warploom triton {}`"),
            ("cuda", "k.ptx", "`warploom new-launch {}`"),
        ],
    )
    def test_a_file_for_another_command_names_that_command(self, tmp_path, capsys, command, name, advised):
        (tmp_path / name).write_text("")
        status, _, err = call(capsys, command, str(tmp_path / name))
        assert status == 3
        assert "WRONG_KIND_OF_FILE" in err
        assert f"`warploom {command}` takes" in err
        assert advised.format(tmp_path / name) in err

    @pytest.mark.parametrize("given", [("--nvcc", "-DN=1"), ("--nvcc=-DN=1",), ("--nvcc", "-DN=1", "--sms", "4")])
    def test_flags_of_nvcc_begin_with_a_dash(self, monkeypatch, given):
        seen: list[tuple[object, ...]] = []

        def run_program(source: Path, arguments: list[str], **options: object) -> int:
            seen.append((str(source), arguments, options["nvcc"]))
            return 0

        monkeypatch.setattr("warploom.commands.cuda.run_program", run_program)
        assert main(["cuda", *given, "k.cu", "--nvcc", "-x"]) == 0
        assert seen == [("k.cu", ["--nvcc", "-x"], "-DN=1")]
        assert main(["cuda", "k.cu", "--nvcc", "-x"]) == 0
        assert seen[1:] == [("k.cu", ["--nvcc", "-x"], "")]

    def test_a_directory_is_not_a_launch_file(self, tmp_path, capsys):
        status, _, err = call(capsys, "run", str(tmp_path))
        assert (status, "the file is a directory\n" in err) == (3, True)

    def test_a_launch_file_is_not_a_schedule(self, tmp_path, capsys):
        file = write(tmp_path)
        status, _, err = call(capsys, "run", "--schedule", file, file)
        assert status == 3
        assert "it is not a recorded schedule; `warploom run --record`" in err
        assert err.count("BAD_SCHEDULE") == 1

    def test_bad_ptx_exits_3(self, tmp_path, capsys):
        status, _, err = call(capsys, "run", write(tmp_path, "not ptx"))
        assert status == 3
        assert err.startswith("SYNTAX")

    def test_control_characters_do_not_reach_the_terminal(self, tmp_path, capsys):
        _, out, _ = call(capsys, "run", write(tmp_path, expect="\x1b[2Jgone", compare=[]))
        assert "\x1b" not in out
        _, _, err = call(capsys, "run", write(tmp_path, KERNEL.replace("mov.u32", "mov.\x1b[2J", 1)))
        assert "\x1b" not in err

    def test_markup_is_not_obeyed(self, tmp_path, capsys):
        _, out, _ = call(capsys, "run", write(tmp_path, expect="[red]x[/red] [/]", compare=[]))
        assert "[red]x[/red] [/]" in out


class TestManyFiles:
    def files(self, folder: Path) -> list[str]:
        parts = {
            "right": {},
            "wrong": {"compare": [{"expr": "y == x"}]},
            "silent": {"compare": []},
            "faulty": {"args": [{"pointer": "x"}, {"pointer": "y"}, {"u32": 96}]},
            "unreadable": {"grid": [0, 1, 1]},
        }
        for name, part in parts.items():
            (folder / name).mkdir(exist_ok=True)
            write(folder / name, **part)
        return [str(folder / name / "twice.launch.json") for name in parts]

    def test_a_table_and_the_worst_status(self, tmp_path, capsys):
        right, wrong, silent, faulty, unreadable = self.files(tmp_path)
        status, out, err = call(capsys, "run", right, wrong, silent, faulty, unreadable)
        assert status == 3
        assert "5 launch files, 4 not ok" in out
        for word in ("ok", "mismatch", "not compared", "OUT_OF_BOUNDS", "BAD_LAUNCH_FILE"):
            assert re.search(rf"^.*launch\.json +{word}\b", out, re.MULTILINE), word
        assert "MISMATCH  `y == x`" in out
        assert "OUT_OF_BOUNDS:" in err
        assert "BAD_LAUNCH_FILE:" in err

    def test_the_order_of_statuses(self, tmp_path, capsys):
        right, wrong, silent, faulty, unreadable = self.files(tmp_path)
        chosen = {(right,): 0, (right, right): 0, (right, silent): 5, (silent, wrong): 1, (faulty, wrong): 2}
        for files, expected in {**chosen, (unreadable, faulty): 3}.items():
            assert call(capsys, "run", *files)[0] == expected

    def test_json_has_a_document_for_each(self, tmp_path, capsys):
        files = self.files(tmp_path)
        status, out, _ = call(capsys, "run", *files, "--json", "--schedule", "random", "--seed", "9")
        documents = json.loads(out)["files"]
        assert status == 3
        assert [document["file"] for document in documents] == files
        assert [d["outcome"] for d in documents] == ["ok", "mismatch", "not compared", "error", "error"]
        assert {(d["schedule"], d["seed"]) for d in documents} == {("random", 9)}

    def test_a_recording_is_of_one_file(self, tmp_path, capsys):
        files = self.files(tmp_path)[:2]
        status, _, err = call(capsys, "run", *files, "--record", str(tmp_path / "r.json"))
        assert status == 3
        assert "--record takes one launch file" in err

    def test_an_internal_failure_of_one_does_not_stop_the_others(self, tmp_path, capsys, monkeypatch):
        import warploom.commands.run as module

        right, wrong, *_ = self.files(tmp_path)
        load = module.load
        monkeypatch.setattr(module, "load", lambda path, **k: 1 // 0 if str(path) == right else load(path, **k))
        status, out, err = call(capsys, "run", right, wrong)
        assert status == 4
        assert "INTERNAL" in err
        assert "MISMATCH  `y == x`" in out


def test_json_of_a_fault_keeps_file_schedule_seed_and_the_path_of_the_line(tmp_path, capsys):
    path = write(tmp_path, args=[{"pointer": "x"}, {"pointer": "y"}, {"u32": 96}])
    _, out, _ = call(capsys, "run", path, "--json", "--schedule", "random", "--seed", "4", "--data-seed", "2")
    document = json.loads(out)
    assert (document["file"], document["schedule"]) == (path, "random")
    assert (document["seed"], document["data_seed"]) == (4, 2)
    line = next(n for n, text in enumerate(KERNEL.splitlines(), 1) if "ld.global" in text)
    assert document["error"]["where"] == f"{tmp_path / 'twice.ptx'}:{line}"


class TestPtx:
    def test_describes_a_module(self, tmp_path, capsys):
        write(tmp_path)
        status, out, _ = call(capsys, "ptx", str(tmp_path / "twice.ptx"))
        assert status == 0
        assert "PTX 8.6 for sm_90a" in out
        assert ".u64, .u64, .u32" in out
        assert "every instruction form is supported" in out

    def test_many_unsupported_forms_are_listed_without_a_search_for_each(self, tmp_path, capsys, monkeypatch):
        from warploom.ptx.isa import table

        asked, nearest = [], table.nearest
        monkeypatch.setattr(table, "nearest", lambda opcode: asked.append(opcode) or nearest(opcode))
        lines = "\n".join(f" add.odd{at}.u32 %r1, %r1, 1;" for at in range(300))
        text = f".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{{\n .reg .b32 %r<4>;\n{lines}\n ret;\n}}\n"
        (tmp_path / "many.ptx").write_text(text)
        status, out, _ = call(capsys, "ptx", str(tmp_path / "many.ptx"), "--unsupported", "--json")
        forms = [row["form"] for row in json.loads(out)["unsupported"]]
        assert (status, forms) == (1, [f"add.odd{at}.u32" for at in range(300)])
        assert len(asked) == table.MOST_NEAREST
        _, out, _ = call(capsys, "ptx", str(tmp_path / "many.ptx"), "--unsupported")
        assert f"and {300 - table.MOST_NEAREST} more" in out

    def test_lists_all_unsupported_forms_at_once(self, tmp_path, capsys):
        write(tmp_path, KERNEL.replace("add.f32 %f1", "addd.f32 %f1").replace("setp.ge.u32", "setp.gee.u32"))
        status, out, _ = call(capsys, "ptx", str(tmp_path / "twice.ptx"), "--unsupported", "--json")
        forms = json.loads(out)["unsupported"]
        assert status == 1
        assert [row["form"] for row in forms] == ["setp.gee.u32", "addd.f32"]
        assert [KERNEL.splitlines()[row["line"] - 1].split()[0] for row in forms] == ["setp.ge.u32", "add.f32"]
        assert forms[0]["nearest"].startswith("setp")

    def test_json_describes_kernels(self, tmp_path, capsys):
        write(tmp_path)
        _, out, _ = call(capsys, "ptx", str(tmp_path / "twice.ptx"), "--json")
        document = json.loads(out)
        assert document["version"] == "8.6"
        assert document["kernels"][0]["name"] == "twice"
        assert document["kernels"][0]["params"] == [".u64", ".u64", ".u32"]

    def test_missing_and_binary_files(self, tmp_path, capsys):
        (tmp_path / "binary.ptx").write_bytes(b"\xff\x00")
        for name in ("none.ptx", "binary.ptx", "."):
            status, _, err = call(capsys, "ptx", str(tmp_path / name))
            assert status == 3
            assert err.startswith("UNREADABLE_FILE")


class TestDocs:
    def test_lists_and_prints_pages(self, capsys):
        status, out, _ = call(capsys, "docs")
        assert status == 0
        pages = {file.stem for file in (Path(__file__).parents[2] / "docs").glob("*.md")} - {"README"}
        assert all(re.search(rf"^ *{page} ", out, re.MULTILINE) for page in pages)
        for name in ("launch-files", "docs/launch-files.md"):
            _, out, _ = call(capsys, "docs", name)
            assert out == (Path(__file__).parents[2] / "docs" / "launch-files.md").read_text("utf-8")

    def test_suggests(self, capsys):
        status, _, err = call(capsys, "docs", "launchfiles")
        assert (status, "there is no page `launchfiles` (did you mean launch-files?).\n" in err) == (3, True)

    @pytest.mark.parametrize("entry", Diag, ids=lambda entry: entry.name)
    def test_pages_that_messages_name_exist(self, entry):
        from warploom.commands.docs import folder

        pages = re.findall(r"`warploom docs ([\w-]+)`", "".join(entry.value))
        assert all((folder() / f"{page}.md").is_file() for page in pages)
        assert "docs/" not in "".join(entry.value), "an installed warploom has no docs/; name the command"


class TestExplain:
    @pytest.mark.parametrize("code", Diag.__members__)
    def test_every_code(self, capsys, code):
        status, out, _ = call(capsys, "explain", code.lower())
        assert status == 0
        assert out.startswith(f"{code}: ")
        assert "do: " in out
        sentence = out.splitlines()[0].removeprefix(f"{code}: ")
        assert len(sentence) > 15, "a code alone explains nothing"
        assert "{" not in out

    @pytest.mark.parametrize("name", [*CODES, *RELAXATIONS, *ASSUMPTIONS])
    def test_every_code_relaxation_and_assumption_of_a_check(self, capsys, name):
        status, out, _ = call(capsys, "explain", name)
        assert status == 0
        assert out.startswith(f"{name}: ")
        words = " ".join(out.split())
        if name in CODES and name not in Diag.__members__:
            assert CODES[name].title in words
            assert " ".join(CODES[name].advice.split()) in words
        assert name in Diag.__members__ or any(each in words for each in ("of a check", "relaxation", "assumption"))

    def test_an_instruction(self, capsys):
        status, out, _ = call(capsys, "explain", "mbarrier.try_wait.parity.shared::cta.b64")
        assert status == 0
        assert out.count("operands") == 1, "three orders of the same modifiers are one entry"
        assert "waits a in shared memory" in out
        assert "semantics: warploom.machine.instructions.mbarrier" in out
        assert "reference: PTX ISA, `mbarrier.try_wait.parity`" in out

    def test_a_group_of_instructions_and_one_that_is_left_out(self, capsys):
        assert "mbarrier.arrive.expect_tx" in call(capsys, "explain", "mbarrier")[1]
        assert "is not modelled: " in call(capsys, "explain", "tex.2d")[1]

    def test_every_family_of_the_table_is_explained(self, capsys):
        from warploom.commands.explain import _facts, _semantics
        from warploom.ptx.isa import FORMS

        for row in FORMS:
            assert all(text for _, text in _facts(row)), row.template
            assert _semantics(row.family).startswith("warploom.machine.")

    def test_lists_all(self, capsys):
        _, out, _ = call(capsys, "explain")
        words = (line.split() for line in out.splitlines())
        first = [line[0] for line in words if line]
        assert [each for each in first if each in Diag.__members__] == list(Diag.__members__)
        assert set(CODES) <= set(first)
        assert "no operation in flight can end a wait" in out

    def test_suggests(self, capsys):
        status, _, err = call(capsys, "explain", "DEADLOK")
        assert status == 3
        assert "Did you mean DEADLOCK?" in err
        assert "Did you mean FENCE_PROXY?" in call(capsys, "explain", "FENCE_PROXI")[2]


@pytest.mark.parametrize(
    "arguments", [[], ["rum"], ["run"], ["run", "x", "--seed", "-1"], ["run", "x", "--limit", "many"]]
)
def test_wrong_commands_exit_3(capsys, arguments):
    status, _, err = call(capsys, *arguments)
    assert status == 3
    assert err.startswith("BAD_COMMAND")
    assert "--help" in err


def test_comparisons_of_slices(tmp_path, capsys):
    right, wrong = {"expr": "y[1:9] == x[1:9] * 2"}, {"expr": "y[::2] == x[::2]"}
    status, out, _ = call(capsys, "run", write(tmp_path, compare=[right]))
    assert status == 0
    assert "ok        y[1:9] == x[1:9] * 2" in out
    status, out, err = call(capsys, "run", write(tmp_path, compare=[right, wrong]))
    assert status == 1
    assert "ok        y[1:9]" in out + err
    assert "MISMATCH" in out + err


def test_an_internal_error_is_a_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("warploom.commands.run.load", lambda *a, **k: 1 // 0)
    status, _, err = call(capsys, "run", write(tmp_path))
    assert status == 4
    assert err.startswith("INTERNAL: Internal error in warploom: ZeroDivisionError")
    monkeypatch.setenv("WARPLOOM_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["run", write(tmp_path)])


def test_running_out_of_memory_is_a_sentence(tmp_path, capsys, monkeypatch):
    def refuse(*arguments, **keywords):
        raise MemoryError("Unable to allocate 1.00 TiB")

    monkeypatch.setattr("warploom.commands.run.load", refuse)
    status, _, err = call(capsys, "run", write(tmp_path))
    assert status == 3
    assert err.startswith("OUT_OF_MEMORY: Not enough memory on this computer: Unable to allocate 1.00 TiB.")


def test_an_interrupt_is_quiet(tmp_path, capsys, monkeypatch):
    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr("warploom.commands.run.load", interrupt)
    assert call(capsys, "run", write(tmp_path)) == (130, "", "interrupted\n")


def test_the_installed_command(tmp_path):
    """As a user calls it: in a process, and with a reader that closes the pipe early."""
    command = [sys.executable, "-m", "warploom.cli"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"warploom \d+\.\d+\.\d+\n", version.stdout)
    run = subprocess.run([*command, "run", write(tmp_path)], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    piped = subprocess.run(
        f"{sys.executable} -m warploom.cli explain | head -n 1", shell=True, capture_output=True, text=True, check=True
    )
    assert piped.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("ptx", "matmul", f"{'9' * 5000}x1x1"),
        ("ptx", "matmul", "4294967296x1x1"),
        ("ptx", "matmul", "\N{ARABIC-INDIC DIGIT THREE}x3x3"),
        ("ptx", "blockwise_matmul", "2x64x64x64"),
        ("ptx", "block_scaled_matmul", "2x64x64x64"),
        ("ptx", "matmul", "8x8x8", "--unsupported"),
        ("tune", f"{'9' * 5000}x1x1"),
        ("tune", "0x1x1"),
    ],
    ids=lambda arguments: " ".join(arguments)[:40],
)
def test_invalid_sizes(capsys, arguments):
    status, _, err = call(capsys, *arguments)
    assert status == 3
    assert err.startswith("BAD_COMMAND")
    assert len(err) < 400


def test_measurements_nested_too_deep(tmp_path, capsys):
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    status, _, err = call(capsys, "tune", "--fit", str(deep))
    assert status == 3
    assert err.startswith("BAD_MEASUREMENTS")


@pytest.mark.skipif(sys.platform != "linux", reason="streams as Linux has them")
@pytest.mark.parametrize(("to", "status"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 3), (">&- 2>&-", 0)])
def test_streams_that_take_nothing(to, status):
    command = f"{sys.executable} -m warploom.cli explain DEADLOCK {to}"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert "INTERNAL" not in run.stderr
    assert "Exception ignored" not in run.stderr


def test_a_closed_stream_leaves_the_other_alone():
    command = f"{sys.executable} -m warploom.cli run missing.launch.json --json 2>&-"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert json.loads(run.stdout)["error"]["code"] == "BAD_LAUNCH_FILE"


def test_the_documented_example_runs(tmp_path, capsys, monkeypatch):
    """The example file of the page and its Python code run unchanged."""
    page = (Path(__file__).parents[2] / "docs" / "launch-files.md").read_text("utf-8")
    write(tmp_path)
    (tmp_path / "twice.launch.json").write_text(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    assert call(capsys, "run", str(tmp_path / "twice.launch.json"))[0] == 0
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], {})
