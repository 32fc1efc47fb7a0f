// Blackwell's tensor core: tensor memory, tcgen05 alone and in pairs, block scaling, cluster launch control.
#include "prelude.cuh"

extern __shared__ __align__(1024) u8 dynamic[];

static __device__ __forceinline__ u64 matrix_descriptor(u32 address) {
    return (u64)((address & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

static __device__ __forceinline__ void tensor_load(u32 (&v)[32], u32 address) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]), "=r"(v[8]), "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]), "=r"(v[14]), "=r"(v[15]), "=r"(v[16]), "=r"(v[17]), "=r"(v[18]), "=r"(v[19]), "=r"(v[20]), "=r"(v[21]), "=r"(v[22]), "=r"(v[23]), "=r"(v[24]), "=r"(v[25]), "=r"(v[26]), "=r"(v[27]), "=r"(v[28]), "=r"(v[29]), "=r"(v[30]), "=r"(v[31])
                 : "r"(address));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

#define BEFORE_SYNC() asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define AFTER_SYNC() asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")

// c = a @ b.T (float32 out) for 128 × 64 tiles: warps 0-3 store, warp 4 loads, warp 5 multiplies.
extern "C" __global__ void __launch_bounds__(192, 1)
tcgen05_roles(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int n, int steps) {
    constexpr int STAGES = 2, A_BYTES = 128 * 128, B_BYTES = 64 * 128;
    u8* left = dynamic;
    u8* right = left + STAGES * A_BYTES;
    u64* full = (u64*)(right + STAGES * B_BYTES);
    u64* empty = full + STAGES;
    u64* ready = empty + STAGES;
    u32* address = (u32*)(ready + 1);
    int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 1);
        }
        barrier_init(ready, 1);
        fence_barrier_init();
    }
    if (warp == 5) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(shared_address(address)) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    BEFORE_SYNC();
    __syncthreads();
    AFTER_SYNC();
    u32 accumulator = *address;
    int row = blockIdx.x * 128, column = blockIdx.y * 64;
    if (warp == 4) {
        if (elect_one())
            for (int step = 0; step < steps; ++step) {
                int slot = step % STAGES;
                barrier_wait(empty + slot, step / STAGES & 1 ^ 1);
                barrier_expect(full + slot, A_BYTES + B_BYTES);
                tma_load(left + slot * A_BYTES, &a, step * 64, row, full + slot);
                tma_load(right + slot * B_BYTES, &b, step * 64, column, full + slot);
            }
    } else if (warp == 5) {
        if (elect_one()) {
            u32 shape = 1u << 4 | 1u << 7 | 1u << 10 | (64u >> 3) << 17 | (128u >> 4) << 24;
            for (int step = 0; step < steps; ++step) {
                int slot = step % STAGES;
                barrier_wait(full + slot, step / STAGES & 1);
                AFTER_SYNC();
                u64 at = matrix_descriptor(shared_address(left + slot * A_BYTES));
                u64 bt = matrix_descriptor(shared_address(right + slot * B_BYTES));
                for (int k = 0; k < 4; ++k)
                    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(accumulator),
                                 "l"(at + 2 * k), "l"(bt + 2 * k), "r"(shape), "r"(step + k) : "memory");
                asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(empty + slot)) : "memory");
            }
            asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(ready)) : "memory");
        }
    } else {
        barrier_wait(ready, 0);
        AFTER_SYNC();
        for (int part = 0; part < 2; ++part) {
            u32 v[32];
            tensor_load(v, accumulator + (warp * 32 << 16) + part * 32);
            float* to = c + (u64)(row + threadIdx.x) * n + column + part * 32;
            for (int i = 0; i < 32; i += 4) *(uint4*)(to + i) = make_uint4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        }
    }
    BEFORE_SYNC();
    __syncthreads();
    AFTER_SYNC();
    if (warp == 5) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(accumulator));
}

