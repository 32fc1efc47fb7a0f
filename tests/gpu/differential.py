"""Run prepared cases on a GPU and compare them with the emulator, bit for bit.

    python differential.py FOLDER [--only TEXT] [--save FILE.npz] [--jobs N]

FOLDER is written by `prepare.py`. This script is self-contained: it needs NumPy, ml_dtypes and the CUDA driver, and nothing
of warploom. Each case runs in its own process, so that a fault or a hang costs one case. The exit status is 1
if anything differs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

MAP_TYPES = {
    "uint8": 0, "int8": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4,
    "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "u8": 0, "u16": 1, "u32": 2, "i32": 3, "u64": 4,
    "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "f32_ftz": 10, "tf32": 11, "tf32_ftz": 12,
}  # fmt: skip
"""The codes of CUtensorMapDataType, by the types of NumPy and by the names of a tensor map's own types."""
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
SCALARS = {
    "u8": "u1", "s8": "i1", "b8": "u1", "u16": "u2", "s16": "i2", "b16": "u2", "u32": "u4", "s32": "i4", "b32": "u4",
    "u64": "u8", "s64": "i8", "b64": "u8", "f32": "f4", "f64": "f8",
}  # fmt: skip
CLUSTER_DIMENSION = 4
MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14
ERROR_LOG, ERROR_LOG_BYTES = 5, 6
SECONDS_PER_CASE = 60


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an identifier and a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


class Driver:
    """The few functions of the CUDA driver that a launch needs, with errors as exceptions."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *args: Any) -> None:
        """Call a driver function; raise an error with its name unless it succeeds."""
        status = getattr(self.library, name)(*args)
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown').decode()}")

    def function(self, ptx: str, entry: str) -> ctypes.c_void_p:
        """Assemble PTX with the driver's compiler and find a kernel in it."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(8192)
        keys = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p).value, len(log))
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), ptx.encode(), 2, keys, values)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.value.decode(errors='replace').strip()}") from error
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function

    def upload(self, data: np.ndarray[Any, Any]) -> int:
        """Copy bytes to the device; return the address."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(data.nbytes, 16)))
        self.call("cuMemcpyHtoD_v2", address, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes))
        return address.value

    def download(self, address: int, size: int) -> np.ndarray[Any, Any]:
        """Copy bytes back from the device."""
        data = np.empty(size, np.uint8)
        to = data.ctypes.data_as(ctypes.c_void_p)
        self.call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data

    def tensor_map(self, address: int, buffer: dict[str, Any], argument: dict[str, Any]) -> Any:
        """A 128-byte map, in memory aligned to 64 bytes."""
        shape, box = argument.get("shape", buffer["shape"])[::-1], argument["box"][::-1]
        name = argument.get("dtype", buffer["dtype"])
        rank, step, strides = len(shape), dtype_of(name).itemsize, argument.get("strides", [])[-2::-1]
        for extent in shape[:-1] if not strides else ():
            step *= extent
            strides.append(step)
        steps, fill = argument.get("element_strides", [1] * rank)[::-1], int(argument.get("fill", "zero") == "nan")
        storage = (ctypes.c_uint64 * 24)()
        aligned = (ctypes.addressof(storage) + 63) // 64 * 64
        self.call(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(aligned), MAP_TYPES[name], rank,
            ctypes.c_uint64(address + argument.get("offset", 0)), (ctypes.c_uint64 * rank)(*shape), (ctypes.c_uint64 * max(rank - 1, 1))(*strides),
            (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*steps),
            0, SWIZZLES[argument["swizzle"]], 0, fill,
        )  # fmt: skip
        return storage, aligned

    def word(self, argument: dict[str, Any], addresses: dict[str, int]) -> Any:
        """The value of an argument other than a tensor map."""
        if "pointers" in argument:
            found = [0 if each is None else place(each, addresses) for each in argument["pointers"]]
            return self.upload(np.array(found, np.uint64))
        return place(argument, addresses) if "pointer" in argument else argument["scalar"]

    def launch(self, case: dict[str, Any], function: ctypes.c_void_p, addresses: dict[str, int]) -> None:
        """Launch and synchronise."""
        keep, pointers = [], []
        for argument in case["args"]:
            if "map" in argument:
                name = argument["map"]
                storage, address = self.tensor_map(addresses[name], case["buffers"][name], argument)
            else:
                value = self.word(argument, addresses)
                storage = scalar(value, argument.get("type", "u64"))
                address = storage.ctypes.data
            keep.append(storage)
            pointers.append(address)
        parameters = (ctypes.c_void_p * len(pointers))(*pointers)
        attribute = LaunchAttribute(id=CLUSTER_DIMENSION)
        attribute.value[:3] = case["cluster"]
        config = LaunchConfig(
            (ctypes.c_uint * 3)(*case["grid"]), (ctypes.c_uint * 3)(*case["block"]), case["shared_bytes"], None,
            ctypes.pointer(attribute), int(case["cluster"] != [1, 1, 1]),
        )  # fmt: skip
        self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, case["shared_bytes"])
        self.call("cuFuncSetAttribute", function, NON_PORTABLE_CLUSTER, 1)
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, parameters, None)
        self.call("cuCtxSynchronize")


def place(argument: dict[str, Any] | str, addresses: dict[str, int]) -> int:
    """The address of a buffer, or of a byte in it."""
    if isinstance(argument, str):
        return addresses[argument]
    return addresses[argument["pointer"]] + int(argument.get("offset", 0))


def scalar(value: float, declared: str) -> np.ndarray[Any, Any]:
    """A parameter's bytes; a negative integer keeps its two's complement."""
    dtype = np.dtype(SCALARS[declared])
    if dtype.kind == "f":
        return np.array([value], dtype)
    word = int(value) & ((1 << 8 * dtype.itemsize) - 1)
    return np.frombuffer(word.to_bytes(dtype.itemsize, "little"), np.uint8).copy()


def dtype_of(name: str) -> np.dtype[Any]:
    """A NumPy or ml_dtypes type by name."""
    return np.dtype(getattr(ml_dtypes, name, name))


def execute(folder: Path, case: dict[str, Any], save: Path) -> None:
    """Run one case and leave its outputs in a file."""
    driver = Driver()
    stored = np.load(folder / f"{case['name']}.npz")
    function = driver.function((folder / f"{case['name']}.ptx").read_text(), case["entry"])
    addresses = {name: driver.upload(stored[f"in.{name}"]) for name in case["buffers"]}
    driver.launch(case, function, addresses)
    outputs = {name: driver.download(addresses[name], stored[f"in.{name}"].nbytes) for name in case["outputs"]}
    np.savez(save, allow_pickle=False, **outputs)


def difference(
    case: dict[str, Any], name: str, left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], source: str
) -> str:
    """Describe how two outputs differ more than the case allows, if they do; the reference may differ in the sign of zero."""
    if left.tobytes() == right.tobytes():
        return ""
    dtype = dtype_of(case["buffers"][name]["dtype"])
    a, b = (array.view(dtype).astype(np.float64) for array in (left, right))
    floating = dtype.kind not in "iu"
    if floating and case["exact"] and source == "reference" and np.array_equal(a, b, equal_nan=True):
        return ""
    if not case["exact"] and np.allclose(a, b, rtol=case["rtol"], atol=case["atol"], equal_nan=True):
        return ""
    wrong = (left.reshape(-1, dtype.itemsize) != right.reshape(-1, dtype.itemsize)).any(1)
    first = int(wrong.argmax())
    return f"{name}: {int(wrong.sum())} of {wrong.size} differ, first at {first}: {a[first]!r} and {b[first]!r}"


def compare(folder: Path, case: dict[str, Any], hardware: dict[str, np.ndarray[Any, Any]], source: str) -> str:
    """Compare one case with the emulator or the reference."""
    stored = np.load(folder / f"{case['name']}.npz")
    if f"{source}.{case['outputs'][0]}" not in stored:
        return "absent"
    pairs = {name: (hardware[name], stored[f"{source}.{name}"]) for name in case["outputs"]}
    found = [difference(case, name, *pair, source) for name, pair in pairs.items()]
    same = all(left.tobytes() == right.tobytes() for left, right in pairs.values())
    return "; ".join(filter(None, found)) or ("equal" if same else "close")


def has_reference(case: dict[str, Any]) -> bool:
    """True unless the case is a recorded launch, which has the emulator's results only."""
    return bool(case.get("has_reference", True))


