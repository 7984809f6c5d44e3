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

// Integers as bf16, straight from a packed panel. `step` is the word j of pack.h, kAt the pair in
// it, v the vector of columns.
template <WeightFormat kFormat>
struct Stored {
  const uint8_t* data;
  __m512i table;  // what a nibble stands for, twice over: the lookup ignores higher bits
  __m512i raw[2];

  explicit Stored(const uint8_t* panel) : data(panel + kHeader<kFormat>) {
    alignas(64) uint16_t entries[32];
    const int zero = kFormat == WeightFormat::kQ4_0 ? 8 : 0;
    for (int i = 0; i < 32; ++i) entries[i] = scalar_to_bf16(static_cast<float>(i % 16 - zero));
    table = _mm512_load_si512(entries);
  }
  EVENFLOW_INLINE void start(int group, int step) {
    const uint8_t* p = data + int64_t{group} * group_bytes(kFormat) + step * 128;
    raw[0] = _mm512_load_si512(p);
    raw[1] = _mm512_load_si512(p + 64);
  }
  template <int kAt>
  EVENFLOW_INLINE void get(int /*group*/, int /*step*/, __m512i (&w)[2]) const {
    for (int v = 0; v < 2; ++v) {
      w[v] = _mm512_permutexvar_epi16(_mm512_srli_epi16(raw[v], 4 * kAt), table);
    }
  }
};

// Both bytes of a bf16 are looked up by the magnitude. Of -128 seven bits are left, all zero: its
// low byte is a zero's, its high byte is put in place.
template <>
struct Stored<WeightFormat::kQ8_0> {
  const uint8_t* data;
  __m512i low[2], high[2];

  explicit Stored(const uint8_t* panel) : data(panel + kHeader<WeightFormat::kQ8_0>) {
    alignas(64) uint8_t lows[128], highs[128];
    for (int i = 0; i < 128; ++i) {
      const uint16_t value = scalar_to_bf16(static_cast<float>(i));
      lows[i] = static_cast<uint8_t>(value);
      highs[i] = static_cast<uint8_t>(value >> 8);
    }
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(lows + 64 * i);
      high[i] = _mm512_load_si512(highs + 64 * i);
    }
  }
  EVENFLOW_INLINE void start(int /*group*/, int /*step*/) {}
  template <int kAt>
  EVENFLOW_INLINE void get(int group, int step, __m512i (&w)[2]) const {
    const uint8_t* p =
        data + int64_t{group} * group_bytes(WeightFormat::kQ8_0) + (4 * step + kAt) * 64;
    const __m512i q = _mm512_load_si512(p), size = _mm512_abs_epi8(q);
    const __m512i lows = _mm512_permutex2var_epi8(low[0], size, low[1]);
    const __m512i unsigned_highs = _mm512_permutex2var_epi8(high[0], size, high[1]);
    // (q & 0x80) | high
    __m512i highs = _mm512_ternarylogic_epi32(unsigned_highs, q, _mm512_set1_epi8(-128), 0xf8);
    highs = _mm512_mask_mov_epi8(highs, _mm512_movepi8_mask(size), _mm512_set1_epi8(-61));
    w[0] = _mm512_unpacklo_epi8(lows, highs);
    w[1] = _mm512_unpackhi_epi8(lows, highs);
  }
};

// Integers as bf16 that were expanded before: a panel is [K / 2][32][2].
struct Expanded {
  const uint16_t* panel;
  // a panel is larger than the first-level cache: fetch two steps ahead
  EVENFLOW_INLINE void start(int group, int step) {
    const uint16_t* ahead = panel + (int64_t{group} * kPairs + 4 * step + 8) * 64;
    for (int line = 0; line < 8; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 32), _MM_HINT_T0);
    }
  }
  template <int kAt>
  EVENFLOW_INLINE void get(int group, int step, __m512i (&w)[2]) const {
    const uint16_t* at = panel + (int64_t{group} * kPairs + 4 * step + kAt) * 64;
    w[0] = _mm512_load_si512(at);
    w[1] = _mm512_load_si512(at + 32);
  }
};

