// Hopper's asynchronous machinery: mbarriers, bulk and tensor copies, clusters, wgmma, setmaxnreg.
#include "prelude.cuh"

extern __shared__ __align__(1024) u8 dynamic[];

static __device__ __forceinline__ u64 wgmma_descriptor(u32 address) {
    return (u64)((address & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

static __device__ __forceinline__ void wgmma_64x64x16(float (&d)[32], u64 a, u64 b, int accumulate) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %34, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(accumulate));
}

// c = a @ b.T, persistent: one warpgroup loads, two multiply 64 rows each, the result leaves through stmatrix and TMA.
extern "C" __global__ void __launch_bounds__(384, 1)
wgmma_ring(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
           int tiles_n, int tiles, int steps) {
    constexpr int STAGES = 2, A_BYTES = 128 * 128, B_BYTES = 64 * 128;
    u8* left = dynamic;
    u8* right = left + STAGES * A_BYTES;
    u8* result = right + STAGES * B_BYTES;
    u64* full = (u64*)(result + 128 * 128);
    u64* empty = full + STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 8);
        }
        fence_barrier_init();
    }
    __syncthreads();
    int group = threadIdx.x / 128;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x / 32 == 0 && elect_one()) {
            asm volatile("prefetch.tensormap [%0];" ::"l"(&a) : "memory");
            int count = 0;
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
                for (int step = 0; step < steps; ++step, ++count) {
                    int slot = count % STAGES;
                    barrier_wait(empty + slot, count / STAGES & 1 ^ 1);
                    barrier_expect(full + slot, A_BYTES + B_BYTES);
                    tma_load(left + slot * A_BYTES, &a, step * 64, tile / tiles_n * 128, full + slot);
                    tma_load(right + slot * B_BYTES, &b, step * 64, tile % tiles_n * 64, full + slot);
                }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, half = group - 1, count = 0;
        u8* mine = result + half * 64 * 128;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            float d[32];
            for (int i = 0; i < 32; ++i) d[i] = 0.0f;
            for (int step = 0; step < steps; ++step, ++count) {
                int slot = count % STAGES;
                barrier_wait(full + slot, count / STAGES & 1);
                u64 at = wgmma_descriptor(shared_address(left + slot * A_BYTES + half * 64 * 128));
                u64 bt = wgmma_descriptor(shared_address(right + slot * B_BYTES));
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                for (int k = 0; k < 4; ++k) wgmma_64x64x16(d, at + 2 * k, bt + 2 * k, step + k > 0);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                if (lane == 0) barrier_arrive(empty + slot);
            }
            if (threadIdx.x % 128 == 0) bulk_wait_read();
            asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
            int row = warp * 16 + lane % 16;
            for (int j = 0; j < 4; ++j) {
                u32 h[4];
                for (int i = 0; i < 4; ++i)
                    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(h[i]) : "f"(d[8 * j + 2 * i + 1]), "f"(d[8 * j + 2 * i]));
                u32 to = shared_address(mine) + row * 128 + (((j * 2 + lane / 16) ^ (row & 7)) << 4);
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(h[0]),
                             "r"(h[1]), "r"(h[2]), "r"(h[3]) : "memory");
            }
            fence_async();
            asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
            if (threadIdx.x % 128 == 0) {
                tma_store(&c, mine, tile % tiles_n * 64, tile / tiles_n * 128 + half * 64);
                bulk_commit();
            }
        }
        if (threadIdx.x % 128 == 0) bulk_wait();
    }
}

// A cluster of four adds up its parts: st.async to CTA 0, remote stores back, remote atomics, and a remote read.
extern "C" __global__ void cluster_sum(const int* x, int* totals, int* counts, int* mirrored, int per_cta) {
    __shared__ alignas(16) int parts[4];
    __shared__ int total;
    __shared__ int counter;
    __shared__ int own[64];
    __shared__ u64 barrier;
    u32 rank = cluster_rank();
    int t = threadIdx.x;
    if (t == 0) {
        barrier_init(&barrier, 1);
        counter = 0;
        fence_barrier_init();
        if (rank == 0) barrier_expect(&barrier, 16);
    }
    own[t] = x[blockIdx.x * per_cta + t];
    cluster_sync();
    int sum = 0;
    for (int i = t; i < per_cta; i += 64) sum += x[blockIdx.x * per_cta + i];
    asm volatile("red.relaxed.cluster.shared::cluster.add.s32 [%0], %1;" ::"r"(map_to_rank(shared_address(&counter), rank ^ 1)),
                 "r"(sum & 7) : "memory");
    __shared__ int halves[2];
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (t % 32 == 0) halves[t / 32] = sum;
    __syncthreads();
    if (t == 0)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
                         map_to_rank(shared_address(parts + rank), 0)),
                     "r"(halves[0] + halves[1]), "r"(map_to_rank(shared_address(&barrier), 0)) : "memory");
    if (rank == 0 && t < 32) {
        barrier_wait(&barrier, 0);
        int all = parts[0] + parts[1] + parts[2] + parts[3];
        if (t < 4) asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(map_to_rank(shared_address(&total), t)), "r"(all) : "memory");
    }
    cluster_sync();
    int there;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(there) : "r"(map_to_rank(shared_address(own + 63 - t), 3 - rank)) : "memory");
    mirrored[blockIdx.x * 64 + t] = there;
    if (t == 0) {
        totals[blockIdx.x] = total - halves[0] - halves[1];
        counts[blockIdx.x] = counter;
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Producer warps copy with cp.async and arrive through it; consumers wait by parity, and release by a counted arrive.
extern "C" __global__ void barrier_pipeline(const int4* x, int4* out, int rounds) {
    __shared__ alignas(16) int4 stage[2][64];
    __shared__ u64 full[2], empty[2], once;
    int t = threadIdx.x % 64;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            barrier_init(full + i, 64);
            barrier_init(empty + i, 2);
        }
        barrier_init(&once, 128);
    }
    __syncthreads();
    u64 state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(&once)) : "memory");
    if (threadIdx.x < 64) {
        for (int round = 0; round < rounds; ++round) {
            int slot = round % 2;
            barrier_wait(empty + slot, round / 2 & 1 ^ 1);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&stage[slot][t])), "l"(x + round * 64 + t) : "memory");
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(full + slot)) : "memory");
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    } else {
        for (int round = 0; round < rounds; ++round) {
            int slot = round % 2;
            barrier_wait(full + slot, round / 2 & 1);
            int4 value = stage[slot][63 - t];
            __syncwarp();
            if (t % 32 == 0) asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], 1;" ::"r"(shared_address(empty + slot)) : "memory");
            value.x += round;
            value.w ^= t;
            out[round * 64 + t] = value;
        }
    }
    asm volatile(
        "{\n .reg .pred done;\n"
        "test:\n mbarrier.test_wait.shared::cta.b64 done, [%0], %1;\n @!done bra test;\n}" ::"r"(shared_address(&once)), "l"(state) : "memory");
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; ++i) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(full + i)) : "memory");
}

