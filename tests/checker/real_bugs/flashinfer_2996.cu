// flashinfer #2996: __syncthreads() inside the branch of the compute warps, which the other warps never come to.
#include "patterns.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int weights[128];
    __shared__ int partial[64];
    __shared__ alignas(8) unsigned long long full, done;
    if (threadIdx.x == 0) {
        INIT(&full, 1);
        INIT(&done, 64);
    }
    __syncthreads();
    if (threadIdx.x == 64) {
        EXPECT(&full, 512);
        LOAD(weights, in, 512, &full);
    }
    if (threadIdx.x < 64) {
        WAIT(&full, 0);
        partial[threadIdx.x] = weights[threadIdx.x] + weights[threadIdx.x + 64];
#ifdef FIXED
        asm volatile("bar.sync 1, 64;" ::: "memory");
#else
        __syncthreads();  // here
#endif
        out[threadIdx.x] = partial[63 - threadIdx.x];
        ARRIVE(&done);
    } else {
        WAIT(&done, 0);
    }
}
