"""Finding the driver and its GPUs: one sentence for each thing that can be missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.runtime.fake_driver import FakeLibrary

from warploom.diagnostics import WarploomError
from warploom.runtime.gpu.driver import Driver, device, device_of, driver


@pytest.mark.parametrize(
    ("library", "code", "words"),
    [
        (OSError("no such file"), "NO_DRIVER", "cannot be loaded (no such file)"),
        (FakeLibrary(init=34), "NO_DRIVER", "stub"),
        (FakeLibrary(init=100), "NO_GPU", "none is visible"),
        (FakeLibrary(init=999), "NO_GPU", "cuInit says unknown (999)"),
        (FakeLibrary(version=11080), "OLD_DRIVER", "it supports CUDA 11.8, but CUDA 12.0 is needed"),
        (
            FakeLibrary(capability=(8, 0)),
            "WRONG_GPU",
            "H200 cannot run this kernel: it has compute capability 8.0, which is older",
        ),
        (FakeLibrary(capability=(10, 7)), "WRONG_GPU", "capability 10.7; kernels are for 9.0, 10.0, 10.3"),
        (FakeLibrary(capability=(11, 0)), "WRONG_GPU", "capability 11.0, whose tensor core is of another family"),
        (FakeLibrary(capability=(12, 0)), "WRONG_GPU", "capability 12.0, which has neither wgmma nor tcgen05"),
    ],
    ids=["no library", "stub", "no GPU", "broken", "old", "Ampere", "later", "Thor", "consumer Blackwell"],
)
def test_a_missing_part_is_reported_in_a_sentence(install, library, code, words):
    install(library)
    for _ in range(2):
        with pytest.raises(WarploomError) as caught:
            device(0)
        assert caught.value.code == code
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("capability", "target"), [((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((10, 3), "sm_103a")], ids=str
)
def test_a_gpu_has_its_target(install, capability, target):
    install(FakeLibrary(capability=capability))
    assert device(0).target == target
    assert (device(0).gpu.sms, device(0).gpu.name) == (132, "Fake H200")


def test_a_gpu_is_found_by_name_or_by_address(install):
    install(FakeLibrary(count=2))
    assert device_of("cuda:1", 0).index == 1
    assert device_of("cuda", 0x7F00).index == 0


def test_the_context_is_set_where_there_is_none_and_restored_where_there_was_one(install):
    library = install(FakeLibrary(count=2))
    with device(1).current():
        assert library.current == device(1).context.value
    assert library.current == device(1).context.value, "a thread without a context keeps it"
    with device(0).current():
        assert library.current == device(0).context.value
    assert library.current == device(1).context.value
    library.calls.clear()
    with device(1).current():
        pass
    assert library.calls == []


@pytest.mark.parametrize(("status", "code"), [(1, "DRIVER_REFUSED"), (700, "GPU_FAULT"), (719, "GPU_FAULT")])
def test_a_refusal_is_an_error(install, status, code):
    library = install(FakeLibrary())
    library.cuCtxSynchronize = lambda: status
    with pytest.raises(WarploomError) as caught:
        driver().call("cuCtxSynchronize")
    assert caught.value.code == code
    assert f"({status})" in str(caught.value)


def test_streams_of_several_libraries(install):
    install(FakeLibrary())

    class Torch:
        cuda_stream = 11

    class Cupy:
        ptr = 12

    class Protocol:
        def __cuda_stream__(self):
            return (0, 13)

    assert [device(0).stream(each) for each in (Torch(), Cupy(), Protocol(), 14)] == [11, 12, 13, 14]


def test_capturing_is_relaxed_only_inside(install):
    library = install(FakeLibrary())
    with driver().while_capturing():
        assert library.capture_mode == 2
    assert library.capture_mode == 0


def test_importing_loads_no_driver_and_no_torch():
    program = (
        "import sys, ctypes; real = ctypes.CDLL\n"
        "def spy(name, *a, **k):\n"
        "    assert 'cuda' not in str(name), name\n"
        "    return real(name, *a, **k)\n"
        "ctypes.CDLL = spy\n"
        "import warploom, warploom.runtime.gpu.driver, warploom.runtime.gpu.prepared\n"
        "assert not {'torch', 'cuda'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_this_computer_answers_or_says_why_not():
    driver.cache_clear()
    try:
        assert isinstance(driver(), Driver)
    except WarploomError as error:
        assert error.code in ("NO_DRIVER", "NO_GPU", "OLD_DRIVER")
