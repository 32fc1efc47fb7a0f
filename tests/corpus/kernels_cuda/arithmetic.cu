// Arithmetic instruction by instruction: integers, float32 with every rounding, packed halves, 8-bit floats.
#include "prelude.cuh"

#define ROW(i, value) out[(i) * n + t] = (int)(value)

// Twenty-four functions of two words.
extern "C" __global__ void integers(const int* x, const int* y, int* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    int a = x[t], b = y[t];
    u32 ua = a, ub = b, r;
    asm("prmt.b32 %0, %1, %2, 0x7531;" : "=r"(r) : "r"(ua), "r"(ub));
    ROW(0, r);
    asm("prmt.b32 %0, %1, %2, 0x8c4d;" : "=r"(r) : "r"(ua), "r"(ub));
    ROW(1, r);
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t));
    ROW(2, r);
    asm("bfe.u32 %0, %1, %2, 9;" : "=r"(r) : "r"(ua), "r"(ub & 31));
    ROW(3, r);
    asm("bfe.s32 %0, %1, 5, %2;" : "=r"(r) : "r"(ua), "r"(ub & 15));
    ROW(4, r);
    asm("bfi.b32 %0, %1, %2, %3, 7;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t & 31));
    ROW(5, r);
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t));
    ROW(6, r);
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t));
    ROW(7, r);
    asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t));
    ROW(8, r);
    asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t));
    ROW(9, r);
    asm("shf.r.clamp.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t & 63));
    ROW(10, r);
    asm("sad.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t));
    ROW(11, r);
    asm("bfind.s32 %0, %1;" : "=r"(r) : "r"(ua));
    ROW(12, r);
    asm("bfind.shiftamt.u32 %0, %1;" : "=r"(r) : "r"(ua));
    ROW(13, r);
    ROW(14, __popc(a) * 64 + __clz(a) + __ffs(b));
    ROW(15, __brev(ua));
    ROW(16, __mulhi(a, b));
    asm("mul24.lo.s32 %0, %1, %2;" : "=r"(r) : "r"(ua), "r"(ub));
    ROW(17, r);
    asm("add.sat.s32 %0, %1, %2;" : "=r"(r) : "r"(ua), "r"(ub));
    ROW(18, r);
    asm("slct.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(ua), "r"(ub), "r"(a ^ b));
    ROW(19, r);
    u32 low, high;
    asm("add.cc.u32 %0, %2, %3;\n addc.u32 %1, %4, %5;" : "=r"(low), "=r"(high) : "r"(ua), "r"(ub), "r"(ub), "r"(ua));
    ROW(20, low ^ high);
    asm("sub.cc.u32 %0, %2, %3;\n subc.u32 %1, %4, %5;" : "=r"(low), "=r"(high) : "r"(ua), "r"(ub), "r"(ub), "r"(7));
    ROW(21, low ^ high);
    asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(ua), "r"(ub), "r"(t));
    ROW(22, r);
    short narrow = (short)a;
    ROW(23, (int)(short)(narrow >> 3) * (int)(signed char)b + (u16)(a * b));
}

// Sixty-four bits: products, division, shifts, counts.
extern "C" __global__ void long_integers(const long long* x, const long long* y, long long* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    long long a = x[t], b = y[t];
    u64 ua = a, ub = b;
    out[0 * n + t] = a * b;
    out[1 * n + t] = __mul64hi(a, b);
    out[2 * n + t] = (long long)__umul64hi(ua, ub);
    out[3 * n + t] = a / (b | 1);
    out[4 * n + t] = (long long)(ua % (ub | 1));
    out[5 * n + t] = (a >> (t & 63)) ^ (long long)(ua >> 9) ^ (a << (t & 63));
    out[6 * n + t] = __popcll(ua) * 100 + __clzll(a);
    out[7 * n + t] = (long long)__brevll(ua);
    out[8 * n + t] = a > b ? a - b : (long long)(ua < ub);
    out[9 * n + t] = (long long)(double)a ^ (long long)(float)(b >> 20);
}

// float32 with the four roundings, exact quotients and roots, saturation, flushing and NaN rules.
extern "C" __global__ void floats(const float* x, const float* y, const float* z, float* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    float a = x[t], b = y[t], c = z[t], r;
    int row = 0;
    auto put = [&](float value) { out[row++ * n + t] = value; };
    put(__fadd_rn(a, b)); put(__fadd_rz(a, b)); put(__fadd_ru(a, b)); put(__fadd_rd(a, b));
    put(__fmul_rn(a, b)); put(__fmul_rz(a, b)); put(__fmul_ru(a, b)); put(__fmul_rd(a, b));
    put(__fmaf_rn(a, b, c)); put(__fmaf_rz(a, b, c)); put(__fmaf_ru(a, b, c)); put(__fmaf_rd(a, b, c));
    put(__fdiv_rn(a, b)); put(__fsqrt_rn(fabsf(a))); put(__frcp_rn(b));
    put(__saturatef(a)); put(fminf(a, b)); put(fmaxf(a, c)); put(copysignf(a, b));
    put(floorf(a * 8.0f)); put(ceilf(a * 8.0f)); put(truncf(a * 8.0f)); put(rintf(a * 8.0f));
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); put(r);
    asm("max.xorsign.abs.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); put(r);
    asm("mul.ftz.f32 %0, %1, 0f00800000;" : "=f"(r) : "f"(a)); put(r);
    put((float)__float2int_rz(a * 100.0f)); put((float)__float2int_rn(a * 100.0f)); put((float)__float2uint_ru(fabsf(b) * 9.0f));
    put(__int2float_rz(__float_as_int(a))); put(__int2float_ru(__float_as_int(b)));
    put(__double2float_rd((double)a * (double)b)); put(__double2float_ru((double)a * (double)b));
}

// The approximate functions of the special-function unit.
extern "C" __global__ void approximate(const float* x, float* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    float a = x[t], p = fabsf(a) + 0.0625f, r;
    int row = 0;
    auto put = [&](float value) { out[row++ * n + t] = value; };
    asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(a)); put(r);
    asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(p)); put(r);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(p)); put(r);
    asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(p)); put(r);
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(p)); put(r);
    asm("sin.approx.f32 %0, %1;" : "=f"(r) : "f"(a)); put(r);
    asm("cos.approx.f32 %0, %1;" : "=f"(r) : "f"(a)); put(r);
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(a)); put(r);
    asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(p)); put(r);
    put(__fdividef(a, p)); put(expf(a)); put(logf(p)); put(powf(p, 1.5f)); put(erff(a)); put(cbrtf(p)); put(expm1f(a));
}

