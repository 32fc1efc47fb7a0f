// Threads, warps and blocks: divergence, shuffles, votes, barriers, atomics, calls, local and constant memory.
#include "prelude.cuh"

// c = a @ b, one 16 × 16 tile per block; the guards diverge at the edges.
extern "C" __global__ void sgemm_tiled(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float left[16][17];
    __shared__ float right[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float total = 0.0f;
    for (int start = 0; start < k; start += 16) {
        int ka = start + threadIdx.x, kb = start + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0.0f;
        right[threadIdx.y][threadIdx.x] = kb < k && column < n ? b[kb * n + column] : 0.0f;
        __syncthreads();
        #pragma unroll 4
        for (int i = 0; i < 16; ++i) total = fmaf(left[threadIdx.y][i], right[i][threadIdx.x], total);
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = total;
}

// Sixteen warp-wide functions of one word per lane.
extern "C" __global__ void warp_functions(const int* x, int* out, int n) {
    int t = threadIdx.x, value = x[t];
    const u32 all = 0xffffffffu;
    out[0 * n + t] = __shfl_xor_sync(all, value, 5);
    out[1 * n + t] = __shfl_up_sync(all, value, 3, 8);
    out[2 * n + t] = __shfl_down_sync(all, value, 2, 16);
    out[3 * n + t] = __shfl_sync(all, value, value & 31);
    out[4 * n + t] = __ballot_sync(all, value & 1);
    out[5 * n + t] = __any_sync(all, value > 40) * 2 + __all_sync(all, value > -50);
    out[6 * n + t] = __match_any_sync(all, value & 3);
    int same;
    u32 everyone = __match_all_sync(all, value >> 20, &same);
    out[7 * n + t] = (int)everyone ^ same << 4;
    out[8 * n + t] = __reduce_add_sync(all, value);
    out[9 * n + t] = __reduce_max_sync(all, value) ^ (int)__reduce_min_sync(all, (unsigned)value);
    out[10 * n + t] = (int)__reduce_xor_sync(all, (unsigned)value);
    int inside = 0;
    if (value & 1) {
        inside = __popc(__activemask() & 0x55555555) + 100;
        if (value & 2) inside += __shfl_sync(__activemask(), value, __ffs(__activemask()) - 1);
        __syncwarp(__activemask());
    } else {
        inside = __reduce_add_sync(__activemask(), 1);
    }
    out[11 * n + t] = inside;
    __syncwarp();
    out[12 * n + t] = elect_one() ? (int)lane_id() : -1;
    int scan = value;
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(all, scan, step);
        if (lane_id() >= step) scan += left;
    }
    out[13 * n + t] = scan;
    u32 below, equal;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    asm("mov.u32 %0, %%lanemask_eq;" : "=r"(equal));
    out[14 * n + t] = (int)(below ^ equal);
    double wide = __shfl_xor_sync(all, (double)value * 0.5, 1);
    out[15 * n + t] = (int)(wide * 4.0);
}

// The sum of an array, by shuffles, shared memory and the last block to finish; counts by the voting barriers.
extern "C" __global__ void block_reduce(const float* x, float* partial, u32* ticket, float* total, int* votes, int n) {
    __shared__ float per_warp[8];
    __shared__ bool last;
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    int positive = __syncthreads_count(sum > 0.0f);
    int any = __syncthreads_or(sum > 20.0f), every = __syncthreads_and(sum < 1000.0f);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        float value = threadIdx.x < blockDim.x / 32 ? per_warp[threadIdx.x] : 0.0f;
        for (int step = 4; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
        if (threadIdx.x == 0) {
            partial[blockIdx.x] = value;
            votes[blockIdx.x] = positive * 4 + (any != 0) * 2 + (every != 0);
            __threadfence();
            last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
        }
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        float all = 0.0f;
        for (int i = 0; i < gridDim.x; ++i) all += ((volatile float*)partial)[i];
        *total = all;
    }
}

static __device__ void atomic_max_float(float* at, float value) {
    int old = __float_as_int(*at);
    while (__int_as_float(old) < value) {
        int seen = atomicCAS((int*)at, old, __float_as_int(value));
        if (seen == old) break;
        old = seen;
    }
}

// Atomics of every kind on shared and global memory, and a compare-and-swap loop.
extern "C" __global__ void atomics(const int* x, int* cells, u64* wide, float* reals, u32* bins, int n) {
    __shared__ u32 local[16];
    __shared__ float best;
    if (threadIdx.x < 16) local[threadIdx.x] = 0;
    if (threadIdx.x == 0) best = -1000.0f;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int value = x[i];
        atomicAdd(&local[value & 15], 1u);
        atomic_max_float(&best, (float)value);
        atomicAdd(&cells[0], value);
        atomicMax(&cells[1], value);
        atomicMin(&cells[2], value);
        atomicOr((u32*)&cells[3], 1u << (value & 31));
        atomicAnd((u32*)&cells[4], ~(1u << (value & 15)));
        atomicXor((u32*)&cells[5], (u32)value);
        atomicInc((u32*)&cells[6], 6);
        atomicDec((u32*)&cells[7], 10);
        atomicSub(&cells[8], 2);
        if (i == 3) atomicExch(&cells[9], 77);
        atomicAdd(&wide[0], (u64)(long long)value);
        atomicMax(&wide[1], (u64)(value & 0xffff) << 32);
        atomicAdd(&reals[0], (float)value);
        asm volatile("red.global.add.f32 [%0], %1;" ::"l"(&reals[1]), "f"(1.0f) : "memory");
        asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(&reals[4]), "f"(1.0f), "f"(2.0f) : "memory");
    }
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
    if (threadIdx.x == 0) atomic_max_float(&reals[2], best);
}

