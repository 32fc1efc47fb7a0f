// flash-attention #1344: the threads copy the tile from shared to global memory in another order than they wrote it, and
// are not synchronised before.
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ int tile[128];
    tile[threadIdx.x] = in[threadIdx.x] * 2;
#ifdef FIXED
    __syncthreads();
#endif
    out[threadIdx.x] = tile[127 - threadIdx.x];  // here
}
