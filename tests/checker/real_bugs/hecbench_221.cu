// HeCBench #221: lane 0 stores a value for its warp, and the other lanes load it without __syncwarp().
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ int base[4];
    int warp = threadIdx.x / 32;
    if ((threadIdx.x & 31) == 0) base[warp] = in[warp];
#ifdef FIXED
    __syncwarp();
#endif
    out[threadIdx.x] = base[warp] + threadIdx.x;  // here
}