// A small stack machine: the switch becomes a jump table and every lane runs a program of its own.
extern "C" __global__ void switch_machine(const u8* program, const int* x, int* out, int length, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    int a = x[t], b = t, steps = 0;
    for (int at = t % 7; at < length && steps < 24; ++steps) {
        switch (program[at]) {
            case 0: a += b; at += 1; break;
            case 1: a -= 3 * b; at += 1; break;
            case 2: a ^= b << 2; at += 1; break;
            case 3: b = a & 15; at += 1; break;
            case 4: { int keep = a; a = b; b = keep; at += 1; break; }
            case 5: at += (a & 1) ? 2 : 1; break;
            case 6: a = a * 5 + 1; at += 1; break;
            case 7: b = ~b; at += 3; break;
            case 8: a = a > b ? a - b : b - a; at += 1; break;
            case 9: a = (int)((u32)a >> 3); at += 1; break;
            case 10: b += at; at += 1; break;
            default: at = length; break;
        }
    }
    out[t] = a * 31 + b;
}

// A jump table written by hand: every lane goes its own way and all meet again.
extern "C" __global__ void jump_table(const int* x, int* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    int a = x[t], result;
    asm volatile(
        "{\n .reg .u32 which;\n and.b32 which, %1, 3;\n"
        "ways: .branchtargets way0, way1, way2, way3;\n"
        " brx.idx which, ways;\n"
        "way0:\n add.s32 %0, %1, 100;\n bra meet;\n"
        "way1:\n mul.lo.s32 %0, %1, %1;\n bra meet;\n"
        "way2:\n neg.s32 %0, %1;\n bra meet;\n"
        "way3:\n shr.s32 %0, %1, 1;\n"
        "meet:\n}" : "=r"(result) : "r"(a));
    out[t] = result + __popc(__activemask());
}

struct Pair {
    float first;
    int second;
};

static __device__ __noinline__ Pair collatz(int value, float weight) {
    Pair result = {0.0f, 0};
    while (value > 1) {
        value = value % 2 ? 3 * value + 1 : value / 2;
        result.first += weight;
        result.second += 1;
    }
    return result;
}

