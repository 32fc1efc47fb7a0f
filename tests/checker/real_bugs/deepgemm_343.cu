// DeepGEMM #343: a warp stores the tensor map of the next group over the one that its loads may still read.
#include "patterns.cuh"
#include "tensor_maps.cuh"
extern "C" __global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int tile[4][32];
    __shared__ alignas(128) unsigned long long map[16];
    __shared__ alignas(8) unsigned long long full[4];
    unsigned long long *place = reinterpret_cast<unsigned long long *>(out + 1024);
    if (threadIdx.x != 0) return;
    for (int at = 0; at < 4; ++at) INIT(&full[at], 1);
    PROXY_FENCE();
    MAKE_MAP(map, in, 32);
    for (int group = 0; group < 4; ++group) {
        SET_ADDRESS(map, in + 32 * group);
#ifdef FIXED
        COMMIT();
        WAIT_READ(0);
#endif
        for (int word = 0; word < 16; ++word) place[word] = map[word];  // here
        RELEASE_MAPS();
        ACQUIRE_MAP(place);
        EXPECT(&full[group], 128);
        LOAD_TILE(tile[group], place, 0, &full[group]);
    }
    for (int group = 0; group < 4; ++group) {
        WAIT(&full[group], 0);
        out[group] = tile[group][0];
    }
}