// c = a @ b.T on a pair of CTAs, 256 × 128: both load, one multiplies for both and commits to both.
extern "C" __global__ void __launch_bounds__(128, 1) __cluster_dims__(2, 1, 1)
tcgen05_pair(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int n, int steps) {
    constexpr int A_BYTES = 128 * 128, B_BYTES = 64 * 128;
    u8* left = dynamic;
    u8* right = left + 2 * A_BYTES;
    u64* full = (u64*)(right + 2 * B_BYTES);
    u64* empty = full + 2;
    u64* ready = empty + 2;
    u32* address = (u32*)(ready + 1);
    int warp = threadIdx.x / 32;
    u32 rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 1);
        }
        barrier_init(ready, 1);
        fence_barrier_init();
    }
    if (warp == 0) {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], 128;" ::"r"(shared_address(address)) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
    }
    BEFORE_SYNC();
    cluster_sync();
    AFTER_SYNC();
    u32 accumulator = *address;
    int row = blockIdx.x / 2 * 256 + rank * 128, column = blockIdx.y * 128;
    if (threadIdx.x == 0) {
        for (int step = 0; step < steps; ++step) {
            int slot = step % 2;
            barrier_wait(empty + slot, step / 2 & 1 ^ 1);
            if (rank == 0) barrier_expect(full + slot, 2 * (A_BYTES + B_BYTES));
            u32 signal = map_to_rank(shared_address(full + slot), 0);
            asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                             shared_address(left + slot * A_BYTES)), "l"(&a), "r"(step * 64), "r"(row), "r"(signal) : "memory");
            asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                             shared_address(right + slot * B_BYTES)), "l"(&b), "r"(step * 64), "r"(column + (int)rank * 64), "r"(signal) : "memory");
        }
    } else if (rank == 0 && threadIdx.x == 32) {
        u32 shape = 1u << 4 | 1u << 7 | 1u << 10 | (128u >> 3) << 17 | (256u >> 4) << 24;
        for (int step = 0; step < steps; ++step) {
            int slot = step % 2;
            barrier_wait(full + slot, step / 2 & 1);
            AFTER_SYNC();
            u64 at = matrix_descriptor(shared_address(left + slot * A_BYTES));
            u64 bt = matrix_descriptor(shared_address(right + slot * B_BYTES));
            for (int k = 0; k < 4; ++k)
                asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(accumulator),
                             "l"(at + 2 * k), "l"(bt + 2 * k), "r"(shape), "r"(step + k) : "memory");
            asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                             shared_address(step + 1 < steps ? empty + slot : ready)), "h"((u16)3) : "memory");
        }
    }
    __syncwarp();
    barrier_wait(ready, 0);
    AFTER_SYNC();
    for (int part = 0; part < 4; ++part) {
        u32 v[32];
        tensor_load(v, accumulator + (warp * 32 << 16) + part * 32);
        float* to = c + (u64)(row + threadIdx.x) * n + column + part * 32;
        for (int i = 0; i < 32; i += 4) *(uint4*)(to + i) = make_uint4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    }
    BEFORE_SYNC();
    cluster_sync();
    AFTER_SYNC();
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, 128;" ::"r"(accumulator));
}

