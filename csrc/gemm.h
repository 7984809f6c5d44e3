// Products of a few or many rows of activations with packed weights.
//
// The law: an output element is summed over K in one order that depends on the weight format and
// on nothing else. For float32 and bf16 weights one accumulator takes the products with K ascending
// (in pairs where the machine has bf16 products). For the formats in groups of 32, an accumulator
// sums the integer weights times the activations over a group, again with K ascending, and then
//   total = fma(scale, group sum, total), and for Q4_1 total = fma(min, sum of x, total),
// group after group. Row count, tile shape, and thread decide only who computes an element.
#pragma once

#include "kernels.h"

namespace evenflow::EVENFLOW_ISA {

void gemm(const GemmArgs& args, int row_begin, int row_end, int panel_begin, int panel_end,
          void* scratch);
size_t gemm_scratch_bytes(int depth);

// Rows of one register tile. 6 rows by 4 vectors leave room for the weights and a broadcast.
inline constexpr int kTileRows = 6;

// A block of finished sums on its way to the epilogue: [kTileRows][2 panels].
struct TileSums {
  alignas(64) float at[kTileRows][2 * kPanelColumns];
};

// One or two neighbouring panels, all rows of a range.
struct PanelRange {
  int row_begin, row_end;
  int panel, num_panels;
};

// Stores the sums of `rows` rows from `row` on, as args.epilogue says.
void store_tile(const GemmArgs& args, const TileSums& sums, int row, int rows, int panel,
                int num_panels);

// The formats in groups of 32 (gemm_groups.cpp).
void gemm_groups(const GemmArgs& args, const PanelRange& range, void* scratch);

}  // namespace evenflow::EVENFLOW_ISA
