// cudnn-frontend #426: all lanes of a warp write, and one lane arrives for them.
#include "patterns.cuh"
#ifdef FIXED
#define COUNT 32
#else
#define COUNT 1
#endif
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ int weights[32];
    __shared__ alignas(8) unsigned long long loaded;
    int lane = threadIdx.x & 31;
    if (threadIdx.x == 0) INIT(&loaded, COUNT);
    __syncthreads();
    if (threadIdx.x < 32) {
        weights[lane] = in[lane];
        if (lane < COUNT) ARRIVE(&loaded);
    } else {
        WAIT(&loaded, 0);
        out[lane] = weights[31 - lane];  // here
    }
}
