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

template <WeightFormat kFormat>
void run_panels(const GemmArgs& args, const PanelRange& range, int panel_end, void* scratch) {
  using Tiles = GroupTiles<kFormat>;
  Tiles tiles(args, range, panel_end, scratch);
  TileSums sums;
  for_tiles(range, Tiles::kRows, [&](int row, int rows) {
    fetch_tile(args, row, rows, range.panel, range.num_panels);
    with_rows<Tiles::kRows>(rows, [&](auto count) { tiles.template run<count()>(row, sums); });
    store_tile(args, sums, row, rows, range.panel, range.num_panels);
  });
}

}  // namespace

void gemm_groups(const GemmArgs& args, const PanelRange& range, int panel_end, void* scratch) {
  switch (args.format) {
    case WeightFormat::kQ8_0:
      return run_panels<WeightFormat::kQ8_0>(args, range, panel_end, scratch);
    case WeightFormat::kQ4_0:
      return run_panels<WeightFormat::kQ4_0>(args, range, panel_end, scratch);
    default:
      return run_panels<WeightFormat::kQ4_1>(args, range, panel_end, scratch);
  }
}

}  // namespace evenflow::EVENFLOW_ISA
