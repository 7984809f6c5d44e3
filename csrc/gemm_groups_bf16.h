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

// Integers as bf16, straight from the packed groups of P neighbouring panels. `step` is the word j
// of pack.h, kAt the pair in it, v the vector of columns.
template <WeightFormat kFormat, int P>
struct Stored {
  const uint8_t* data[P];
  __m512i table;  // what a nibble stands for, twice over: the lookup ignores higher bits
  __m512i raw[2 * P];

  Stored(const uint8_t* panel, int64_t bytes) {
    for (int p = 0; p < P; ++p) data[p] = panel + p * bytes + kHeader<kFormat>;
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
    if constexpr (kFormat != WeightFormat::kQ8_0) {
      for (int v = 0; v < 2 * P; ++v) {
        const uint8_t* p = data[v / 2] + int64_t{group} * group_bytes(kFormat);
        raw[v] = _mm512_load_si512(p + (v % 2 * 4 + step) * 64);
      }
    }
  }
  template <int kAt>
  EVENFLOW_INLINE __m512i get(int group, int step, int v) const {
    if constexpr (kFormat == WeightFormat::kQ8_0) {
      const uint8_t* p =
          data[v / 2] + int64_t{group} * group_bytes(kFormat) + (4 * step + kAt) * 64 + v % 2 * 32;
      const auto* bytes = reinterpret_cast<const __m128i*>(p);
      const F low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(bytes)));
      const F high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(bytes + 1)));
      return (__m512i)_mm512_cvtne2ps_pbh(high, low);
    } else {
      return _mm512_permutexvar_epi16(_mm512_srli_epi16(raw[v], 4 * kAt), table);
    }
  }
};

// Integers as bf16 that were expanded before: a panel is [K / 2][32][2].
template <int P>
struct Expanded {
  const uint16_t* panel;
  int64_t words;  // of a panel
  // a panel is larger than the first-level cache: fetch two steps ahead
  EVENFLOW_INLINE void start(int group, int step) {
    const uint16_t* ahead = panel + (int64_t{group} * kPairs + 4 * step + 8) * 64;
    for (int p = 0; p < P; ++p) {
      for (int line = 0; line < 8; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead + p * words + line * 32), _MM_HINT_T0);
      }
    }
  }
  template <int kAt>
  EVENFLOW_INLINE __m512i get(int group, int step, int v) const {
    const int64_t at = (int64_t{group} * kPairs + 4 * step + kAt) * 64 + v % 2 * 32;
    return _mm512_load_si512(panel + v / 2 * words + at);
  }
};

// One group's products: acc[r][v] = sum over the group of weight times activation, pair by pair.
template <int R, int V, class Source>
EVENFLOW_INLINE void add_group(Source& source, int g, const uint16_t* x, int64_t stride,
                               F (&acc)[R][V]) {
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) acc[r][v] = set1(0.0f);
  }
  const auto pair = [&]<int kAt>(int step) __attribute__((always_inline)) {
    __m512i w[V];
    for (int v = 0; v < V; ++v) w[v] = source.template get<kAt>(g, step, v);
    for (int r = 0; r < R; ++r) {
      const __m512i both = broadcast_pair(x + r * stride + 2 * (4 * step + kAt));
      for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], w[v], both);
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
}

// R rows by P neighbouring panels, of `bytes` each.
template <int R, int P, WeightFormat kFormat, class Source>
void tile_groups(const GemmArgs& args, int row, const uint8_t* panel, int64_t bytes, Source source,
                 int column, TileSums& sums) {
  constexpr int V = 2 * P;
  const auto* x = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
  const int groups = args.depth / kGroup;
  F total[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) total[r][v] = set1(0.0f);
  }
  for (int g = 0; g < groups; ++g) {
    F acc[R][V];
    add_group<R, V>(source, g, x + g * kGroup, args.x_stride, acc);
    for (int v = 0; v < V; ++v) {
      const uint8_t* header = panel + v / 2 * bytes + g * group_bytes(kFormat) + v % 2 * 32;
      const F scale = load_halves(header);
      for (int r = 0; r < R; ++r) total[r][v] = fma(scale, acc[r][v], total[r][v]);
      if constexpr (kFormat == WeightFormat::kQ4_1) {
        const F min = load_halves(header + 2 * kPanelColumns);
        for (int r = 0; r < R; ++r) {
          const F sum = set1(args.x_sums[(row + r) * args.x_sums_stride + g]);
          total[r][v] = fma(min, sum, total[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(&sums.at[r][column + v * kW], total[r][v]);
  }
}

template <WeightFormat kFormat>
void expand_panel(const uint8_t* panel, int depth, uint16_t* out) {
  Stored<kFormat, 1> source(panel, 0);
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

// Products of one or two panels with any number of rows: few rows expand in registers, more rows
// expand the panels once. At up to three rows both panels go together: one alone has too few chains
// of sums to keep the product units busy.
template <WeightFormat kFormat>
class GroupTiles {
 public:
  static constexpr int kRows = kTileRows;

  GroupTiles(const GemmArgs& args, const PanelRange& range, void* scratch)
      : args_(args),
        bytes_(panel_bytes(kFormat, args.depth)),
        panel_(static_cast<const uint8_t*>(args.weights) + range.panel * bytes_),
        words_(static_cast<uint16_t*>(scratch)),
        panel_words_(int64_t{args.depth} * kPanelColumns),
        num_panels_(range.num_panels),
        expanded_(range.row_end - range.row_begin > kDirectRows) {
    for (int p = 0; expanded_ && p < num_panels_; ++p) {
      expand_panel<kFormat>(panel_ + p * bytes_, args.depth, words_ + p * panel_words_);
    }
  }

  template <int R>
  void run(int row, TileSums& sums) {
    if constexpr (R <= 3) {
      if (num_panels_ == 2) return run_panels<R, 2>(row, 0, sums);
    }
    for (int p = 0; p < num_panels_; ++p) run_panels<R, 1>(row, p, sums);
  }

 private:
  // Looking up nibbles costs less than reading them back from the second-level cache, at any number
  // of rows; converting int8 pays once.
  static constexpr int kDirectRows = kFormat == WeightFormat::kQ8_0 ? kTileRows : INT32_MAX;

  template <int R, int P>
  void run_panels(int row, int first, TileSums& sums) {
    const uint8_t* panel = panel_ + first * bytes_;
    const int column = first * kPanelColumns;
    if (expanded_) {
      const Expanded<P> source{words_ + first * panel_words_, panel_words_};
      tile_groups<R, P, kFormat>(args_, row, panel, bytes_, source, column, sums);
    } else {
      const Stored<kFormat, P> source(panel, bytes_);
      tile_groups<R, P, kFormat>(args_, row, panel, bytes_, source, column, sums);
    }
  }

  const GemmArgs& args_;
  int64_t bytes_;
  const uint8_t* panel_;
  uint16_t* words_;
  int64_t panel_words_;
  int num_panels_;
  bool expanded_;
};

}  // namespace evenflow::EVENFLOW_ISA
