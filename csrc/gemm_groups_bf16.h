// Weights in groups of 32 with bf16 products: an integer weight is exact in bf16.
#pragma once

#include "gemm.h"
#include "gemm_tile.h"
#include "half.h"
#include "pack.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

#if defined(__clang__)
#define EVENFLOW_UNROLL_GROUP _Pragma("unroll")
#else
#define EVENFLOW_UNROLL_GROUP _Pragma("GCC unroll 16")
#endif

constexpr int kPairs = kGroup / 2;

// Bytes of scales (and mins) before the integers of a group.
template <WeightFormat kFormat>
constexpr int kHeader = kFormat == WeightFormat::kQ4_1 ? 4 * kPanelColumns : 2 * kPanelColumns;

EVENFLOW_INLINE F load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

// Integers as bf16, straight from the packed group. `step` is j of pack.h, kAt the pair in it.
template <WeightFormat kFormat>
struct Stored {
  const uint8_t* data;
  __m512i table;  // what a nibble stands for, twice over: the lookup ignores higher bits
  __m512i raw[2];

  explicit Stored(const uint8_t* panel) : data(panel + kHeader<kFormat>) {
    if constexpr (kFormat != WeightFormat::kQ8_0) {
      alignas(64) uint16_t entries[32];
      const int zero = kFormat == WeightFormat::kQ4_0 ? 8 : 0;
      for (int i = 0; i < 32; ++i) {
        entries[i] = scalar_to_bf16(static_cast<float>(i % 16 - zero));
      }
      table = _mm512_load_si512(entries);
    }
  }
  EVENFLOW_INLINE void start(int group, int step) {
    const uint8_t* p = data + int64_t{group} * group_bytes(kFormat);
    if constexpr (kFormat != WeightFormat::kQ8_0) {
      raw[0] = _mm512_load_si512(p + step * 64);
      raw[1] = _mm512_load_si512(p + (4 + step) * 64);
    }
  }
  template <int kAt>
  EVENFLOW_INLINE __m512i get(int group, int step, int v) const {
    if constexpr (kFormat == WeightFormat::kQ8_0) {
      const uint8_t* p =
          data + int64_t{group} * group_bytes(kFormat) + (4 * step + kAt) * 64 + v * 32;
      const auto* bytes = reinterpret_cast<const __m128i*>(p);
      const F low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(bytes)));
      const F high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(bytes + 1)));
      return (__m512i)_mm512_cvtne2ps_pbh(high, low);
    } else {
      return _mm512_permutexvar_epi16(_mm512_srli_epi16(raw[v], 4 * kAt), table);
    }
  }
};

// Integers as bf16 that were expanded before: [K / 2][32][2].
struct Expanded {
  const uint16_t* panel;
  EVENFLOW_INLINE void start(int, int) {}
  template <int kAt>
  EVENFLOW_INLINE __m512i get(int group, int step, int v) const {
    return _mm512_load_si512(panel + (group * kPairs + 4 * step + kAt) * 64 + v * 32);
  }
};

template <int R, WeightFormat kFormat, class Source>
void tile_groups(const GemmArgs& args, int row, const uint8_t* panel, Source source, int column,
                 TileSums& sums) {
  const auto* x = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
  const int groups = args.depth / kGroup;
  F total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = set1(0.0f);
  for (int g = 0; g < groups; ++g) {
    F acc[R][2];
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = set1(0.0f);
    const uint16_t* xg = x + g * kGroup;
    const auto pair = [&]<int kAt>(int step) __attribute__((always_inline)) {
      const __m512i w0 = source.template get<kAt>(g, step, 0);
      const __m512i w1 = source.template get<kAt>(g, step, 1);
      for (int r = 0; r < R; ++r) {
        const __m512i both = broadcast_pair(xg + r * args.x_stride + 2 * (4 * step + kAt));
        acc[r][0] = dot_pairs(acc[r][0], w0, both);
        acc[r][1] = dot_pairs(acc[r][1], w1, both);
      }
    };
    EVENFLOW_UNROLL_GROUP
    for (int step = 0; step < kPairs / 4; ++step) {
      source.start(g, step);
      pair.template operator()<0>(step);
      pair.template operator()<1>(step);
      pair.template operator()<2>(step);
      pair.template operator()<3>(step);
    }
    const uint8_t* header = panel + g * group_bytes(kFormat);
    for (int v = 0; v < 2; ++v) {
      const F scale = load_halves(header + v * 32);
      for (int r = 0; r < R; ++r) total[r][v] = fma(scale, acc[r][v], total[r][v]);
    }
    if constexpr (kFormat == WeightFormat::kQ4_1) {
      for (int v = 0; v < 2; ++v) {
        const F min = load_halves(header + 2 * kPanelColumns + v * 32);
        for (int r = 0; r < R; ++r) {
          const F sum = set1(args.x_sums[(row + r) * args.x_sums_stride + g]);
          total[r][v] = fma(min, sum, total[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    store(&sums.at[r][column], total[r][0]);
    store(&sums.at[r][column + kW], total[r][1]);
  }
}

template <WeightFormat kFormat>
void expand_panel(const uint8_t* panel, int depth, uint16_t* out) {
  Stored<kFormat> source(panel);
  for (int g = 0; g < depth / kGroup; ++g) {
    uint16_t* to = out + int64_t{g} * kPairs * 64;
    for (int step = 0; step < kPairs / 4; ++step) {
      source.start(g, step);
      for (int v = 0; v < 2; ++v) {
        uint16_t* at = to + step * 4 * 64 + v * 32;
        _mm512_store_si512(at, source.template get<0>(g, step, v));
        _mm512_store_si512(at + 64, source.template get<1>(g, step, v));
        _mm512_store_si512(at + 128, source.template get<2>(g, step, v));
        _mm512_store_si512(at + 192, source.template get<3>(g, step, v));
      }
    }
  }
}

// Products of one panel with any number of rows. One tile expands in registers, more expand once.
template <WeightFormat kFormat>
class GroupTiles {
 public:
  static constexpr int kRows = kTileRows;

  GroupTiles(const GemmArgs& args, const uint8_t* panel, int num_rows, void* scratch)
      : args_(args), panel_(panel), expanded_(num_rows > kRows) {
    words_ = static_cast<uint16_t*>(scratch);
    if (expanded_) expand_panel<kFormat>(panel, args.depth, words_);
  }

  template <int R>
  void run(int row, int column, TileSums& sums) {
    if (expanded_) {
      tile_groups<R, kFormat>(args_, row, panel_, Expanded{words_}, column, sums);
    } else {
      tile_groups<R, kFormat>(args_, row, panel_, Stored<kFormat>(panel_), column, sums);
    }
  }

 private:
  const GemmArgs& args_;
  const uint8_t* panel_;
  bool expanded_;
  uint16_t* words_;
};

}  // namespace evenflow::EVENFLOW_ISA
