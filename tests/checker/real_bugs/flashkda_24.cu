// FlashKDA #24: threads write shared memory, and a TMA store reads it after __syncthreads() without a proxy fence.
#include "patterns.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int state[128];
    state[threadIdx.x] = 3 * in[threadIdx.x];
#ifdef FIXED
    PROXY_FENCE();
#endif
    __syncthreads();
    if (threadIdx.x == 0) {
        STORE(out, state, 512);  // here
        COMMIT();
        WAIT_ALL();
    }
}
