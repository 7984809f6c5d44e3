// Products with float32 and bf16 weights, and the loop over tiles for all formats.

#include "gemm.h"

#include "gemm_tile.h"
#include "pack.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

#if EVENFLOW_ISA_LEVEL >= 3

constexpr int kPanelVectors = kPanelColumns / kW;

// At few rows the memory is busy with the weights of now; reading ahead would only compete.
constexpr int kMinRowsToPrefetch = 5;

// Two panels (or one), six rows: kVectors x R accumulators, K ascending in pairs.
template <int R, int P, int kLines>
EVENFLOW_INLINE void tile_bf16(const uint16_t* x, int64_t x_stride, const uint16_t* weights,
                               int64_t panel_words, int pairs, const char* ahead, TileSums& sums) {
  constexpr int V = P * kPanelVectors;
  __m512 acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  for (int k = 0; k < pairs; ++k) {
    __m512i w[V];
    for (int v = 0; v < V; ++v) {
      const int64_t at = (v / kPanelVectors) * panel_words + k * int64_t{2 * kPanelColumns};
      w[v] = _mm512_load_si512(weights + at + (v % kPanelVectors) * 2 * kW);
    }
    for (int i = 0; i < kLines; ++i) {
      _mm_prefetch(ahead + (int64_t{k} * kLines + i) * 64, _MM_HINT_T1);
    }
    for (int r = 0; r < R; ++r) {
      const __m512i pair = broadcast_pair(x + r * x_stride + 2 * k);
      for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], w[v], pair);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) _mm512_store_ps(&sums.at[r][v * kW], acc[r][v]);
  }
}

template <int R, int P>
void tile_bf16_ahead(const uint16_t* x, int64_t x_stride, const uint16_t* weights,
                     int64_t panel_words, int pairs, const char* ahead, int lines, TileSums& sums) {
  if (lines == 0) {
    tile_bf16<R, P, 0>(x, x_stride, weights, panel_words, pairs, ahead, sums);
  } else if (lines == 1) {
    tile_bf16<R, P, 1>(x, x_stride, weights, panel_words, pairs, ahead, sums);
  } else {
    tile_bf16<R, P, 2>(x, x_stride, weights, panel_words, pairs, ahead, sums);
  }
}

template <int P>
void tile_bf16_rows(int rows, const uint16_t* x, int64_t x_stride, const uint16_t* weights,
                    int64_t panel_words, int pairs, const char* ahead, int lines, TileSums& sums) {
  const auto call = [&](auto tile) {
    tile(x, x_stride, weights, panel_words, pairs, ahead, lines, sums);
  };
  switch (rows) {
    case 1:
      return call(tile_bf16_ahead<1, P>);
    case 2:
      return call(tile_bf16_ahead<2, P>);
    case 3:
      return call(tile_bf16_ahead<3, P>);
    case 4:
      return call(tile_bf16_ahead<4, P>);
    case 5:
      return call(tile_bf16_ahead<5, P>);
    default:
      return call(tile_bf16_ahead<6, P>);
  }
}

// Walks the bytes that come next, a few lines of each iteration of each tile.
struct Ahead {
  const char* at;
  const char* end;

  // Lines per iteration for a tile of `pairs` iterations when `tiles` are still to come.
  int lines(int pairs, int tiles) const {
    if (end - at < int64_t{pairs} * 64) return 0;
    const int64_t wanted = (end - at) / 64;
    return wanted > int64_t{pairs} * tiles ? 2 : 1;
  }
};

Ahead what_comes_next(const GemmArgs& args, const PanelRange& range, int panel_end) {
  const int64_t bytes = panel_bytes(args.format, args.depth);
  const int next = range.panel + range.num_panels;
  const char* at = static_cast<const char*>(args.weights) + next * bytes;
  if (next < panel_end) {
    return {at, at + (next + 1 < panel_end ? 2 : 1) * bytes};
  }
  const char* after = static_cast<const char*>(args.next_weights);
  return {after, after == nullptr ? nullptr : after + args.next_bytes};
}

