// Packing a product's weights, and running it over the pool.

#include "product.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace evenflow {
namespace {

// Rows that meet a range of panels before the next rows do: their activations stay in the cache.
constexpr int kRowsPerBlock = 192;

// How a product is cut: units of neighbouring panels, each thread owning a range of units, and in
// it the blocks of rows one after the other.
struct Cut {
  int panels_per_unit, num_units, rows_per_block, num_blocks;
};

Cut cut_product(const Product& product, int rows, bool paired, int threads) {
  Cut cut;
  const int panels = static_cast<int>(product.panels());
  // enough units for a late thread's share to be taken over; few, so that claiming stays cheap
  int per_unit = std::clamp(panels / (threads * 6), 1, 8);
  if (rows > kRowsPerBlock) per_unit = std::min(per_unit, 2);
  if (paired || per_unit > 1) per_unit = (per_unit + 1) / 2 * 2;
  cut.panels_per_unit = per_unit;
  cut.num_units = (panels + per_unit - 1) / per_unit;
  cut.num_blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  // equal blocks, in whole register tiles
  const int tiles = (rows + 5) / 6;
  cut.rows_per_block = (tiles + cut.num_blocks - 1) / cut.num_blocks * 6;
  cut.num_blocks = (rows + cut.rows_per_block - 1) / cut.rows_per_block;
  return cut;
}

}  // namespace

Product::Product(WeightFormat format, int64_t depth, std::vector<WeightSource> sources, bool paired)
    : format_(format), depth_(depth), paired_(paired), sources_(std::move(sources)) {
  for (const WeightSource& source : sources_) {
    if (source_row_bytes(source.ggml_type, depth) != source.row_bytes) {
      throw std::invalid_argument("a weight's row has " + std::to_string(source.row_bytes) +
                                  " bytes, but " + std::to_string(depth) + " values take " +
                                  std::to_string(source_row_bytes(source.ggml_type, depth)));
    }
    if (!can_pack(source.ggml_type, format)) {
      throw std::invalid_argument("weights of GGUF type " + std::to_string(source.ggml_type) +
                                  " cannot be packed as format " +
                                  std::to_string(static_cast<int>(format)));
    }
    if (source.ggml_type != sources_[0].ggml_type) {
      throw std::invalid_argument("matrices that are multiplied together must share their type");
    }
    columns_ += source.num_rows;
  }
  if (paired) {
    if (sources_.size() != 2 || sources_[0].num_rows != sources_[1].num_rows) {
      throw std::invalid_argument("gate and up must be two matrices of the same shape");
    }
    columns_ /= 2;
  }
  panels_ = evenflow::num_panels(columns_) * (paired ? 2 : 1);
}

const uint8_t* Product::panel(int64_t index) const {
  return memory_ + index * panel_bytes(format_, depth_);
}

// Where the weights of an output column lie; nullptr for the padding of the last panel.
const uint8_t* Product::source_row(int64_t column, bool up) const {
  if (column >= columns_) return nullptr;
  size_t index = up ? 1 : 0;
  if (!paired_) {
    while (column >= sources_[index].num_rows) column -= sources_[index++].num_rows;
  }
  const WeightSource& source = sources_[index];
  const int64_t row = source.row_order == nullptr ? column : source.row_order[column];
  return source.rows + row * source.row_bytes;
}

void Product::pack_tile(int tile) {
  const bool up = paired_ && tile % 2 == 1;
  const int64_t first = (paired_ ? tile / 2 : tile) * int64_t{kPanelColumns};
  uint8_t* panel = memory_ + tile * panel_bytes(format_, depth_);
  const uint8_t* rows[kPanelColumns];
  for (int c = 0; c < kPanelColumns; ++c) rows[c] = source_row(first + c, up);
  pack_panel(format_, sources_[0].ggml_type, depth_, rows, panel);
}

void multiply(const Kernels& kernels, ThreadPool& pool, ThreadScratch& scratch,
              const Product& product, const Rows& rows, Epilogue epilogue, const float* bias,
              void* out, int64_t out_stride, const Product* next) {
  const int threads = pool.num_threads();
  const Cut cut = cut_product(product, rows.count, epilogue == Epilogue::kSiluMul, threads);
  GemmArgs args{};
  args.x = rows.x;
  args.x_stride = rows.stride;
  args.x_sums = rows.sums;
  args.x_sums_stride = rows.sums_stride;
  args.weights = product.panel(0);
  args.bias = bias;
  args.out = out;
  args.out_stride = out_stride;
  args.rows = rows.count;
  args.depth = static_cast<int32_t>(product.depth());
  args.columns = static_cast<int32_t>(product.columns());
  args.format = product.format();
  args.epilogue = epilogue;
  const int panels = static_cast<int>(product.panels());
  const auto run_tile = [&](int tile, int thread) {
    // which thread's range the tile lies in, also when it is stolen
    int owner = 0;
    while (owner + 1 < threads &&
           tile >= pool.first_unit(cut.num_units, owner + 1) * cut.num_blocks) {
      ++owner;
    }
    const int first = pool.first_unit(cut.num_units, owner);
    const int units = pool.first_unit(cut.num_units, owner + 1) - first;
    const int local = tile - first * cut.num_blocks;
    const int unit = first + local % units;
    const int row = local / units * cut.rows_per_block;
    const int panel = unit * cut.panels_per_unit;
    GemmArgs own = args;
    if (local + 1 == units * cut.num_blocks && next != nullptr) {
      own.next_weights = next->panel(next->panels() * owner / threads);
      own.next_bytes = std::min<int64_t>(2, next->panels()) * (next->panel(1) - next->panel(0));
    } else {
      const int after = first + (local + 1) % units;
      own.next_weights = product.panel(after * cut.panels_per_unit);
      own.next_bytes = std::min(2, cut.panels_per_unit) * (product.panel(1) - product.panel(0));
    }
    kernels.gemm(own, row, std::min(rows.count, row + cut.rows_per_block), panel,
                 std::min(panels, panel + cut.panels_per_unit), scratch.of[thread].bytes());
  };
  pool.run(cut.num_units * cut.num_blocks, run_tile, cut.num_blocks);
}

}  // namespace evenflow
