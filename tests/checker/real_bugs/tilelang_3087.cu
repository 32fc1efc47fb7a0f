// tilelang #3087: the wait on a barrier with one slot uses the parity of a ring of stages, which has completed already,
// and a later iteration overwrites a stage that the operation still reads. A copy stands for the MMA here;
// it needs a launch with clusters.
#include "patterns.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int stage[3][4], result[9][4];
    __shared__ alignas(8) unsigned long long done;
    if (threadIdx.x != 0) return;
    INIT(&done, 1);
    PROXY_FENCE();
    for (int k = 0; k < 9; ++k) {
        stage[k % 3][0] = in[k];
        stage[k % 3][1] = stage[k % 3][2] = stage[k % 3][3] = k;
        PROXY_FENCE();
        EXPECT(&done, 16);
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];" ::"r"(
                         SHARED(result[k])), "r"(SHARED(stage[k % 3])), "r"(SHARED(&done)) : "memory");
#ifdef FIXED
        WAIT(&done, k & 1);
#else
        WAIT(&done, k / 3 & 1);  // here
#endif
    }
    for (int k = 0; k < 9; ++k) out[9 * blockIdx.x + k] = result[k][0];
}
