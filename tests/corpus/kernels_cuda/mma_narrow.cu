// mma.sync of numbers narrower than a byte.
#include "prelude.cuh"

// c = a @ b.T of numbers narrower than a byte, one warp and one multiplication deep K; A 16 rows, B 8, in words along k.
extern "C" __global__ void mma_narrow(const u32* a, const u32* b, int* c, int steps) {
    int lane = threadIdx.x, group = lane / 4, quad = lane % 4, words = steps * 8;
    int d[4] = {0, 0, 0, 0};
    for (int step = 0; step < steps; ++step) {
        const u32 *top = a + group * words + step * 8 + quad, *bottom = top + 8 * words, *right = b + group * words + step * 8 + quad;
        asm volatile("mma.sync.aligned." MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(top[0]), "r"(bottom[0]), "r"(top[4]), "r"(bottom[4]), "r"(right[0]), "r"(right[4]));
    }
    for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + quad * 2 + i % 2] = d[i];
}
