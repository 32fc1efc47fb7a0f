"""CUDA programs that nvcc compiles; a machine without nvcc skips them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("nvcc") is None, reason="needs Linux and nvcc of the CUDA toolkit"
    ),
    pytest.mark.slow,
]
PROGRAM = Path(__file__).with_name("program.cu")


def warploom(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warploom", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A folder for the compiled program, which the tests share."""
    return tmp_path_factory.mktemp("build")


def run(build, *arguments, program=PROGRAM):
    return warploom("cuda", "--build", build, *arguments[:-1], program, arguments[-1])


def test_a_program_runs_and_sees_its_gpu(build):
    done = run(build, "whole")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "thread 0 of scale\n0 wrong on warploom emulator of sm_90 with 132 SMs\n"
    assert done.stderr.startswith("1 launch, ")


def test_an_unchanged_program_is_not_compiled_again(build):
    assert run(build, "whole").returncode == 0
    before = (build / "program.so").stat().st_mtime_ns
    assert run(build, "--sms", 4, "whole").stdout.endswith("with 4 SMs\n")
    assert (build / "program.so").stat().st_mtime_ns == before


@pytest.mark.parametrize(("mode", "status"), [("status", 3), ("exit", 5)])
def test_the_status_is_that_of_the_program(build, mode, status):
    done = run(build, mode)
    assert done.returncode == status
    assert "1 launch, " in done.stderr


def test_a_fault_is_reported_at_its_line_and_the_program_sees_an_error(build):
    done = run(build, "beyond")
    assert done.returncode == 2
    assert "the program sees: the launch failed on the emulator" in done.stdout
    assert "OUT_OF_BOUNDS" in done.stderr
    assert "program.cu:13" in done.stderr


def test_checks_find_a_race_and_prove_its_correction(build):
    broken, whole = run(build, "--check", "race"), run(build, "--check", "reversed")
    assert broken.returncode == 1
    assert "RACE_RAW" in broken.stderr
    assert "REFUTED  reversed<…>" in broken.stderr
    assert whole.returncode == 0
    assert "1 checked: PROVED, as run, assuming fairness" in whole.stderr


def test_exploring_finds_the_race(build):
    done = run(build, "--schedule", "explore", "race")
    assert done.returncode != 0
    assert "SCHEDULE_DEPENDENT" in done.stderr


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_tensor_maps_from_the_driver(build, schedule):
    assert run(build, "--schedule", schedule, "map").returncode == 0


