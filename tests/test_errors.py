"""Errors as Python users expect them: they pickle and copy, are builtin kinds too, and show the user's frames only."""

from __future__ import annotations

import copy
import pickle
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import warploom as wl
from warploom import diagnostics
from warploom.diagnostics import Diag, Loc, WarploomError, hide_library_frames
from warploom.trace import kernel, s32

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
DEADLOCK = f"""{HEAD}.visible .entry k() {{
 .shared .align 8 .b64 bar; .reg .b32 %a; .reg .pred %p;
 mov.u32 %a, bar;
 mbarrier.init.shared::cta.b64 [%a], 2;
W: mbarrier.try_wait.parity.shared::cta.b64 %p, [%a], 0;
 @!%p bra W;
 ret;
}}
"""
PAST_THE_END = f"""{HEAD}.visible .entry k(.param .u64 p) {{
 .reg .b64 %rd; .reg .b32 %r;
 ld.param.u64 %rd, [p];
 mov.u32 %r, 7;
 st.global.u32 [%rd+400], %r;
 ret;
}}
"""
BUILTINS = {
    "BAD_ARGUMENTS": (ValueError, TypeError),
    "BAD_CONFIG": (ValueError,),
    "BAD_EXPRESSION": (ValueError,),
    "BAD_INDEX": (TypeError,),
    "BAD_KERNEL": (ValueError, TypeError),
    "BAD_LAUNCH": (ValueError,),
    "BAD_LAUNCH_FILE": (ValueError,),
    "BAD_PLAN": (ValueError, TypeError),
    "BAD_TENSOR_MAP": (ValueError,),
    "BRANCH_ON_DEVICE_VALUE": (TypeError,),
    "DEADLOCK": (RuntimeError,),
    "LIMIT": (RuntimeError,),
    "NO_DERIVATIVE": (NotImplementedError,),
    "NO_GPU": (RuntimeError,),
    "NO_TOOL": (RuntimeError,),
    "NOT_MODELLED": (NotImplementedError,),
    "OUT_OF_BOUNDS": (RuntimeError,),
    "OUT_OF_MEMORY": (MemoryError,),
    "SYNTAX": (ValueError,),
    "TYPE_MISMATCH": (TypeError,),
    "UNREADABLE_FILE": (OSError,),
}


class _Fields(dict[str, object]):
    """A value for every field of any entry; `value` and `address` are formatted as numbers."""

    def __missing__(self, name: str) -> object:
        return 0x1F if name in ("value", "address") else f"<{name}>"


def every_error() -> list[WarploomError]:
    """One error of each entry of the catalogue."""
    found = []
    for diag in Diag:
        names = {name for text in diag.value for name in diagnostics._FIELD.findall(text)}
        fields: dict[str, Any] = {name: _Fields()[name] for name in names}
        found.append(diag.error(Loc("a/b.py", 7, 3), ["a note", "another"], **fields))
    return found


def assert_same(found: WarploomError, wanted: WarploomError) -> None:
    assert type(found) is type(wanted)
    assert (found.diag, found.code, found.loc, found.notes) == (wanted.diag, wanted.code, wanted.loc, wanted.notes)
    assert (found.fields, found.what, found.advice) == (wanted.fields, wanted.what, wanted.advice)
    assert (found.args, str(found)) == (wanted.args, str(wanted))
    assert getattr(found, "__notes__", None) == getattr(wanted, "__notes__", None)


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.code)
def test_every_error_pickles_and_copies(error: WarploomError) -> None:
    error.add_note("added by a caller")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert_same(pickle.loads(pickle.dumps(error, protocol)), error)
    assert_same(copy.copy(error), error)
    assert_same(copy.deepcopy(error), error)


def test_fields_that_are_not_plain_data_become_text() -> None:
    error = Diag.BAD_LAUNCH.error(what=lambda: None, shape=(1, [2, "x"], None), thing=object())
    again = pickle.loads(pickle.dumps(error))
    assert (again.what, again.fields["shape"]) == (error.what, (1, [2, "x"], None))
    assert {type(again.fields[name]) for name in ("what", "thing")} == {str}


def _deadlock(_: int) -> None:
    wl.launch(DEADLOCK, grid=(1, 1, 1), block=(1, 1, 1))


