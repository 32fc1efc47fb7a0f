// flashinfer #3607: the buffer of the sums of warps is used again for the variance while other warps still read the mean.
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ int sums[4];
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31, value = in[threadIdx.x];
    int own = __reduce_add_sync(~0u, value);
    if (lane == 0) sums[warp] = own;
    __syncthreads();
    int mean = (sums[0] + sums[1] + sums[2] + sums[3]) / 128;
#ifdef FIXED
    __syncthreads();
#endif
    int squares = __reduce_add_sync(~0u, (value - mean) * (value - mean));
    if (lane == 0) sums[warp] = squares;  // here
    __syncthreads();
    out[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}
