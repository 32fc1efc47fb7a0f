// Ampere's tensor-core path: cp.async in groups, ldmatrix, mma.sync, one kernel for every operand type.
#include "prelude.cuh"

// c[m][n] (32-bit) = a[m][k] · b[n][k]; rows are k_bytes long; a block makes 64 × 32, a warp 16 × 32.
extern "C" __global__ void mma_pipeline(const u8* a, const u8* b, u32* c, int n, int k_bytes) {
    __shared__ alignas(128) u8 left[3][64 * 64];
    __shared__ alignas(128) u8 right[3][32 * 64];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    int row0 = blockIdx.x * 64, column0 = blockIdx.y * 32;
    auto place = [](int row, int chunk) { return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4); };
    auto fetch = [&](int step) {
        if (step * 64 < k_bytes) {
            for (int i = t; i < 256; i += 128)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                 shared_address(left[step % 3]) + place(i / 4, i % 4)),
                             "l"(a + (u64)(row0 + i / 4) * k_bytes + step * 64 + i % 4 * 16)
                             : "memory");
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(
                             shared_address(right[step % 3]) + place(t / 4, t % 4)),
                         "l"(b + (u64)(column0 + t / 4) * k_bytes + step * 64 + t % 4 * 16), "r"(column0 + t / 4 < n ? 16 : 0)
                         : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    u32 total[4][4] = {};
    fetch(0);
    fetch(1);
    for (int step = 0; step * 64 < k_bytes; ++step) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        fetch(step + 2);
        for (int half = 0; half < 2; ++half) {
            u32 f[4], g[2];
            u32 at = shared_address(left[step % 3]) + place(warp * 16 + lane % 16, half * 2 + lane / 16);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(at) : "memory");
            for (int tile = 0; tile < 4; ++tile) {
                at = shared_address(right[step % 3]) + place(tile * 8 + lane % 8, half * 2 + lane / 8 % 2);
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(g[0]), "=r"(g[1]) : "r"(at) : "memory");
                u32* d = total[tile];
                asm volatile("mma.sync.aligned." MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                             : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(g[0]), "r"(g[1]));
            }
        }
        __syncthreads();
    }
    for (int tile = 0; tile < 4; ++tile)
        for (int i = 0; i < 4; ++i) {
            int row = row0 + warp * 16 + lane / 4 + i / 2 * 8, column = column0 + tile * 8 + lane % 4 * 2 + i % 2;
            if (column < n) c[(u64)row * n + column] = total[tile][i];
        }
}

// c = a @ b for one warp, b row-major through ldmatrix.trans, float16 accumulators, and the result through stmatrix.
extern "C" __global__ void mma_transposed(const u16* a, const u16* b, u16* c, int k) {
    __shared__ alignas(16) u16 left[16][24];
    __shared__ alignas(16) u16 right[16][24];
    __shared__ alignas(16) u16 result[16][16];
    int lane = threadIdx.x;
    u32 d[2][2] = {};
    for (int start = 0; start < k; start += 16) {
        __syncwarp();
        *(uint4*)&left[lane / 2][lane % 2 * 8] = *(const uint4*)&a[lane / 2 * k + start + lane % 2 * 8];
        *(uint4*)&right[lane / 2][lane % 2 * 8] = *(const uint4*)&b[(start + lane / 2) * 16 + lane % 2 * 8];
        __syncwarp();
        u32 f[4], g[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                     : "r"(shared_address(&left[lane % 16][lane / 16 * 8])) : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(g[0]), "=r"(g[1]), "=r"(g[2]), "=r"(g[3])
                     : "r"(shared_address(&right[lane % 16][lane / 16 * 8])) : "memory");
        for (int half = 0; half < 2; ++half)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                         : "+r"(d[half][0]), "+r"(d[half][1])
                         : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(g[half * 2]), "r"(g[half * 2 + 1]));
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(&result[lane % 16][lane / 16 * 8])),
                 "r"(d[0][0]), "r"(d[0][1]), "r"(d[1][0]), "r"(d[1][1]) : "memory");
    __syncwarp();
    *(uint4*)&c[lane * 8] = *(const uint4*)&result[lane / 2][lane % 2 * 8];
}