def test_a_deadlock_reaches_the_parent_of_a_process_pool() -> None:
    with pytest.raises(wl.Stuck) as here:
        _deadlock(0)
    context = get_context("spawn")
    with context.Pool(1) as pool, pytest.raises(wl.Stuck) as pooled:
        pool.map_async(_deadlock, [0]).get(timeout=600)
    assert_same(pooled.value, here.value)
    with ProcessPoolExecutor(1, mp_context=context) as executor, pytest.raises(wl.Stuck) as executed:
        executor.submit(_deadlock, 0).result(timeout=600)
    assert str(executed.value) == str(here.value)
    assert executed.value.loc == here.value.loc is not None


@pytest.mark.parametrize("code", BUILTINS)
def test_errors_are_builtin_kinds_too(code: str) -> None:
    error = next(each for each in every_error() if each.code == code)
    for kind in (ValueError, TypeError, RuntimeError, OSError, MemoryError):
        wanted = any(issubclass(each, kind) for each in BUILTINS[code])
        assert isinstance(error, kind) == wanted, (code, kind)


def test_every_entry_has_a_kind() -> None:
    assert set(Diag) - set(diagnostics._KIND) == {Diag.MISMATCH, Diag.INTERNAL}


def test_errors_of_unsupported_requests_are_neither_faults_nor_device_errors() -> None:
    for code in ("NOT_MODELLED", "NO_DERIVATIVE"):
        error = Diag[code].error(what="x")
        assert isinstance(error, diagnostics.UnsupportedError)
        assert not isinstance(error, diagnostics.Fault | diagnostics.DeviceError)


def test_invalid_arguments_are_value_errors_at_the_public_functions() -> None:
    with pytest.raises(ValueError, match="BAD_LAUNCH"):
        wl.launch(PAST_THE_END)
    with pytest.raises(ValueError, match="SYNTAX"):
        wl.launch("rubbish", grid=(1, 1, 1), block=(1, 1, 1))
    with pytest.raises(TypeError, match="BAD_ARGUMENTS"):
        wl.linear(np.zeros((4, 4), np.float16), np.zeros((4, 4), np.float16), alpha="x")


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_fault_shows_the_users_frames_only() -> None:
    with pytest.raises(wl.Fault) as caught:
        wl.launch(PAST_THE_END, grid=(1, 1, 1), block=(32, 1, 1), args=[np.zeros(4, np.uint32)])
    text = shown(caught.value)
    assert "src/warploom" not in text.replace("\\", "/")
    assert text.count("Traceback") == 1
    assert text.count('File "') == 1
    assert "st.global.u32 [%rd+400], %r" in text


def test_wrong_arguments_of_an_operation_show_the_users_frames_only() -> None:
    x = np.zeros((4, 4), np.float16)
    with pytest.raises(wl.LaunchError) as caught:
        wl.linear(x, x[:, :3])
    assert shown(caught.value).count('File "') == 1


def test_an_error_while_tracing_shows_the_call_and_the_kernel() -> None:
    @kernel
    def wrong(n: s32) -> None:
        if n > 0:
            pass

    with pytest.raises(wl.TraceError) as caught:
        wrong.bind(3, grid=(1, 1, 1), block=(32, 1, 1))
    text = shown(caught.value)
    assert "src/warploom" not in text.replace("\\", "/")
    assert [line.strip() for line in text.splitlines() if "in wrong" in line]


def _missing() -> None:
    raise KeyError("missing")


def test_an_exception_that_the_user_handles_stays_chained() -> None:
    def retried() -> None:
        try:
            _missing()
        except KeyError:
            wl.launch(PAST_THE_END)

    with pytest.raises(wl.LaunchError) as caught:
        retried()
    assert isinstance(caught.value.__context__, KeyError)
    assert "During handling" in shown(caught.value)


def test_the_environment_can_ask_for_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPLOOM_TRACEBACK", "1")
    with pytest.raises(wl.LaunchError) as caught:
        wl.launch(PAST_THE_END)
    assert "launcher.py" in shown(caught.value)


def test_an_internal_error_keeps_all_frames() -> None:
    try:
        raise Diag.INTERNAL.error(what="x")
    except WarploomError as error:
        before = error.__traceback__
        hide_library_frames(error)
        assert error.__traceback__ is before
