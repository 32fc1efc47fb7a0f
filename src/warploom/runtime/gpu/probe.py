"""Query the NVIDIA driver in a separate program, so that a driver that hangs or crashes affects only this process.

It prints one JSON object and imports nothing but the standard library, so that it starts fast.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# CUdevice_attribute, CUDA driver API
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76


def probe() -> dict[str, Any]:
    """Return `problem`: why there is no driver; `cuda`: its CUDA version; `gpus`: its GPUs."""
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return {"problem": f"{LIBRARY} cannot be loaded"}
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    found: dict[str, Any] = {"cuda": [version.value // 1000, version.value % 1000 // 10], "gpus": []}
    status = driver.cuInit(0)
    if status:
        return {**found, "problem": _sentence(driver, status)}
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    found["gpus"] = [_gpu(driver, index) for index in range(count.value)]
    return found


def _sentence(driver: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(text))
    return f"cuInit says {(text.value or b'nothing').decode()} ({status})"


def _gpu(driver: ctypes.CDLL, index: int) -> dict[str, Any]:
    device, number = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    values = []
    for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        values.append(number.value)
    return {
        "name": name.value.decode("utf-8", "replace"),
        "capability": values[:2],
        "sms": values[2],
        "memory": memory.value,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe()))