// c = (a · 2^sa) @ (b · 2^sb).T, a e4m3 and b e5m2 with a scale per 32 elements; scales travel by tcgen05.cp.
extern "C" __global__ void tcgen05_scaled(const u8* a, const u8* b, const u8* a_scale, const u8* b_scale, float* c) {
    u8* left = dynamic;
    u8* right = left + 128 * 128;
    u8* scales = right + 128 * 128;
    u64* done = (u64*)(scales + 1024);
    u32* address = (u32*)(done + 1);
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) barrier_init(done, 1);
    if (warp == 0) asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 256;" ::"r"(shared_address(address)) : "memory");
    for (int i = t; i < 1024; i += 128) {
        int row = i / 8, chunk = i % 8, to = row * 128 + ((chunk ^ (row & 7)) << 4);
        *(uint4*)(left + to) = *(const uint4*)(a + row * 128 + chunk * 16);
        *(uint4*)(right + to) = *(const uint4*)(b + row * 128 + chunk * 16);
    }
    *(u32*)(scales + t % 32 * 16 + t / 32 * 4) = *(const u32*)(a_scale + t * 4);
    *(u32*)(scales + 512 + t % 32 * 16 + t / 32 * 4) = *(const u32*)(b_scale + t * 4);
    fence_async();
    BEFORE_SYNC();
    __syncthreads();
    AFTER_SYNC();
    u32 accumulator = *address;
    if (warp == 0 && elect_one()) {
        u64 plain = 1ull << 16 | 8ull << 32 | 1ull << 46;
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(accumulator + 128), "l"(plain | (shared_address(scales) & 0x3FFFF) >> 4) : "memory");
        asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(accumulator + 132), "l"(plain | (shared_address(scales + 512) & 0x3FFFF) >> 4) : "memory");
        u64 at = matrix_descriptor(shared_address(left)), bt = matrix_descriptor(shared_address(right));
        for (u32 k = 0; k < 4; ++k) {
            u32 shape = k << 4 | 1u << 10 | (128u >> 3) << 17 | 1u << 23 | (128u >> 7) << 27 | k << 29;
            asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %4, 0;\n"
                         " tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%5], [%6], p;\n}" ::"r"(accumulator),
                         "l"(at + 2 * k), "l"(bt + 2 * k), "r"(shape), "r"(k), "r"(accumulator + 128), "r"(accumulator + 132) : "memory");
        }
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(done)) : "memory");
    }
    __syncwarp();
    barrier_wait(done, 0);
    AFTER_SYNC();
    for (int part = 0; part < 4; ++part) {
        u32 v[32];
        tensor_load(v, accumulator + (warp * 32 << 16) + part * 32);
        for (int i = 0; i < 32; ++i) c[t * 128 + part * 32 + i] = __uint_as_float(v[i]);
    }
    BEFORE_SYNC();
    __syncthreads();
    AFTER_SYNC();
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 256;" ::"r"(accumulator));
}

// Tensor memory as scratch: written in one shape, read in another, with packing.
extern "C" __global__ void tensor_scratch(const u32* x, u32* turned, u32* packed) {
    __shared__ u32 address;
    int t = threadIdx.x, warp = t / 32;
    if (warp == 0) asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(shared_address(&address)) : "memory");
    BEFORE_SYNC();
    __syncthreads();
    AFTER_SYNC();
    u32 mine = address + (warp * 32 << 16), v[8];
    for (int i = 0; i < 8; ++i) v[i] = x[t * 8 + i];
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(mine), "r"(v[0]), "r"(v[1]), "r"(v[2]),
                 "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7]) : "memory");
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
    for (int half = 0; half < 2; ++half) {
        asm volatile("tcgen05.ld.sync.aligned.16x256b.x1.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(mine + (half * 16 << 16)));
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        for (int i = 0; i < 4; ++i) turned[(half * 128 + t) * 4 + i] = v[i];
    }
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.pack::16b.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(mine));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    for (int i = 0; i < 4; ++i) packed[t * 4 + i] = v[i];
    BEFORE_SYNC();
    __syncthreads();
    AFTER_SYNC();
    if (warp == 0) {
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(address));
    }
}

// out = x² + tile over a two-dimensional grid whose later CTAs are taken over by running ones.
extern "C" __global__ void launch_control(const int* x, int* out, u32* visits) {
    __shared__ alignas(16) uint4 reply;
    __shared__ u64 barrier;
    if (threadIdx.x == 0) {
        barrier_init(&barrier, 1);
        fence_barrier_init();
    }
    __syncthreads();
    u32 bx = blockIdx.x, by = blockIdx.y, parity = 0, more;
    do {
        if (threadIdx.x == 0) {
            barrier_expect(&barrier, 16);
            asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];" ::"r"(shared_address(&reply)),
                         "r"(shared_address(&barrier)) : "memory");
        }
        int tile = by * gridDim.x + bx, i = tile * blockDim.x + threadIdx.x;
        out[i] = x[i] * x[i] + tile;
        if (threadIdx.x == 0) atomicAdd(visits + tile, 1u);
        barrier_wait(&barrier, parity);
        parity ^= 1;
        u32 nx = 0, ny = 0;
        asm volatile(
            "{\n .reg .pred p;\n .reg .b128 handle;\n ld.shared.b128 handle, [%3];\n"
            " clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, handle;\n selp.b32 %0, 1, 0, p;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n"
            " @p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%1, %2, _, _}, handle;\n}"
            : "=r"(more), "=r"(nx), "=r"(ny) : "r"(shared_address(&reply)) : "memory");
        bx = nx;
        by = ny;
        fence_async();
        __syncthreads();
    } while (more);
}
