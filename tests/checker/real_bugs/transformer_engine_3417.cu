// TransformerEngine #3417: the wait of each thread covers its own groups only; the other threads overwrite the buffer
// while the leader's store still reads it.
#include "patterns.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int buffer[128];
    for (int tile = 0; tile < 3; ++tile) {
        WAIT_READ(0);
#ifdef FIXED
        __syncthreads();
#endif
        buffer[threadIdx.x] = in[128 * tile + threadIdx.x] + 1;  // here
        PROXY_FENCE();
        __syncthreads();
        if (threadIdx.x == 0) {
            STORE(out + 128 * tile, buffer, 512);
            COMMIT();
        }
    }
    WAIT_ALL();
}
