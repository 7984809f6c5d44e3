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
void run_rows(Tiles& tiles, int rows, int row, TileSums& sums) {
  switch (rows) {
    case 1:
      return tiles.template run<1>(row, sums);
    case 2:
      return tiles.template run<2>(row, sums);
    case 3:
      return tiles.template run<3>(row, sums);
    case 4:
      return tiles.template run<4>(row, sums);
    case 5:
      return tiles.template run<5>(row, sums);
    default:
      return tiles.template run<6>(row, sums);
  }
}

template <WeightFormat kFormat>
void run_panels(const GemmArgs& args, const PanelRange& range, void* scratch) {
  using Tiles = GroupTiles<kFormat>;
  Tiles tiles(args, range, scratch);
  TileSums sums;
  // tiles of equal height: a last one of a row or two would keep few sums in flight
  const int count = range.row_end - range.row_begin;
  const int num_tiles = (count + Tiles::kRows - 1) / Tiles::kRows;
  for (int i = 0; i < num_tiles; ++i) {
    const int row = range.row_begin + count * i / num_tiles;
    const int rows = range.row_begin + count * (i + 1) / num_tiles - row;
    run_rows(tiles, rows, row, sums);
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
