// Products with weights that are stored as integers in groups of 32 along K.
//
// The integers enter a group's sum as they are; scale (and min) come in once a group, in float32.
// So nothing of the file's precision is lost, and every row count feeds the same numbers to the
// same sums.

#include "gemm.h"
#if EVENFLOW_ISA_LEVEL >= 3
#include "gemm_groups_bf16.h"
#else
#include "gemm_groups_f32.h"
#endif

namespace evenflow::EVENFLOW_ISA {
namespace {

template <class Tiles>
void run_rows(Tiles& tiles, int rows, int row, int column, TileSums& sums) {
  switch (rows) {
    case 1:
      return tiles.template run<1>(row, column, sums);
    case 2:
      return tiles.template run<2>(row, column, sums);
    case 3:
      return tiles.template run<3>(row, column, sums);
    case 4:
      return tiles.template run<4>(row, column, sums);
    case 5:
      return tiles.template run<5>(row, column, sums);
    default:
      return tiles.template run<6>(row, column, sums);
  }
}

template <WeightFormat kFormat>
void run_panels(const GemmArgs& args, const PanelRange& range, void* scratch) {
  using Tiles = GroupTiles<kFormat>;
  const int64_t bytes = panel_bytes(kFormat, args.depth);
  const auto* weights = static_cast<const uint8_t*>(args.weights) + range.panel * bytes;
  const int num_rows = range.row_end - range.row_begin;
  // the second panel's scratch lies behind the first's
  const size_t half = gemm_scratch_bytes(args.depth) / 2 / 64 * 64;
  Tiles first(args, weights, num_rows, scratch);
  Tiles second(args, range.num_panels == 2 ? weights + bytes : weights,
               range.num_panels == 2 ? num_rows : 0, static_cast<char*>(scratch) + half);
  TileSums sums;
  for (int row = range.row_begin; row < range.row_end; row += Tiles::kRows) {
    const int left = range.row_end - row;
    const int rows = left < Tiles::kRows ? left : Tiles::kRows;
    run_rows(first, rows, row, 0, sums);
    if (range.num_panels == 2) run_rows(second, rows, row, kPanelColumns, sums);
    store_tile(args, sums, row, rows, range.panel, range.num_panels);
  }
}

}  // namespace

void gemm_groups(const GemmArgs& args, const PanelRange& range, void* scratch) {
  switch (args.format) {
    case WeightFormat::kQ8_0:
      return run_panels<WeightFormat::kQ8_0>(args, range, scratch);
    case WeightFormat::kQ4_0:
      return run_panels<WeightFormat::kQ4_0>(args, range, scratch);
    default:
      return run_panels<WeightFormat::kQ4_1>(args, range, scratch);
  }
}

}  // namespace evenflow::EVENFLOW_ISA
