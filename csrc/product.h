// A weight matrix packed at load, and its product with a step's rows on all threads.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "kernels.h"
#include "pack.h"
#include "threads.h"

namespace evenflow {

// Rows of one matrix as they lie in a file, possibly in another order.
struct WeightSource {
  const uint8_t* rows;
  int64_t row_bytes;
  const int64_t* row_order;  // row i of the weight is rows[row_order[i]]; nullptr: the same order
  int64_t num_rows;
  int ggml_type;
};

// One matrix, or several that share depth and format: stacked (q, k, v), or paired (gate, up).
class Product {
 public:
  Product() = default;
  // paired: exactly two sources, panels alternate.
  Product(WeightFormat format, int64_t depth, std::vector<WeightSource> sources, bool paired);

  // Where the packed weights go: num_bytes() from a cache line on, which the caller keeps.
  // `pack_tile` fills them.
  void place(uint8_t* memory) { memory_ = memory; }
  // Packing is cut into tiles of one panel, so that all threads can load one model.
  int num_pack_tiles() const { return static_cast<int>(panels_); }
  void pack_tile(int tile);
  // Forgets where the weights came from.
  void finish() { sources_.clear(); }

  WeightFormat format() const { return format_; }
  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }  // of the output: gate and up count once
  int64_t panels() const { return panels_; }
  size_t num_bytes() const { return static_cast<size_t>(panels_ * panel_bytes(format_, depth_)); }
  const uint8_t* panel(int64_t index) const;
  bool needs_sums() const { return format_ == WeightFormat::kQ4_1; }

 private:
  const uint8_t* source_row(int64_t column, bool up) const;

  WeightFormat format_ = WeightFormat::kBf16;
  int64_t depth_ = 0, columns_ = 0, panels_ = 0;
  bool paired_ = false;
  std::vector<WeightSource> sources_;
  uint8_t* memory_ = nullptr;
};

// Rows that a product reads: bf16, or float32 for kF32 weights.
struct Rows {
  const void* x;
  int64_t stride;     // elements
  const float* sums;  // sums over groups of 32, or nullptr
  int64_t sums_stride;
  int count;
};

// Scratch of each thread, 64-byte aligned.
struct ThreadScratch {
  std::vector<Buffer> of;
};

// out = rows times the product (+ bias), as the epilogue says. `next` is what will be multiplied
// after it.
void multiply(const Kernels& kernels, ThreadPool& pool, ThreadScratch& scratch,
              const Product& product, const Rows& rows, Epilogue epilogue, const float* bias,
              void* out, int64_t out_stride, const Product* next);

}  // namespace evenflow
