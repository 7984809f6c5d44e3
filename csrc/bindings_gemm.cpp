// Products by themselves, for tests and benchmarks.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "isa.h"
#include "pack.h"
#include "product.h"
#include "threads.h"

namespace nb = nanobind;

namespace evenflow {
namespace {

using Bytes2 = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words2 = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats2In = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A weight packed for the kernels. With `up`, panels alternate between gate and up columns.
class PackedWeight {
 public:
  PackedWeight(int format, int ggml_type, int64_t depth, Bytes2 rows, std::optional<Bytes2> up) {
    const auto kind = static_cast<WeightFormat>(format);
    if (format < 0 || format > 4 || !can_pack(ggml_type, kind)) {
      throw std::invalid_argument("weights of GGUF type " + std::to_string(ggml_type) +
                                  " cannot be packed as format " + std::to_string(format));
    }
    const auto row_bytes = static_cast<int64_t>(rows.shape(1));
    if (depth <= 0 || depth % kGroup != 0 || source_row_bytes(ggml_type, depth) != row_bytes ||
        (up && (up->shape(0) != rows.shape(0) || up->shape(1) != rows.shape(1)))) {
      throw std::invalid_argument("rows of " + std::to_string(row_bytes) + " bytes do not hold " +
                                  std::to_string(depth) + " weights, a multiple of 32");
    }
    const auto columns = static_cast<int64_t>(rows.shape(0));
    std::vector<WeightSource> sources{{rows.data(), row_bytes, nullptr, columns, ggml_type}};
    if (up) sources.push_back({up->data(), row_bytes, nullptr, columns, ggml_type});
    product_ = Product(kind, depth, std::move(sources), up.has_value());
    memory_ = Buffer(product_.num_bytes());
    product_.place(memory_.bytes());
    for (int tile = 0; tile < product_.num_pack_tiles(); ++tile) product_.pack_tile(tile);
    product_.finish();
  }

  GemmArgs args() const {
    GemmArgs args{};
    args.weights = memory_.bytes();
    args.depth = static_cast<int32_t>(depth());
    args.columns = static_cast<int32_t>(columns());
    args.format = format();
    return args;
  }
  const Product& product() const { return product_; }
  int64_t panels() const { return product_.panels(); }
  int64_t depth() const { return product_.depth(); }
  int64_t columns() const { return product_.columns(); }
  WeightFormat format() const { return product_.format(); }
  size_t num_bytes() const { return product_.num_bytes(); }

