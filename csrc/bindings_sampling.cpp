// Sampling by itself, in the submodule `_native.ops`, for tests and benchmarks.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "buffer.h"
#include "isa.h"
#include "sampling_arrays.h"
#include "threads.h"

namespace nb = nanobind;

namespace evenflow {
namespace {

// Draws a token for each row; the named arrays are those of SamplingArgs.
void sample(const std::string& isa, ThreadPool& pool,
            nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> logits,
            nb::dict arrays, int repeats) {
  const Kernels& kernels = find_kernels(isa);
  const NamedArrays named(std::move(arrays));
  const auto rows = static_cast<int64_t>(logits.shape(0));
  SamplingArgs args{};
  SamplingSizes sizes{};
  args.logits = logits.data();
  args.logits_stride = static_cast<int64_t>(logits.shape(1));
  args.num_rows = static_cast<int32_t>(rows);
  args.vocab = static_cast<int32_t>(logits.shape(1));
  if (args.vocab == 0) throw std::invalid_argument("the vocabulary is empty");
  args.temperatures = named.need<const float>("temperatures", rows);
  args.top_ks = named.need<const int32_t>("top_ks", rows);
  args.top_ps = named.need<const float>("top_ps", rows);
  args.min_ps = named.need<const float>("min_ps", rows);
  args.seeds = named.need<const uint64_t>("seeds", rows);
  args.positions = named.need<const int64_t>("positions", rows);
  args.banned_ids = named.need<const int32_t>("banned_ids", -1, &sizes.banned);
  args.banned_offsets = named.need<const int32_t>("banned_offsets", rows + 1);
  take_extras(named, args, sizes);
  check_sampling(args, sizes);
  args.tokens = named.need<int32_t>("tokens", rows);
  std::vector<Buffer> scratch;
  for (int i = 0; i < pool.num_threads(); ++i) {
    scratch.emplace_back(kernels.sampling_scratch_bytes(args.vocab));
  }
  nb::gil_scoped_release release;
  for (int i = 0; i < repeats; ++i) {
    pool.run(args.num_rows,
             [&](int row, int thread) { kernels.sample_row(args, row, scratch[thread].bytes()); });
  }
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("sample", &sample, nb::arg("isa"), nb::arg("pool"), nb::arg("logits"), nb::arg("arrays"),
        nb::arg("repeats") = 1);
}

}  // namespace evenflow
