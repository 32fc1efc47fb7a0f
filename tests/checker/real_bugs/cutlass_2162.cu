// cutlass #2162: the tensor map of the next group is published in place of one that a store may still read.
#include "patterns.cuh"
#include "tensor_maps.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int tile[32];
    __shared__ alignas(128) unsigned long long map[16];
    unsigned long long *place = reinterpret_cast<unsigned long long *>(out + 1024);
    int lane = threadIdx.x;
    if (lane == 0) MAKE_MAP(map, out, 32);
    tile[lane] = in[lane];
    PROXY_FENCE();
    __syncwarp();
    for (int group = 0; group < 4; ++group) {
        if (lane == 0) {
            SET_ADDRESS(map, out + 32 * group);
#ifdef FIXED
            WAIT_READ(0);
#endif
        }
        __syncwarp();
        PUBLISH_MAP(place, map);  // here
        ACQUIRE_MAP(place);
        if (lane == 0) {
            STORE_TILE(place, 0, tile);
            COMMIT();
        }
    }
    WAIT_ALL();
}
