// tilelang #2613: both warps read a tile that all threads copied, and the next iteration copies into it without a barrier.
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ int tile[64];
    int sum = 0;
    for (int k = 0; k < 3; ++k) {
        tile[threadIdx.x] = in[64 * k + threadIdx.x];  // here
        __syncthreads();
        sum += threadIdx.x < 32 ? tile[threadIdx.x + 32] : tile[threadIdx.x - 32];
#ifdef FIXED
        __syncthreads();
#endif
    }
    out[threadIdx.x] = sum;
}
