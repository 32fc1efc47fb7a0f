// Descriptors, scale layouts and tensor maps that nvcc makes of CuTe's and CUTLASS's layouts; see nvcc.py.
//
// A kernel prints descriptors of operands in shared memory and of instructions; the host encodes tensor maps.

#include <cstdint>
#include <cstdio>

#include <cute/atom/copy_traits_sm90_im2col.hpp>
#include <cute/tensor.hpp>
#include <cutlass/conv/collective/detail.hpp>
#include <cutlass/conv/convnd_problem_shape.hpp>
#include <cutlass/conv/convolution.h>
#include <cutlass/detail/sm100_blockscaled_layout.hpp>
#include <cutlass/numeric_types.h>
#include <cutlass/util/packed_stride.hpp>

using namespace cute;

constexpr auto K = UMMA::Major::K;
constexpr auto MN = UMMA::Major::MN;

struct Row {
  uint64_t a, b, scale;
  uint32_t instruction;
};

constexpr int rows = 16;

// The descriptor of one MMA's part of an operand tile: `extent` along M or N, and `step` elements along K.
template <class Type, UMMA::Major major, int extent, int step>
__device__ uint64_t operand(void* place) {
  using Atom = conditional_t<major == K, UMMA::Layout_K_SW128_Atom<Type>, UMMA::Layout_MN_SW128_Atom<Type>>;
  constexpr int width = 128 * 8 / sizeof_bits_v<Type>;
  auto whole = tile_to_shape(Atom{}, Shape<Int<extent>, Int<width>>{});
  auto tile = local_tile(make_tensor(make_smem_ptr<Type>(place), whole), Shape<Int<extent>, Int<step>>{}, make_coord(0, 0));
  return uint64_t(UMMA::make_umma_desc<major>(tile));
}

template <class Type, int extent, int step>
__device__ uint64_t hopper(void* place) {
  constexpr int width = 128 / sizeof(Type);
  auto whole = tile_to_shape(SM90::GMMA::Layout_K_SW128_Atom<Type>{}, Shape<Int<extent>, Int<width>>{});
  auto tile = local_tile(make_tensor(make_smem_ptr<Type>(place), whole), Shape<Int<extent>, Int<step>>{}, make_coord(0, 0));
  return SM90::GMMA::make_gmma_desc<SM90::GMMA::Major::K>(tile).desc_;
}

// The descriptor of a copy of scale factors from shared memory to TMEM, as CUTLASS's block-scaled main loop makes it.
template <class Mma, class Scale, int run, int k>
__device__ uint64_t scale(void* place) {
  using Tiled = decltype(make_tiled_mma(Mma{}));
  using Layout = decltype(cutlass::detail::Sm1xxBlockScaledConfig<run>::deduce_smem_layoutSFA(
      Tiled{}, Shape<_128, _128, Int<k>>{}));
  auto target = make_tensor<typename Tiled::FrgTypeSFA>(shape(Layout{}));
  auto source = make_tensor(make_smem_ptr<Scale>(place), filter_zeros(Layout{}));
  auto compact = make_tensor(target.data(), filter_zeros(target.layout()));
  using Copy = SM100_UTCCP_4x32dp128bit_1cta;
  auto parts = make_utccp_copy(Copy{}, compact).get_slice(0).partition_S(source);
  auto descriptors = get_utccp_smem_desc_tensor<Copy>(parts);
  return uint64_t(*descriptors.data());
}

using half_type = cutlass::half_t;
using bfloat = cutlass::bfloat16_t;
using e4m3 = cutlass::float_e4m3_t;
using e2m1 = cutlass::float_e2m1_t;
using padded = cutlass::detail::float_e2m1_unpacksmem_t;
using ue8m0 = cutlass::float_ue8m0_t;
using ue4m3 = cutlass::float_ue4m3_t;