def judge(folder: Path, case: dict[str, Any], scratch: Path) -> tuple[str, str, str, dict[str, np.ndarray[Any, Any]]]:
    """Run a case in a child process: (status, against the emulator, against the reference, outputs)."""
    save = scratch / f"{case['name']}.npz"
    command = [sys.executable, __file__, str(folder), "--child", case["name"], "--save", str(save)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_PER_CASE, check=False)
    except subprocess.TimeoutExpired:
        return "hangs", "", "", {}
    if child.returncode or not save.exists():
        return (child.stderr.strip().splitlines() or ["no message"])[-1], "", "", {}
    hardware = dict(np.load(save))
    return "ran", compare(folder, case, hardware, "machine"), compare(folder, case, hardware, "reference"), hardware


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--save", type=Path, help="keep the outputs of the GPU in this file")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = json.loads((options.folder / "cases.json").read_text())
    if options.child:
        execute(options.folder, next(case for case in cases if case["name"] == options.child), options.save)
        return 0
    cases = [case for case in cases if options.only in case["name"]]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        verdicts = list(pool.map(lambda case: judge(options.folder, case, Path(scratch)), cases))
    agree = correct = identical = 0
    kept: dict[str, np.ndarray[Any, Any]] = {}
    print(f"{'case':45} {'kind':8} {'machine':8} reference")
    for case, (status, machine, reference, outputs) in zip(cases, verdicts, strict=True):
        kept |= {f"{case['name']}.{name}": array for name, array in outputs.items()}
        agree += machine in ("equal", "close")
        identical += machine == "equal"
        correct += reference in ("equal", "close") or not has_reference(case)
        kind = "exact" if case["exact"] else "close"
        found = f"{machine:8} {reference}" if status == "ran" else status
        print(f"{case['name']:45} {kind:8} {found}")
    compared = sum(map(has_reference, cases))
    print(
        f"{len(cases)} cases: {agree} agree with the emulator, {identical} of them bit for bit; "
        f"{correct - (len(cases) - compared)} of {compared} agree with the reference"
    )
    if options.save:
        np.savez_compressed(options.save, allow_pickle=False, **kept)
    return int(agree < len(cases) or correct < len(cases))


if __name__ == "__main__":
    sys.exit(main())
