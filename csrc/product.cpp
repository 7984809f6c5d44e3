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

// From so many rows a thread on, threads own rows in place of columns: what a thread wrote it then
// reads itself, from norm to residual, and that costs more between distant cores than reading all
// weights on each.
constexpr int kRowsToOwn = 32;

// How a product is cut into tiles of one block of rows by one unit of neighbouring panels. A thread
// owns a contiguous range of blocks (by_rows) or of units, and takes it block by block.
struct Cut {
  int panels_per_unit, num_units, rows_per_block, num_blocks;
  bool by_rows;

  int num_tiles() const { return num_units * num_blocks; }
  // A thread's tiles are whole multiples of this.
  int owned_together() const { return by_rows ? num_units : num_blocks; }
};

Cut cut_product(const Product& product, int rows, bool paired, int threads) {
  Cut cut;
  const int panels = static_cast<int>(product.panels());
  cut.by_rows = threads > 1 && rows >= kRowsToOwn * threads;
  // enough units for a late thread's share to be taken over; few, so that claiming stays cheap
  int per_unit = std::clamp(panels / (threads * 6), 1, 8);
  if (cut.by_rows || rows > kRowsPerBlock) per_unit = std::min(per_unit, 2);
  if (paired) per_unit = (per_unit + 1) / 2 * 2;
  cut.panels_per_unit = per_unit;
  cut.num_units = (panels + per_unit - 1) / per_unit;
  // equal blocks, as many for every thread where it owns rows
  const int shares = cut.by_rows ? threads : 1, share = (rows + shares - 1) / shares;
  cut.num_blocks = (share + kRowsPerBlock - 1) / kRowsPerBlock * shares;
  cut.rows_per_block = (rows + cut.num_blocks - 1) / cut.num_blocks;
  return cut;
}

// A tile's place, and the unit of panels that its thread is likely to read next: -1 is the first of
// what follows the product.
struct Place {
  int block, unit, next_unit, owner;
};

Place place_of(const Cut& cut, const ThreadPool& pool, int tile) {
  const int together = cut.owned_together(), group = tile / together;
  const int groups = cut.num_tiles() / together, threads = pool.num_threads();
  // which thread's range the tile lies in, also when it is stolen
  int owner = 0;
  while (owner + 1 < threads && group >= pool.first_unit(groups, owner + 1)) ++owner;
  const int begin = pool.first_unit(groups, owner), end = pool.first_unit(groups, owner + 1);
  if (cut.by_rows) {
    const int unit = tile % cut.num_units;
    const bool last = tile + 1 == end * cut.num_units;
    return {group, unit, last ? -1 : (unit + 1) % cut.num_units, owner};
  }
  const int units = end - begin, local = tile - begin * cut.num_blocks;
  const bool last = local + 1 == units * cut.num_blocks;
  return {local / units, begin + local % units, last ? -1 : begin + (local + 1) % units, owner};
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
  const Cut cut = cut_product(product, rows.count, is_gated(epilogue), threads);
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
    const Place place = place_of(cut, pool, tile);
    const int row = place.block * cut.rows_per_block, panel = place.unit * cut.panels_per_unit;
    GemmArgs own = args;
    const Product* after = &product;
    int64_t next_panel = int64_t{place.next_unit} * cut.panels_per_unit;
    if (place.next_unit < 0 && next != nullptr) {
      after = next;
      next_panel = cut.by_rows ? 0 : next->panels() * place.owner / threads;
    } else if (place.next_unit < 0) {
      next_panel = 0;
    }
    const int64_t count =
        std::min<int64_t>(is_gated(args.epilogue) ? 2 : 1, after->panels() - next_panel);
    own.next_weights = after->panel(next_panel);
    own.next_bytes = count * (after->panel(1) - after->panel(0));
    kernels.gemm(own, row, std::min(rows.count, row + cut.rows_per_block), panel,
                 std::min(panels, panel + cut.panels_per_unit), scratch.of[thread].bytes());
  };
  pool.run(cut.num_tiles(), run_tile, cut.owned_together());
}

}  // namespace evenflow
