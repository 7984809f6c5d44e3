// Products of a few or many rows of activations with packed weights.
//
// The law: an output element is summed over K in one order that depends on the weight format and
// on nothing else. For float32 and bf16 weights one accumulator takes the products with K ascending
// (in pairs where the machine has bf16 products). For the formats in groups of 32, an accumulator
// sums the integer weights times the activations over a group, again with K ascending, and then
//   total = fma(scale, group sum, total), and for Q4_1 total = fma(min, sum of x, total),
// group after group. Row count, tile shape, and thread decide only who computes an element.
#pragma once

#include <type_traits>

#include "kernels.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

void gemm(const GemmArgs& args, int row_begin, int row_end, int panel_begin, int panel_end,
          void* scratch);
size_t gemm_scratch_bytes(int depth);

// Rows of one register tile by two vectors of columns: room is left for the weights and a
// broadcast. A tile is one panel wide, so that its weights are read as one stream: the processor's
// own prefetchers follow one stream to memory's full rate, two interleaved ones at half of it.
inline constexpr int kTileRows = kNumVectorRegisters >= 32 ? 12 : 6;

// A block of finished sums on its way to the epilogue: [kTileRows][2 panels].
struct TileSums {
  alignas(64) float at[kTileRows][2 * kPanelColumns];
};

// One panel, or a pair of gate and up, and all rows of a range.
struct PanelRange {
  int row_begin, row_end;
  int panel, num_panels;
};

// Calls tile(row, rows) for tiles of at most `most` rows. They are of equal height: a last one of a
// row or two would keep few sums in flight.
template <class Tile>
void for_tiles(const PanelRange& range, int most, const Tile& tile) {
  const int count = range.row_end - range.row_begin;
  const int num_tiles = (count + most - 1) / most;
  for (int i = 0; i < num_tiles; ++i) {
    const int row = range.row_begin + count * i / num_tiles;
    tile(row, range.row_begin + count * (i + 1) / num_tiles - row);
  }
}

// Calls run(std::integral_constant<int, rows>) for 1 <= rows <= kMost.
template <int kMost, class Run>
void with_rows(int rows, const Run& run) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return with_rows<kMost - 1>(rows, run);
  }
  run(std::integral_constant<int, kMost>());
}

// Stores the sums of `rows` rows from `row` on, as args.epilogue says.
void store_tile(const GemmArgs& args, const TileSums& sums, int row, int rows, int panel,
                int num_panels);

// Asks for the lines that the tile will be stored to (and, by kAddF32, read from).
void fetch_tile(const GemmArgs& args, int row, int rows, int panel, int num_panels);

// The formats in groups of 32 (gemm_groups.cpp).
void gemm_groups(const GemmArgs& args, const PanelRange& range, int panel_end, void* scratch);

}  // namespace evenflow::EVENFLOW_ISA