static __device__ __noinline__ int mix(int value, int depth) {
    if (depth == 0) return value + 1;
    return (value ^ depth) * 3;
}

static __device__ __noinline__ int mix_twice(int depth, int value) {
    for (int i = 0; i < depth; ++i) value = mix(value, depth - i);
    return mix(value, 0) + depth;
}

// Calls that stay calls: a struct comes back, a function calls another in a loop, lanes call it a different number of times.
extern "C" __global__ void calls(const int* x, float* weights, int* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    Pair pair = collatz(x[t], 0.5f);
    weights[t] = pair.first;
    out[t] = pair.second + mix_twice(x[t] % 5, t);
}

// Each thread sorts twelve words in local memory and then walks them by a computed index.
extern "C" __global__ void local_sort(const int* x, int* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    int values[12];
    for (int i = 0; i < 12; ++i) values[i] = x[i * n + t];
    for (int i = 1; i < 12; ++i) {
        int key = values[i], j = i - 1;
        while (j >= 0 && values[j] > key) {
            values[j + 1] = values[j];
            --j;
        }
        values[j + 1] = key;
    }
    int at = t % 12;
    for (int i = 0; i < 12; ++i) {
        out[i * n + t] = values[at];
        at = (at + 5) % 12;
    }
}

__constant__ int primes[16] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};
__constant__ float halves[4] = {0.5f, 1.5f, -2.5f, 3.5f};
__device__ u64 mixing[2] = {0x9E3779B97F4A7C15ull, 0xBF58476D1CE4E5B9ull};

// Constant and global variables of the module, indexed per lane.
extern "C" __global__ void constants(const int* x, u64* out, float* reals, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    out[t] = (u64)primes[x[t] & 15] * mixing[t & 1] ^ "warp"[t & 3];
    reals[t] = halves[t & 3] * (float)primes[t & 15];
}

// Warps 0 and 1 fill a buffer, warps 2 and 3 drain it; two named barriers pass it back and forth.
extern "C" __global__ void named_barriers(const int* x, int* out, int rounds) {
    __shared__ int buffer[64];
    int t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int round = 0; round < rounds; ++round) {
            if (round > 0) asm volatile("bar.sync 2, 128;" ::: "memory");
            buffer[t] = x[round * 64 + t] * 3;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        }
    } else {
        for (int round = 0; round < rounds; ++round) {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            out[round * 64 + t] = buffer[63 - t] + round;
            if (round + 1 < rounds) asm volatile("barrier.arrive.aligned 2, 128;" ::: "memory");
        }
    }
    __syncthreads();
    int id = 3 + threadIdx.x / 64;
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(64) : "memory");
}

// A scan over blocks: each waits, spinning on a flag, for the sum of the blocks before it.
extern "C" __global__ void chained_scan(const int* x, int* out, int* sums, u32* flags, int n) {
    __shared__ int tile[128];
    __shared__ int before;
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    tile[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (int step = 1; step < 128; step *= 2) {
        int left = t >= step ? tile[t - step] : 0;
        __syncthreads();
        tile[t] += left;
        __syncthreads();
    }
    if (t == 0) {
        int sum = 0;
        if (blockIdx.x > 0) {
            u32 seen;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flags + blockIdx.x - 1) : "memory");
            } while (!seen);
            sum = sums[blockIdx.x - 1];
        }
        sums[blockIdx.x] = sum + tile[127];
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + blockIdx.x), "r"(1) : "memory");
        before = sum;
    }
    __syncthreads();
    if (i < n) out[i] = tile[t] + before;
}

// A vector kernel with the two instructions of programmatic dependent launch, and vector loads and stores.
extern "C" __global__ void dependent_launch(const float4* x, float4* y, int n) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 value = __ldg(x + i);
        value.x += value.w;
        value.y *= 2.0f;
        value.z = fmaxf(value.z, value.y);
        __stcs(y + i, value);
    }
    asm volatile("griddepcontrol.launch_dependents;");
}