__global__ void describe(Row* out) {
  extern __shared__ __align__(1024) char memory[];
  if (threadIdx.x != 0) {
    return;
  }
  Row* row = out;
#if defined(HOPPER)
  *row++ = {hopper<half_type, 64, 16>(memory), hopper<half_type, 64, 16>(memory), 0, 0};
  *row++ = {hopper<e4m3, 64, 32>(memory), hopper<e4m3, 32, 32>(memory), 0, 0};
#else
  *row++ = {operand<half_type, K, 128, 16>(memory), operand<half_type, K, 64, 16>(memory), 0,
            uint32_t(UMMA::make_instr_desc<half_type, half_type, float, 128, 64, K, K>())};
  *row++ = {operand<bfloat, K, 64, 16>(memory), operand<bfloat, K, 128, 16>(memory), 0,
            uint32_t(UMMA::make_instr_desc<bfloat, bfloat, float, 64, 128, K, K>())};
  *row++ = {operand<e4m3, K, 128, 32>(memory), operand<e4m3, K, 64, 32>(memory), 0,
            uint32_t(UMMA::make_instr_desc<e4m3, e4m3, float, 128, 64, K, K>())};
  *row++ = {operand<half_type, K, 128, 16>(memory), operand<half_type, MN, 64, 16>(memory), 0,
            uint32_t(UMMA::make_instr_desc<half_type, half_type, float, 256, 128, K, MN>())};
  *row++ = {operand<tfloat32_t, K, 128, 8>(memory), operand<tfloat32_t, K, 64, 8>(memory), 0,
            uint32_t(UMMA::make_instr_desc<tfloat32_t, tfloat32_t, float, 128, 64, K, K>())};
  using Mx8 = SM100_MMA_MXF8F6F4_SS<e4m3, e4m3, float, ue8m0, 128, 128, K, K>;
  *row++ = {operand<e4m3, K, 128, 32>(memory), operand<e4m3, K, 128, 32>(memory), scale<Mx8, ue8m0, 32, 128>(memory),
            uint32_t(UMMA::make_instr_desc_block_scaled<e4m3, e4m3, float, ue8m0, 128, 128, K, K>())};
  using Mx4 = SM100_MMA_MXF4_SS<e2m1, e2m1, float, ue8m0, 128, 128, 32, K, K>;
  *row++ = {operand<e2m1, K, 128, 64>(memory), operand<e2m1, K, 128, 64>(memory), scale<Mx4, ue8m0, 32, 256>(memory),
            uint32_t(UMMA::make_instr_desc_block_scaled<e2m1, e2m1, float, ue8m0, 128, 128, K, K>())};
  using Nv4 = SM100_MMA_MXF4_SS<e2m1, e2m1, float, ue4m3, 128, 128, 16, K, K>;
  *row++ = {operand<e2m1, K, 128, 64>(memory), operand<e2m1, K, 128, 64>(memory), scale<Nv4, ue4m3, 16, 256>(memory),
            uint32_t(UMMA::make_instr_desc_block_scaled<e2m1, e2m1, float, ue4m3, 128, 128, K, K>())};
  using Mixed = SM100_MMA_MXF8F6F4_SS<e4m3, padded, float, ue8m0, 128, 128, K, K>;
  *row++ = {operand<e4m3, K, 128, 32>(memory), operand<uint8_t, K, 128, 32>(memory), scale<Mixed, ue8m0, 32, 128>(memory),
            uint32_t(UMMA::make_instr_desc_block_scaled<e4m3, padded, float, ue8m0, 128, 128, K, K>())};
#endif
}

// Offsets of the scale factors of some rows and runs along K, in the order that the tensor core reads.
template <int run>
void scales(int m, int k) {
  auto layout = cutlass::detail::Sm1xxBlockScaledConfig<run>::tile_atom_to_shape_SFA(make_shape(m, m, k, 1));
  std::printf("scales %d %d %d", run, m, k);
  for (int row = 0; row < m; ++row) {
    for (int at = 0; at < k; at += run) {
      std::printf(" %d", int(layout(row, at, 0)));
    }
  }
  std::printf("\n");
}

// The im2col tensor map of the images of a convolution, and the tiled one of a matrix.
template <class Type>
void maps(int n, int h, int w, int c, int r, int s, int stride, int padding, int dilation) {
  using Shape2 = cutlass::conv::ConvProblemShape<cutlass::conv::Operator::kFprop, 2>;
  Shape2 shape(cutlass::conv::Mode::kCrossCorrelation, {n, h, w, c}, {64, r, s, c}, {padding, padding}, {padding, padding},
               {stride, stride}, {dilation, dilation}, 1);
  using Stride = cute::tuple<cute::tuple<int64_t, int64_t, int64_t>, _1>;
  auto of_a = cutlass::make_cute_packed_stride(Stride{}, shape.stride_A, cutlass::conv::Operator::kFprop);
  Type* place;
  cudaMalloc(&place, sizeof(Type) * n * h * w * c);
  auto images = make_tensor(make_gmem_ptr(place), make_layout(shape.get_shape_A(), of_a));
  auto tile = tile_to_shape(UMMA::Layout_K_SW128_Atom<Type>{}, Shape<_128, Int<128 / sizeof(Type)>>{});
  auto lower = cutlass::conv::collective::detail::compute_lower_corner_whd(shape);
  auto upper = cutlass::conv::collective::detail::compute_upper_corner_whd(shape);
  auto first = cutlass::conv::collective::detail::compute_lower_srt(shape);
  cute::array<int32_t, 2> taps{dilation, dilation};
  make_im2col_tma_copy(SM90_TMA_LOAD_IM2COL{}, images, tile, product_each(cute::shape(tile)), Int<1>{}, cute::shape(lower),
                       cute::shape(upper), cute::reverse(cute::shape(shape.lower_padding)),
                       cute::reverse(cute::shape(shape.upper_padding)), cute::reverse(cute::shape(shape.traversal_stride)),
                       cute::shape(first), cute::shape(taps));
}

int main() {
  Row* held;
  Row found[rows] = {};
  cudaMalloc(&held, sizeof(found));
  describe<<<1, 32, 65536>>>(held);
  if (cudaDeviceSynchronize() != cudaSuccess) {
    return 1;
  }
  cudaMemcpy(found, held, sizeof(found), cudaMemcpyDeviceToHost);
  for (auto& row : found) {
    std::printf("row %llu %llu %llu %u\n", (unsigned long long)row.a, (unsigned long long)row.b,
                (unsigned long long)row.scale, row.instruction);
  }
  scales<32>(256, 512);
  scales<16>(256, 256);
  maps<bfloat>(2, 57, 43, 64, 3, 3, 1, 1, 1);
  maps<bfloat>(2, 57, 43, 72, 7, 7, 2, 3, 1);
  maps<bfloat>(3, 40, 31, 136, 3, 3, 3, 4, 2);
  maps<e4m3>(2, 14, 14, 144, 1, 1, 2, 0, 1);
  return 0;
}
