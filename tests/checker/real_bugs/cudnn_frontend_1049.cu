// cudnn-frontend #1049: several threads write each row of a staging buffer, one thread issues its bulk reduction, and
// neither the writers nor the reduction wait for the other.
#include "patterns.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int staging[4][32];
    int row = threadIdx.x & 3, column = threadIdx.x / 4;
    for (int block = 0; block < 2; ++block) {
        WAIT_READ(0);
#ifdef FIXED
        __syncthreads();
#endif
        staging[row][column] = in[128 * block + threadIdx.x];  // here
        PROXY_FENCE();
#ifdef FIXED
        __syncthreads();
#endif
        if (threadIdx.x % 32 == 0) {
            int mine = threadIdx.x / 32;
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(out + 32 * mine),
                         "r"(SHARED(staging[mine])), "r"(128) : "memory");
            COMMIT();
        }
    }
    WAIT_ALL();
}