void gemm_bf16(const GemmArgs& args, const PanelRange& range, int panel_end, void*) {
  const int pairs = args.depth / 2;
  const int64_t words = int64_t{args.depth} * kPanelColumns;
  const auto* weights = static_cast<const uint16_t*>(args.weights) + range.panel * words;
  Ahead ahead = what_comes_next(args, range, panel_end);
  const int rows_in_range = range.row_end - range.row_begin;
  const bool prefetch = rows_in_range >= kMinRowsToPrefetch;
  TileSums sums;
  for (int row = range.row_begin; row < range.row_end; row += kTileRows) {
    const int left = range.row_end - row;
    const int rows = left < kTileRows ? left : kTileRows;
    const int tiles = (left + kTileRows - 1) / kTileRows;
    const int lines = prefetch ? ahead.lines(pairs, tiles) : 0;
    const auto* x = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
    if (range.num_panels == 2) {
      tile_bf16_rows<2>(rows, x, args.x_stride, weights, words, pairs, ahead.at, lines, sums);
    } else {
      tile_bf16_rows<1>(rows, x, args.x_stride, weights, words, pairs, ahead.at, lines, sums);
    }
    ahead.at += int64_t{lines} * pairs * 64;
    store_tile(args, sums, row, rows, range.panel, range.num_panels);
  }
}

#else  // no bf16 products: widen to float32, exactly, and use float32 products

struct Bf16Weights {
  const uint16_t* panel;
  EVENFLOW_INLINE void pair(int k, int v, F& even, F& odd) const {
    load_bf16_pairs(panel + (int64_t{k} * kPanelColumns + v * kW) * 2, even, odd);
  }
};

void gemm_bf16(const GemmArgs& args, const PanelRange& range, int, void* scratch) {
  auto* wide = static_cast<float*>(scratch);
  const int64_t words = int64_t{args.depth} * kPanelColumns;
  TileSums sums;
  for (int row = range.row_begin; row < range.row_end; row += kTileRows) {
    const int left = range.row_end - row;
    const int rows = left < kTileRows ? left : kTileRows;
    widen_rows(static_cast<const uint16_t*>(args.x) + row * args.x_stride, args.x_stride, rows,
               args.depth, wide);
    for (int p = 0; p < range.num_panels; ++p) {
      const Bf16Weights weights{static_cast<const uint16_t*>(args.weights) +
                                (range.panel + p) * words};
      tile_f32_rows(rows, wide, args.depth, weights, args.depth / 2, p * kPanelColumns, sums);
    }
    store_tile(args, sums, row, rows, range.panel, range.num_panels);
  }
}

#endif

struct F32Weights {
  const float* panel;
  EVENFLOW_INLINE void pair(int k, int v, F& even, F& odd) const {
    even = load(panel + int64_t{2 * k} * kPanelColumns + v * kW);
    odd = load(panel + int64_t{2 * k + 1} * kPanelColumns + v * kW);
  }
};

void gemm_f32(const GemmArgs& args, const PanelRange& range) {
  const int64_t words = int64_t{args.depth} * kPanelColumns;
  TileSums sums;
  for (int row = range.row_begin; row < range.row_end; row += kTileRows) {
    const int left = range.row_end - row;
    const int rows = left < kTileRows ? left : kTileRows;
    const auto* x = static_cast<const float*>(args.x) + row * args.x_stride;
    for (int p = 0; p < range.num_panels; ++p) {
      const F32Weights weights{static_cast<const float*>(args.weights) + (range.panel + p) * words};
      tile_f32_rows(rows, x, args.x_stride, weights, args.depth / 2, p * kPanelColumns, sums);
    }
    store_tile(args, sums, row, rows, range.panel, range.num_panels);
  }
}

}  // namespace

size_t gemm_scratch_bytes(int depth) {
  // twice: a panel of integers widened to float32, its scales and mins, and a tile of widened rows
  const size_t k = static_cast<size_t>(depth);
  const size_t panel = k * kPanelColumns * 4 + k / kGroup * kPanelColumns * 8 + k * kTileRows * 4;
  return 2 * ((panel + 63) / 64 * 64);
}

void gemm(const GemmArgs& args, int row_begin, int row_end, int panel_begin, int panel_end,
          void* scratch) {
  for (int panel = panel_begin; panel < panel_end; panel += 2) {
    const PanelRange range{row_begin, row_end, panel, panel + 1 < panel_end ? 2 : 1};
    if (args.format == WeightFormat::kBf16) {
      gemm_bf16(args, range, panel_end, scratch);
    } else if (args.format == WeightFormat::kF32) {
      gemm_f32(args, range);
    } else {
      gemm_groups(args, range, scratch);
    }
  }
}

}  // namespace evenflow::EVENFLOW_ISA