// One-dimensional bulk copies: in, to the other CTA of the cluster, out, and an adding copy into one shared result.
extern "C" __global__ void bulk_copies(const int* x, int* doubled, int* swapped, int* sum) {
    __shared__ alignas(128) int in[256];
    __shared__ alignas(128) int work[256];
    __shared__ alignas(128) int from_peer[256];
    __shared__ u64 arrived, exchanged;
    u32 rank = cluster_rank();
    int t = threadIdx.x;
    if (t == 0) {
        barrier_init(&arrived, 1);
        barrier_init(&exchanged, 1);
        fence_barrier_init();
    }
    cluster_sync();
    if (t == 0) {
        barrier_expect(&exchanged, 1024);
        barrier_expect(&arrived, 1024);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(in)),
                     "l"(x + blockIdx.x * 256), "r"(1024), "r"(shared_address(&arrived)) : "memory");
    }
    barrier_wait(&arrived, 0);
    for (int i = t; i < 256; i += blockDim.x) work[i] = in[i] * 2;
    fence_async();
    __syncthreads();
    if (t == 0) {
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         map_to_rank(shared_address(from_peer), rank ^ 1)),
                     "r"(shared_address(work)), "r"(1024), "r"(map_to_rank(shared_address(&exchanged), rank ^ 1)) : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(doubled + blockIdx.x * 256), "r"(shared_address(work)), "r"(1024) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(sum), "r"(shared_address(in)), "r"(1024) : "memory");
        bulk_commit();
    }
    barrier_wait(&exchanged, 0);
    for (int i = t; i < 256; i += blockDim.x) swapped[blockIdx.x * 256 + i] = from_peer[i] + 1;
    if (t == 0) bulk_wait();
    cluster_sync();
}

// A rank-3 box that hangs over every edge comes in with 64-byte swizzle, is read by hand, and goes out unswizzled.
extern "C" __global__ void tma_rank3(const __grid_constant__ TensorMap in, const __grid_constant__ TensorMap out, int dx, int dy, int dz) {
    __shared__ alignas(1024) float box[2][8][16];
    __shared__ alignas(128) float turned[2][8][16];
    __shared__ u64 barrier;
    if (threadIdx.x == 0) {
        barrier_init(&barrier, 1);
        fence_barrier_init();
        barrier_expect(&barrier, sizeof(box));
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(box)),
            "l"(&in), "r"(dx), "r"(dy), "r"(dz), "r"(shared_address(&barrier)) : "memory");
    }
    __syncthreads();
    barrier_wait(&barrier, 0);
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        int column = i % 16, row = i / 16 % 8, plane = i / 128;
        u32 byte = (u32)i * 4;
        byte ^= (byte >> 7 & 3) << 4;
        turned[1 - plane][row][15 - column] = *(float*)((u8*)box + byte) + 1.0f;
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&out), "r"(0), "r"(0), "r"(0),
                     "r"(shared_address(turned)) : "memory");
        bulk_commit();
        bulk_wait();
    }
}

// CTA 0 of each pair loads a tile for both, CTA 1 for both too; each adds what it sees into one tile of the result.
extern "C" __global__ void tma_multicast(const __grid_constant__ TensorMap in, const __grid_constant__ TensorMap sum,
                                         const __grid_constant__ TensorMap top) {
    __shared__ alignas(128) int tile[2][16][32];
    __shared__ alignas(128) int work[16][32];
    __shared__ u64 barrier;
    u32 rank = cluster_rank();
    if (threadIdx.x == 0) {
        barrier_init(&barrier, 1);
        fence_barrier_init();
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        barrier_expect(&barrier, sizeof(tile));
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
                shared_address(tile[rank])),
            "l"(&in), "r"(0), "r"(blockIdx.x * 16), "r"(shared_address(&barrier)), "h"((u16)3) : "memory");
    }
    barrier_wait(&barrier, 0);
    for (int i = threadIdx.x; i < 512; i += blockDim.x) work[i / 32][i % 32] = tile[0][i / 32][i % 32] - 2 * tile[1][i / 32][i % 32] + (int)rank;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&sum), "r"(0), "r"(0),
                     "r"(shared_address(work)) : "memory");
        asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&top), "r"(0), "r"(0),
                     "r"(shared_address(work)) : "memory");
        bulk_commit();
        bulk_wait();
    }
    cluster_sync();
}
