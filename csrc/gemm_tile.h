// Register tiles that the products share.
#pragma once

#include "gemm.h"
#include "pack.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

#if EVENFLOW_ISA_LEVEL >= 3

EVENFLOW_INLINE __m512i broadcast_pair(const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, 4);
  return _mm512_set1_epi32(pair);
}

EVENFLOW_INLINE __m512 dot_pairs(__m512 acc, __m512i weights, __m512i x) {
  return _mm512_dpbf16_ps(acc, (__m512bh)weights, (__m512bh)x);
}

#else

// bf16 rows as float32 rows of `depth` values, one after the other.
EVENFLOW_INLINE void widen_rows(const uint16_t* x, int64_t stride, int rows, int depth,
                                float* wide) {
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < depth; k += kW) {
      store(wide + int64_t{r} * depth + k, load_bf16(x + r * stride + k));
    }
  }
}

#endif

// Walks the bytes that come next, some lines in each iteration of a tile. As early as that allows:
// spread out over all tiles they come too late for some.
struct Ahead {
  const char* at = nullptr;
  const char* end = nullptr;

  // Lines of each of a tile's iterations, at most `most`.
  int lines(int iterations, int most) const {
    const int64_t left = (end - at) / 64 / iterations;
    return static_cast<int>(left < most ? left : most);
  }
};

// The panels after the range, or what the caller says.
EVENFLOW_INLINE Ahead what_comes_next(const GemmArgs& args, const PanelRange& range,
                                      int panel_end) {
  const int64_t bytes = panel_bytes(args.format, args.depth);
  const int next = range.panel + range.num_panels;
  if (next < panel_end) {
    const char* at = static_cast<const char*>(args.weights) + next * bytes;
    return {at, at + range.num_panels * bytes};
  }
  const char* after = static_cast<const char*>(args.next_weights);
  return {after, after == nullptr ? nullptr : after + args.next_bytes};
}

// R rows by one panel in float32, two vectors of columns at a time so that sixteen registers hold
// a tile. Weights::pair(k, v) gives vector v of the weights at 2 k and 2 k + 1.
template <int R, class Weights>
EVENFLOW_INLINE void tile_f32(const float* x, int64_t x_stride, const Weights& weights, int pairs,
                              int column, TileSums& sums) {
  constexpr int kPanelVectors = kPanelColumns / kW;
  for (int first = 0; first < kPanelVectors; first += 2) {
    F acc[R][2];
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = set1(0.0f);
    for (int k = 0; k < pairs; ++k) {
      F even[2], odd[2];
      weights.pair(k, first, even[0], odd[0]);
      weights.pair(k, first + 1, even[1], odd[1]);
      for (int r = 0; r < R; ++r) {
        const F x0 = set1(x[r * x_stride + 2 * k]);
        acc[r][0] = fma(even[0], x0, acc[r][0]);
        acc[r][1] = fma(even[1], x0, acc[r][1]);
      }
      for (int r = 0; r < R; ++r) {
        const F x1 = set1(x[r * x_stride + 2 * k + 1]);
        acc[r][0] = fma(odd[0], x1, acc[r][0]);
        acc[r][1] = fma(odd[1], x1, acc[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) {
      store(&sums.at[r][column + first * kW], acc[r][0]);
      store(&sums.at[r][column + (first + 1) * kW], acc[r][1]);
    }
  }
}

template <class Weights>
void tile_f32_rows(int rows, const float* x, int64_t x_stride, const Weights& weights, int pairs,
                   int column, TileSums& sums) {
  with_rows<kTileRows>(
      rows, [&](auto count) { tile_f32<count()>(x, x_stride, weights, pairs, column, sums); });
}

}  // namespace evenflow::EVENFLOW_ISA
