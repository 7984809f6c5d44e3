// Products with float32 and bf16 weights, and the loop over tiles for all formats.

#include "gemm.h"

#include "gemm_tile.h"
#include "pack.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

#if EVENFLOW_ISA_LEVEL >= 3

constexpr int kPanelVectors = kPanelColumns / kW;

// At fewer rows the processor's own prefetchers keep up with the one stream of weights, and reading
// ahead by hand competes with them.
constexpr int kMinRowsToPrefetch = 5;

// R rows by one panel: kPanelVectors x R accumulators, K ascending in pairs. Fetches kLines lines
// of what comes next in every iteration.
template <int R, int kLines>
void tile_bf16(const uint16_t* x, int64_t x_stride, const uint16_t* weights, int pairs,
               const char* ahead, int column, TileSums& sums) {
  __m512 acc[R][kPanelVectors];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  for (int k = 0; k < pairs; ++k) {
    __m512i w[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) {
      w[v] = _mm512_load_si512(weights + k * int64_t{2 * kPanelColumns} + v * 2 * kW);
    }
    for (int i = 0; i < kLines; ++i) {
      _mm_prefetch(ahead + (int64_t{k} * kLines + i) * 64, _MM_HINT_T1);
    }
    for (int r = 0; r < R; ++r) {
      const __m512i pair = broadcast_pair(x + r * x_stride + 2 * k);
      for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = dot_pairs(acc[r][v], w[v], pair);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) {
      _mm512_store_ps(&sums.at[r][column + v * kW], acc[r][v]);
    }
  }
}

void gemm_bf16(const GemmArgs& args, const PanelRange& range, int panel_end, void*) {
  const int pairs = args.depth / 2;
  const int64_t words = int64_t{args.depth} * kPanelColumns;
  const auto* weights = static_cast<const uint16_t*>(args.weights) + range.panel * words;
  Ahead ahead;
  if (range.row_end - range.row_begin >= kMinRowsToPrefetch) {
    ahead = what_comes_next(args, range, panel_end);
  }
  TileSums sums;
  for_tiles(range, kTileRows, [&](int row, int rows) {
    fetch_tile(args, row, rows, range.panel, range.num_panels);
    const auto* x = static_cast<const uint16_t*>(args.x) + row * args.x_stride;
    for (int p = 0; p < range.num_panels; ++p) {
      const int lines = ahead.lines(pairs, 2);
      with_rows<kTileRows>(rows, [&](auto count) {
        const auto run = [&](auto tile) {
          tile(x, args.x_stride, weights + p * words, pairs, ahead.at, p * kPanelColumns, sums);
        };
        if (lines == 0) return run(tile_bf16<count(), 0>);
        if (lines == 1) return run(tile_bf16<count(), 1>);
        run(tile_bf16<count(), 2>);
      });
      ahead.at += int64_t{lines} * pairs * 64;
    }
    store_tile(args, sums, row, rows, range.panel, range.num_panels);
  });
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
  for_tiles(range, kTileRows, [&](int row, int rows) {
    fetch_tile(args, row, rows, range.panel, range.num_panels);
    widen_rows(static_cast<const uint16_t*>(args.x) + row * args.x_stride, args.x_stride, rows,
               args.depth, wide);
    for (int p = 0; p < range.num_panels; ++p) {
      const Bf16Weights weights{static_cast<const uint16_t*>(args.weights) +
                                (range.panel + p) * words};
      tile_f32_rows(rows, wide, args.depth, weights, args.depth / 2, p * kPanelColumns, sums);
    }
    store_tile(args, sums, row, rows, range.panel, range.num_panels);
  });
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
  for_tiles(range, kTileRows, [&](int row, int rows) {
    fetch_tile(args, row, rows, range.panel, range.num_panels);
    const auto* x = static_cast<const float*>(args.x) + row * args.x_stride;
    for (int p = 0; p < range.num_panels; ++p) {
      const F32Weights weights{static_cast<const float*>(args.weights) + (range.panel + p) * words};
      tile_f32_rows(rows, x, args.x_stride, weights, args.depth / 2, p * kPanelColumns, sums);
    }
    store_tile(args, sums, row, rows, range.panel, range.num_panels);
  });
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
  const int together = is_gated(args.epilogue) ? 2 : 1;
  for (int panel = panel_begin; panel < panel_end; panel += together) {
    const PanelRange range{row_begin, row_end, panel, together};
    if (args.format == WeightFormat::kBf16) {
      gemm_bf16(args, range, panel_end, scratch);
    } else if (args.format == WeightFormat::kF32) {
      gemm_f32(args, range);
    } else {
      gemm_groups(args, range, panel_end, scratch);
    }
  }
}

}  // namespace evenflow::EVENFLOW_ISA
