// TransformerEngine #2695: no proxy fence between the loads of a stage and the TMA copy of the next one into it.
#include "patterns.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int stage[128];
    __shared__ alignas(8) unsigned long long full;
    if (threadIdx.x == 0) INIT(&full, 1);
    __syncthreads();
    int sum = 0;
    for (int tile = 0; tile < 3; ++tile) {
        if (threadIdx.x == 0) {
            EXPECT(&full, 512);
            LOAD(stage, in + 128 * tile, 512, &full);  // here
        }
        WAIT(&full, tile & 1);
        sum += stage[threadIdx.x];
#ifdef FIXED
        PROXY_FENCE();
#endif
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}