 private:
  Product product_;
  Buffer memory_;
};

struct GemmShape {
  int rows_per_tile, panels_per_tile;
};

void check(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

// out (+)= x times the weight; tiles of `rows_per_tile` x `panels_per_tile` on a pool's threads.
void run_gemm(const std::string& isa, ThreadPool& pool, const PackedWeight& weight, GemmArgs args,
              int rows_per_tile, int panels_per_tile, int repeats) {
  const Kernels& kernels = find_kernels(isa);
  check(rows_per_tile > 0 && panels_per_tile > 0 && repeats > 0, "tiles must not be empty");
  check(!is_gated(args.epilogue) || panels_per_tile % 2 == 0, "gate and up panels come in pairs");
  const auto panels = static_cast<int>(weight.panels());
  const int across = (panels + panels_per_tile - 1) / panels_per_tile;
  const int down = (args.rows + rows_per_tile - 1) / rows_per_tile;
  const size_t scratch_bytes = kernels.gemm_scratch_bytes(args.depth);
  std::vector<Buffer> scratch;
  for (int i = 0; i < pool.num_threads(); ++i) scratch.emplace_back(scratch_bytes);
  nb::gil_scoped_release release;
  for (int i = 0; i < repeats; ++i) {
    // tiles of one range of columns follow each other, so a thread keeps to its columns
    pool.run(across * down, [&](int tile, int thread) {
      const int row = tile % down * rows_per_tile, panel = tile / down * panels_per_tile;
      kernels.gemm(args, row, std::min(args.rows, row + rows_per_tile), panel,
                   std::min(panels, panel + panels_per_tile), scratch[thread].bytes());
    });
  }
}

void gemm_bf16_input(const std::string& isa, ThreadPool& pool, const PackedWeight& weight, Words2 x,
                     std::optional<Floats2In> sums, Floats2 out, bool add, int rows_per_tile,
                     int panels_per_tile, int repeats) {
  GemmArgs args = weight.args();
  check(weight.format() != WeightFormat::kF32, "float32 weights take float32 activations");
  check(x.shape(1) == static_cast<size_t>(weight.depth()),
        "x is not as wide as the weight is deep");
  check(out.shape(0) == x.shape(0) && out.shape(1) == static_cast<size_t>(weight.columns()),
        "out must be [rows, columns]");
  if (weight.format() == WeightFormat::kQ4_1) {
    check(sums && sums->shape(0) == x.shape(0) && sums->shape(1) == x.shape(1) / kGroup,
          "Q4_1 needs x_sums [rows, depth / 32]");
    args.x_sums = sums->data();
    args.x_sums_stride = static_cast<int64_t>(sums->shape(1));
  }
  args.x = x.data();
  args.x_stride = weight.depth();
  args.rows = static_cast<int32_t>(x.shape(0));
  args.out = out.data();
  args.out_stride = weight.columns();
  args.epilogue = add ? Epilogue::kAddF32 : Epilogue::kStoreF32;
  run_gemm(isa, pool, weight, args, rows_per_tile, panels_per_tile, repeats);
}

// The product as a step computes it, `repeats` times, itself being what comes next.
void multiply_rows(const std::string& isa, ThreadPool& pool, const PackedWeight& weight, Words2 x,
                   Floats2 out, int repeats) {
  const Kernels& kernels = find_kernels(isa);
  const Product& product = weight.product();
  check(!product.needs_sums() && weight.format() != WeightFormat::kF32,
        "weights in bf16, Q8_0 or Q4_0 are multiplied so");
  check(repeats > 0, "it must be computed once at least");
  check(x.shape(1) == static_cast<size_t>(weight.depth()),
        "x is not as wide as the weight is deep");
  check(out.shape(0) == x.shape(0) && out.shape(1) == static_cast<size_t>(weight.columns()),
        "out must be [rows, columns]");
  ThreadScratch scratch;
  const size_t bytes = kernels.gemm_scratch_bytes(static_cast<int>(weight.depth()));
  for (int i = 0; i < pool.num_threads(); ++i) scratch.of.emplace_back(bytes);
  const Rows rows{x.data(), weight.depth(), nullptr, 0, static_cast<int>(x.shape(0))};
  nb::gil_scoped_release release;
  for (int i = 0; i < repeats; ++i) {
    multiply(kernels, pool, scratch, product, rows, Epilogue::kStoreF32, nullptr, out.data(),
             weight.columns(), &product);
  }
}

void gemm_f32_input(const std::string& isa, ThreadPool& pool, const PackedWeight& weight,
                    Floats2In x, Floats2 out, int rows_per_tile, int panels_per_tile) {
  GemmArgs args = weight.args();
  check(weight.format() == WeightFormat::kF32, "float32 activations take float32 weights");
  check(x.shape(1) == static_cast<size_t>(weight.depth()),
        "x is not as wide as the weight is deep");
  check(out.shape(0) == x.shape(0) && out.shape(1) == static_cast<size_t>(weight.columns()),
        "out must be [rows, columns]");
  args.x = x.data();
  args.x_stride = weight.depth();
  args.rows = static_cast<int32_t>(x.shape(0));
  args.out = out.data();
  args.out_stride = weight.columns();
  args.epilogue = Epilogue::kStoreF32;
  run_gemm(isa, pool, weight, args, rows_per_tile, panels_per_tile, 1);
}

void gemm_gated(const std::string& isa, ThreadPool& pool, const PackedWeight& weight, Words2 x,
                std::optional<Floats2In> sums,
                nb::ndarray<uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> out,
                int rows_per_tile, int panels_per_tile, int repeats) {
  GemmArgs args = weight.args();
  check(weight.format() != WeightFormat::kF32, "float32 weights take float32 activations");
  check(weight.panels() == 2 * num_panels(weight.columns()), "the weight holds no up columns");
  check(x.shape(1) == static_cast<size_t>(weight.depth()),
        "x is not as wide as the weight is deep");
  check(out.shape(0) == x.shape(0) && out.shape(1) == static_cast<size_t>(weight.columns()),
        "out must be [rows, columns]");
  if (weight.format() == WeightFormat::kQ4_1) {
    check(sums && sums->shape(0) == x.shape(0) && sums->shape(1) == x.shape(1) / kGroup,
          "Q4_1 needs x_sums [rows, depth / 32]");
    args.x_sums = sums->data();
    args.x_sums_stride = static_cast<int64_t>(sums->shape(1));
  }
  args.x = x.data();
  args.x_stride = weight.depth();
  args.rows = static_cast<int32_t>(x.shape(0));
  args.out = out.data();
  args.out_stride = weight.columns();
  args.epilogue = Epilogue::kSiluMul;
  run_gemm(isa, pool, weight, args, rows_per_tile, panels_per_tile, repeats);
}

}  // namespace

void bind_gemm(nb::module_& m) {
  nb::class_<PackedWeight>(m, "PackedWeight", "A weight matrix packed for the products.")
      .def(nb::init<int, int, int64_t, Bytes2, std::optional<Bytes2>>(), nb::arg("kind"),
           nb::arg("ggml_type"), nb::arg("depth"), nb::arg("rows"), nb::arg("up") = nb::none())
      .def_prop_ro("num_bytes", &PackedWeight::num_bytes);
  m.def("gemm", &gemm_bf16_input, nb::arg("isa"), nb::arg("pool"), nb::arg("weight"), nb::arg("x"),
        nb::arg("x_sums").none(), nb::arg("out"), nb::arg("add") = false,
        nb::arg("rows_per_tile") = 96, nb::arg("panels_per_tile") = 2, nb::arg("repeats") = 1);
  m.def("multiply", &multiply_rows, nb::arg("isa"), nb::arg("pool"), nb::arg("weight"),
        nb::arg("x"), nb::arg("out"), nb::arg("repeats") = 1);
  m.def("gemm_f32", &gemm_f32_input, nb::arg("isa"), nb::arg("pool"), nb::arg("weight"),
        nb::arg("x"), nb::arg("out"), nb::arg("rows_per_tile") = 96,
        nb::arg("panels_per_tile") = 2);
  m.def("gemm_gated", &gemm_gated, nb::arg("isa"), nb::arg("pool"), nb::arg("weight"), nb::arg("x"),
        nb::arg("x_sums").none(), nb::arg("out"), nb::arg("rows_per_tile") = 96,
        nb::arg("panels_per_tile") = 2, nb::arg("repeats") = 1);
}

}  // namespace evenflow