// Packed halves: sixteen results for each of f16x2 and bf16x2.
extern "C" __global__ void packed(const u32* x, const u32* y, const u32* z, u32* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    u32 r, a, b, c;
    int row = 0;
#define PUT() out[row++ * n + t] = r
#define BOTH(type)                                                                                      \
    asm("add.rn." type " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); PUT();                              \
    asm("sub.rn." type " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); PUT();                              \
    asm("mul.rn." type " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); PUT();                              \
    asm("fma.rn." type " %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); PUT();                  \
    asm("fma.rn.relu." type " %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); PUT();             \
    asm("min." type " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); PUT();                                 \
    asm("max.NaN." type " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); PUT();                             \
    asm("neg." type " %0, %1;" : "=r"(r) : "r"(a)); PUT();                                             \
    asm("abs." type " %0, %1;" : "=r"(r) : "r"(a)); PUT();                                             \
    asm("{\n .reg .pred p, q;\n setp.lt." type " p|q, %1, %2;\n selp.b32 %0, 1, 0, p;\n @q add.u32 %0, %0, 2;\n}"        \
        : "=r"(r) : "r"(a), "r"(b)); PUT();
    a = x[t], b = y[t], c = z[t];
    BOTH("f16x2")
    a = x[n + t], b = y[n + t], c = z[n + t];
    BOTH("bf16x2")
}

// float32 pairs to every narrow format and back.
extern "C" __global__ void narrow(const float* x, u32* out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    float a = x[t], b = x[n + t];
    u32 r;
    u16 h;
    int row = 0;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(a), "f"(b)); r = h; PUT();
    u16 four = h;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(h) : "f"(a), "f"(b)); r = h; PUT();
    u16 five = h;
    asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(a), "f"(b)); r = h; PUT();
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(four)); PUT();
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"(five)); PUT();
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(b)); PUT();
    u32 halves = r;
    asm("cvt.rz.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(b)); PUT();
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(b)); PUT();
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(h) : "r"(halves)); r = h; PUT();
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(a)); r &= 0xffffe000; PUT();
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(a)); r = h; PUT();
    asm("cvt.rz.f16.f32 %0, %1;" : "=h"(h) : "f"(a)); r = h; PUT();
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(r) : "f"(a)); PUT();
    asm("cvt.rmi.u32.f32 %0, %1;" : "=r"(r) : "f"(a)); PUT();
    asm("cvt.rzi.s8.f32 %0, %1;" : "=r"(r) : "f"(a)); PUT();
    asm("cvt.sat.s8.s32 %0, %1;" : "=r"(r) : "r"(__float2int_rz(a))); PUT();
}
