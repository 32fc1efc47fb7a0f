// A program with one mode per test: its first argument. Written as users write: <<<>>>, printf, a map from the driver.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

__global__ void scale(const float *x, float *y, int n, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = factor * x[i];
  if (i == 0)
    printf("thread %d of %s\n", i, "scale");
}

template <int Threads> __global__ void reversed(const float *x, float *y, bool synchronised) {
  __shared__ float tile[Threads];
  tile[threadIdx.x] = x[threadIdx.x];
  if (synchronised)
    __syncthreads();
  y[threadIdx.x] = tile[Threads - 1 - threadIdx.x];
}

struct Parameters {
  CUtensorMap map;
  float *out;
  int row;
};

__global__ void row_of(const __grid_constant__ Parameters given) {
  __shared__ alignas(128) float tile[32];
  __shared__ alignas(8) unsigned long long barrier;
  unsigned at = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(at));
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                     "r"(to), "l"(&given.map), "r"(0), "r"(given.row), "r"(at)
                 : "memory");
  }
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(at)
                 : "memory");
  given.out[threadIdx.x] = tile[threadIdx.x];
}

using Encode = decltype(&cuTensorMapEncodeTiled);

int main(int count, char **given) {
  const char *mode = count > 1 ? given[1] : "whole";
  const int n = 1000;
  std::vector<float> host(n), back(n);
  for (int i = 0; i < n; ++i)
    host[i] = i % 7;
  float *x, *y;
  cudaMalloc(&x, n * sizeof(float));
  cudaMalloc(&y, n * sizeof(float));
  cudaMemcpy(x, host.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  auto is = [&](const char *name) { return !strcmp(mode, name); };

  if (is("map")) {
    Parameters parameters;
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    cuuint64_t extents[] = {32, 31}, strides[] = {128};
    cuuint32_t box[] = {32, 1}, steps[] = {1, 1};
    if (((Encode)found)(&parameters.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, x, extents, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
      return 9;
    parameters.out = y;
    parameters.row = 5;
    row_of<<<1, 32>>>(parameters);
    cudaMemcpy(back.data(), y, 128, cudaMemcpyDeviceToHost);
    return memcmp(back.data(), host.data() + 160, 128) ? 1 : 0;
  }
  if (is("reversed") || is("race")) {
    reversed<128><<<1, 128>>>(x, y, is("reversed"));
    cudaMemcpy(back.data(), y, 512, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 128; ++i)
      if (back[i] != host[127 - i] && is("reversed"))
        return 1;
    return 0;
  }
  scale<<<8, 128>>>(x, y, is("beyond") ? 1024 : n, 3.0f);
  for (int i = 0; is("timed") && i < 20; ++i)
    scale<<<8, 128>>>(x, y, n, 3.0f);
  if (cudaError_t error = cudaDeviceSynchronize()) {
    std::printf("the program sees: %s\n", cudaGetErrorString(error));
    std::exit(7);
  }
  cudaMemcpy(back.data(), y, n * sizeof(float), cudaMemcpyDeviceToHost);
  int wrong = 0;
  for (int i = 0; i < n; ++i)
    wrong += back[i] != 3 * host[i];
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  std::printf("%d wrong on %s with %d SMs\n", wrong, properties.name, properties.multiProcessorCount);
  cudaFree(x);
  cudaFree(y);
  if (is("exit"))
    std::exit(5);
  return wrong ? 1 : is("status") ? 3 : 0;
}
