// Functions that stay functions: recursion, tables of pointers, virtual methods, the heap; and words in parts.
#include "prelude.cuh"

struct Node {
    int left, right, value;
};

static __device__ __noinline__ int walk(const Node* tree, int at) {
    if (at < 0) return 0;
    return tree[at].value + 2 * walk(tree, tree[at].left) - 3 * walk(tree, tree[at].right);
}

// Every thread walks the tree from a node of its own: lanes are at different depths.
extern "C" __global__ void tree_walk(const Node* tree, int* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n) out[t] = walk(tree, t);
}

static __device__ __noinline__ void quick_sort(int* from, int* to) {
    if (to - from < 2) return;
    int pivot = from[(to - from) / 2], *low = from, *high = to - 1;
    while (low <= high) {
        while (*low < pivot) ++low;
        while (*high > pivot) --high;
        if (low <= high) {
            int swapped = *low;
            *low++ = *high;
            *high-- = swapped;
        }
    }
    quick_sort(from, high + 1);
    quick_sort(low, to);
}

// A row for each thread, sorted where it lies in local memory.
extern "C" __global__ void sort_recursively(const int* x, int* out, int n) {
    int mine[10], t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    for (int i = 0; i < 10; ++i) mine[i] = x[t * 10 + i];
    quick_sort(mine, mine + 10);
    for (int i = 0; i < 10; ++i) out[t * 10 + i] = mine[i];
}

static __device__ __noinline__ int add_one(int v) { return v + 1; }
static __device__ __noinline__ int doubled(int v) { return v * 2; }
static __device__ __noinline__ int squared(int v) { return v * v; }
typedef int (*Function)(int);
static __device__ Function functions[3] = {add_one, doubled, squared};

struct Shape {
    __device__ virtual int area(int scale) const = 0;
};
struct Square : Shape {
    int side;
    __device__ explicit Square(int side) : side(side) {}
    __device__ int area(int scale) const override { return side * side * scale; }
};
struct Strip : Shape {
    int length;
    __device__ explicit Strip(int length) : length(length) {}
    __device__ int area(int scale) const override { return length + scale; }
};

// Lanes of a warp call different functions, by a table and by the type of an object.
extern "C" __global__ void through_pointers(const int* x, int* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    int v = x[t];
    Square square(v);
    Strip strip(v);
    const Shape* shape = v & 4 ? (const Shape*)&square : (const Shape*)&strip;
    out[t] = functions[v % 3](v) * 1000 + shape->area(t);
}

struct Link {
    int value;
    Link* next;
};

// A list for each thread on the heap, built backwards and taken apart.
extern "C" __global__ void heap_lists(const int* x, int* out, int n) {
    int t = threadIdx.x;
    Link* head = 0;
    for (int i = 0; i < n; ++i) {
        Link* link = new Link;
        link->value = x[i] ^ t;
        link->next = head;
        head = link;
    }
    int total = 0;
    while (head) {
        total = total * 3 + head->value;
        Link* next = head->next;
        delete head;
        head = next;
    }
    out[t] = total;
}

// Bytes and half-words of a register at once.
extern "C" __global__ void words_in_parts(const u32* x, const u32* y, u32* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    u32 a = x[t], b = y[t], r;
    int row = 0;
#define PUT() out[row++ * n + t] = r
    asm("vabsdiff4.u32.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0)); PUT();
    asm("vabsdiff2.u32.u32.u32.add %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(9)); PUT();
    asm("vadd4.s32.s32.s32.sat %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0)); PUT();
    asm("vsub2.u32.u32.u32.sat %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0)); PUT();
    asm("vmax4.u32.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0)); PUT();
    asm("vmin2.s32.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0)); PUT();
    asm("vavrg4.u32.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0)); PUT();
    asm("vset2.s32.s32.lt %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0)); PUT();
    asm("vset4.u32.u32.ge.add %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(100)); PUT();
}

// Spellings that compilers do not write and people do.
extern "C" __global__ void spellings(const float* x, float* out, int n) {
    u32 tx, ty, width;
    asm("mov.v4.u32 {%0, %1, _, _}, %%tid;" : "=r"(tx), "=r"(ty));
    asm("mov.v4.u32 {%0, _, _, _}, %%ntid;" : "=r"(width));
    int t = ty * width + tx;
    if (t >= n) return;
    float a = x[t], b = x[n + t], high, low;
    asm("{\n .reg .v2 .f32 both;\n .reg .pred p;\n max.f32 both.x, %2, %3;\n min.f32 both.y, %2, %3;\n"
        " setp.f32.gtu p, %2, 0f00000000;\n selp.f32 %0, both.x, both.y, p;\n add.f32.rn %1, both.x, both.y;\n}"
        : "=f"(high), "=f"(low) : "f"(a), "f"(b));
    int whole;
    asm("cvt.s32.f32.rni %0, %1;" : "=r"(whole) : "f"(low));
    out[t] = high;
    out[n + t] = (float)whole;
}
