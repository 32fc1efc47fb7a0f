// cuda-oxide #1066: the mailbox of a tile is written again before its readers have copied it.
#include "patterns.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ int mailbox;
    __shared__ alignas(8) unsigned long long ready, taken;
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        INIT(&ready, 1);
        INIT(&taken, 2);
    }
    __syncthreads();
    for (int tile = 0; tile < 4; ++tile) {
        if (warp == 0) {
            if (lane == 0) {
#ifdef FIXED
                if (tile) WAIT(&taken, (tile - 1) & 1);
#endif
                mailbox = in[tile];  // here
                ARRIVE(&ready);
            }
        } else {
            WAIT(&ready, tile & 1);
            int mine = mailbox;
            __syncwarp();
            if (lane == 0) ARRIVE(&taken);
            out[64 * tile + threadIdx.x - 32] = mine + lane;
        }
    }
}