// One group's products: acc[r][v] = sum over the group of weight times activation, pair by pair.
template <int R, class Source>
EVENFLOW_INLINE void add_group(Source& source, int g, const uint16_t* x, int64_t stride,
                               F (&acc)[R][2]) {
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = set1(0.0f);
  const auto pair = [&]<int kAt>(int step) __attribute__((always_inline)) {
    __m512i w[2];
    source.template get<kAt>(g, step, w);
    for (int r = 0; r < R; ++r) {
      const __m512i both = broadcast_pair(x + r * stride + 2 * (4 * step + kAt));
      for (int v = 0; v < 2; ++v) acc[r][v] = dot_pairs(acc[r][v], w[v], both);
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

// R rows by one panel. Fetches `lines` lines of what comes next with every group.
template <int R, WeightFormat kFormat, class Source>
void tile_groups(const GemmArgs& args, int row, const uint8_t* panel, Source source, int column,
                 const char* ahead, int lines, TileSums& sums) {
  const auto* x = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
  const int groups = args.depth / kGroup;
  F total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = set1(0.0f);
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < lines; ++i) _mm_prefetch(ahead + (g * lines + i) * 64, _MM_HINT_T1);
    F acc[R][2];
    add_group<R>(source, g, x + g * kGroup, args.x_stride, acc);
    for (int v = 0; v < 2; ++v) {
      const uint8_t* header = panel + g * group_bytes(kFormat) + v * 32;
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
    for (int v = 0; v < 2; ++v) store(&sums.at[r][column + v * kW], total[r][v]);
  }
}

template <WeightFormat kFormat>
void expand_panel(const uint8_t* panel, int depth, uint16_t* out) {
  Stored<kFormat> source(panel);
  const auto pair = [&]<int kAt>(int g, int step) __attribute__((always_inline)) {
    __m512i w[2];
    source.template get<kAt>(g, step, w);
    uint16_t* at = out + (int64_t{g} * kPairs + 4 * step + kAt) * 64;
    _mm512_store_si512(at, w[0]);
    _mm512_store_si512(at + 32, w[1]);
  };
  for (int g = 0; g < depth / kGroup; ++g) {
    for (int step = 0; step < kPairs / 4; ++step) {
      source.start(g, step);
      pair.template operator()<0>(g, step);
      pair.template operator()<1>(g, step);
      pair.template operator()<2>(g, step);
      pair.template operator()<3>(g, step);
    }
  }
}

// Products of one or two panels with any number of rows: few rows expand in registers, more rows
// expand the panels once.
template <WeightFormat kFormat>
class GroupTiles {
 public:
  static constexpr int kRows = 6;  // group sums and totals of a tile must fit the registers

  GroupTiles(const GemmArgs& args, const PanelRange& range, int panel_end, void* scratch)
      : args_(args),
        bytes_(panel_bytes(kFormat, args.depth)),
        panel_(static_cast<const uint8_t*>(args.weights) + range.panel * bytes_),
        words_(static_cast<uint16_t*>(scratch)),
        panel_words_(int64_t{args.depth} * kPanelColumns),
        num_panels_(range.num_panels),
        expanded_(range.row_end - range.row_begin > kDirectRows) {
    // a single tile reads its panel as one stream, which needs no help
    if (range.row_end - range.row_begin > kRows) ahead_ = what_comes_next(args, range, panel_end);
    for (int p = 0; expanded_ && p < num_panels_; ++p) {
      expand_panel<kFormat>(panel_ + p * bytes_, args.depth, words_ + p * panel_words_);
    }
  }

  template <int R>
  void run(int row, TileSums& sums) {
    for (int p = 0; p < num_panels_; ++p) {
      const uint8_t* panel = panel_ + p * bytes_;
      const int column = p * kPanelColumns, groups = args_.depth / kGroup;
      const int lines = ahead_.lines(groups, kLinesPerGroup);
      const auto tile = [&](auto source) {
        tile_groups<R, kFormat>(args_, row, panel, source, column, ahead_.at, lines, sums);
      };
      if (expanded_) {
        tile(Expanded{words_ + p * panel_words_});
      } else {
        tile(Stored<kFormat>(panel));
      }
      ahead_.at += int64_t{lines} * groups * 64;
    }
  }

 private:
  // Looking up nibbles costs less than reading them back from the second-level cache, at any number
  // of rows; converting int8 pays once.
  static constexpr int kDirectRows = kFormat == WeightFormat::kQ8_0 ? 4 * kRows : INT32_MAX;
  static constexpr int kLinesPerGroup = 16;

  const GemmArgs& args_;
  int64_t bytes_;
  const uint8_t* panel_;
  uint16_t* words_;
  int64_t panel_words_;
  int num_panels_;
  bool expanded_;
  Ahead ahead_;
};

}  // namespace evenflow::EVENFLOW_ISA
