// DeepEP #657: with two stages, `wait_group 1` lets the store of the stage be under way that the next load overwrites.
#include "patterns.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int stage[2][128];
    __shared__ alignas(8) unsigned long long full[2];
    if (threadIdx.x != 0) return;
    INIT(&full[0], 1);
    INIT(&full[1], 1);
    PROXY_FENCE();
    for (int tile = 0; tile < 2; ++tile) {
        EXPECT(&full[tile], 512);
        LOAD(stage[tile], in + 128 * tile, 512, &full[tile]);
    }
    for (int tile = 0; tile < 6; ++tile) {
        int at = tile & 1;
        WAIT(&full[at], tile >> 1 & 1);
        STORE(out + 128 * tile, stage[at], 512);
        COMMIT();
        if (tile + 2 < 6) {
#ifdef FIXED
            WAIT_READ(0);
#else
            WAIT_READ(1);
#endif
            EXPECT(&full[at], 512);
            LOAD(stage[at], in + 128 * (tile + 2), 512, &full[at]);  // here
        }
    }
    WAIT_ALL();
}
