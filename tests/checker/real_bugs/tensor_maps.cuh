// Tensor maps of one axis that a kernel makes, as macros, so that every instruction has the line of its use.
#pragma once
#define FIELD(map, field, value) \
    asm volatile("tensormap.replace.tile." field ";" ::"r"(SHARED(map)), value : "memory")
#define SET_ADDRESS(map, to) FIELD(map, "global_address.shared::cta.b1024.b64 [%0], %1", "l"(to))
#define MAKE_MAP(map, to, elements) \
    do { \
        for (int word = 0; word < 16; ++word) map[word] = 0; \
        SET_ADDRESS(map, to); \
        FIELD(map, "rank.shared::cta.b1024.b32 [%0], %1", "n"(0)); \
        FIELD(map, "box_dim.shared::cta.b1024.b32 [%0], 0, %1", "r"(elements)); \
        FIELD(map, "global_dim.shared::cta.b1024.b32 [%0], 0, %1", "r"(elements)); \
        FIELD(map, "element_stride.shared::cta.b1024.b32 [%0], 0, %1", "r"(1)); \
        FIELD(map, "elemtype.shared::cta.b1024.b32 [%0], %1", "n"(3)); \
    } while (0)
#define RELEASE_MAPS() asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory")
#define ACQUIRE_MAP(place) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(place) : "memory")
#define PUBLISH_MAP(place, map) \
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::"l"( \
                     place), \
                 "r"(SHARED(map)) : "memory")
#define LOAD_TILE(to, place, at, bar) \
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"( \
                     SHARED(to)), \
                 "l"(place), "r"(at), "r"(SHARED(bar)) : "memory")
#define STORE_TILE(place, at, from) \
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];" ::"l"(place), "r"(at), \
                 "r"(SHARED(from)) : "memory")