def test_a_recorded_launch_replays(build, tmp_path):
    assert run(build, "--record", tmp_path, "map").returncode == 0
    (file,) = tmp_path.glob("*.launch.json")
    (argument,) = json.loads(file.read_text())["args"]
    assert [each["at"] for each in argument["fields"]] == [0, 128, 136]
    assert argument["fields"][0]["value"]["tensor_map"] == "buffer0"
    done = warploom("run", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_timing_loops_are_shortened(build):
    done = run(build, "--repeats", 2, "timed")
    assert done.returncode == 0
    assert "2 launches" in done.stderr
    assert "19 repeated launches skipped" in done.stderr


def test_functions_that_the_runtime_lacks_are_named(tmp_path):
    source = tmp_path / "graphs.cu"
    source.write_text("#include <cuda_runtime.h>\nint main() { cudaGraph_t g; return cudaGraphCreate(&g, 0); }\n")
    done = warploom("cuda", source)
    assert done.returncode == 2
    assert "NOT_MODELLED" in done.stderr
    assert "cudaGraphCreate" in done.stderr


VARIABLES = """
    #include <cstdio>
    namespace own { __device__ int counter; __device__ int table[2] = {1, 2}; }
    __constant__ float weights[4];
    __managed__ int total = 5;
    __device__ int *place = &own::table[1];
    typedef float (*function)(float);
    __device__ float twice(float x) { return 2 * x; }
    __device__ float square(float x) { return x * x; }
    __device__ function functions[2] = {twice, square};
    static __device__ double sums[3] = {0.5, 1.5, 2.5};
    __global__ void count() { atomicAdd(&own::counter, 1); }
    __global__ void weigh(float *out, const function *which) {
      int i = threadIdx.x;
      out[i] = functions[i & 1](weights[i]) + own::counter + *place + sums[i % 3];
      if (i == 0) { total += own::counter; out[4] = (*which)(3); sums[1] += 1; }
    }
    int main() {
      float host[4] = {1, 2, 3, 4}, nine = 9, *out, got[5];
      int n; size_t size; function *which;
      for (int i = 0; i < 3; ++i) count<<<2, 32>>>();
      if (cudaMemcpyToSymbol(weights, host, sizeof host)) return 1;
      if (cudaMemcpyToSymbol(weights, &nine, 4, 12)) return 2;
      if (cudaMemcpyToSymbol(weights, host, 16, 4) != cudaErrorInvalidValue) return 3;
      cudaMemcpyFromSymbol(&n, own::counter, 4);
      cudaGetSymbolAddress((void **)&which, functions);
      cudaGetSymbolSize(&size, weights);
      cudaMalloc((void **)&out, sizeof got);
      weigh<<<1, 4>>>(out, which);
      weigh<<<1, 4>>>(out, which + 1);
      cudaDeviceSynchronize();
      cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
      printf("%d %zu %d: %g %g %g %g %g\\n", n, size, total, got[0], got[1], got[2], got[3], got[4]);
      return cudaMemcpyToSymbol(host, host, 4) == cudaErrorInvalidSymbol ? 0 : 4;
    }
"""


def test_variables_keep_their_values_and_the_host_reaches_them(tmp_path):
    source = tmp_path / "variables.cu"
    source.write_text(VARIABLES)
    done = warploom("cuda", "--check", "--record", tmp_path / "files", source)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "192 16 389: 196.5 200.5 202.5 275.5 9\n"
    assert "3 checked: PROVED, as run" in done.stderr
    replayed = warploom("run", *sorted((tmp_path / "files").glob("*_weigh.launch.json")))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_a_fault_is_reported_also_if_the_program_aborts(tmp_path):
    source = tmp_path / "aborts.cu"
    source.write_text("""
        #include <cstdlib>
        __device__ int table[2];
        __global__ void look(int *out) { *out = table[threadIdx.x]; }
        int main() {
          look<<<1, 1>>>(0);
          if (cudaDeviceSynchronize()) abort();
        }
    """)
    done = warploom("cuda", source)
    assert done.returncode == 2
    assert "OUT_OF_BOUNDS" in done.stderr


ENDLESS = """
    #include <cstdio>
    __global__ void nothing() {}
    int main() {
      nothing<<<1, 32>>>();
      printf("started\\n");
      fflush(stdout);
      printf("unwritten\\n");
      for (volatile int i = 0;; ++i) {}
    }
"""


def test_a_time_limit_ends_host_code(tmp_path):
    source = tmp_path / "endless.cu"
    source.write_text(ENDLESS)
    done = warploom("cuda", "--build", tmp_path, "--timeout", 10, source)
    assert (done.returncode, done.stdout) == (2, "started\nunwritten\n")
    assert "TIMEOUT: The program did not finish within 10.0 s." in done.stderr
    assert "in the program's own code, on the host" in done.stderr


LISTENING = """
import signal, sys
from warploom.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in processes that a shell runs in the background
sys.exit(main())
"""


def test_the_user_stops_host_code(tmp_path):
    source = tmp_path / "endless.cu"
    source.write_text(ENDLESS)
    command = [sys.executable, "-c", LISTENING, "cuda", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "started\n"
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=600)
    assert started.returncode == 130
    assert "interrupted\n  in the program's own code, on the host\n" in err


def test_an_empty_grid_is_an_error_of_the_launch(tmp_path):
    source = tmp_path / "empty.cu"
    source.write_text("""
        __global__ void nothing() {}
        int main() {
          nothing<<<0, 32>>>();
          if (cudaGetLastError() != cudaErrorInvalidConfiguration) return 7;
          nothing<<<1, 32>>>();
          return cudaDeviceSynchronize();
        }
    """)
    done = warploom("cuda", source)
    assert done.returncode == 0, done.stderr
    assert "1 launch" in done.stderr


def test_an_error_of_the_compiler_is_shown(tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text("int main() { return undeclared; }\n")
    done = warploom("cuda", source)
    assert done.returncode == 3
    assert 'identifier "undeclared" is undefined' in done.stderr


def test_a_missing_compiler_is_an_error():
    done = warploom("cuda", PROGRAM, NVCC="no-such-nvcc")
    assert done.returncode == 3
    assert "needs nvcc of the CUDA toolkit" in done.stderr
