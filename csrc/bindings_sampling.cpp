// Sampling by itself, in the submodule `_native.ops`, for tests and benchmarks.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "buffer.h"
#include "isa.h"
#include "threads.h"

namespace nb = nanobind;

namespace evenflow {
namespace {

template <class T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Optional arrays of one call, by name; keeps them alive while their pointers are used.
class Named {
 public:
  explicit Named(nb::dict arrays) : arrays_(std::move(arrays)) {}

  // The array's data, or nullptr where it was not given; `size` of -1 takes any length.
  template <class T>
  T* get(const char* name, int64_t size) {
    if (!arrays_.contains(name)) return nullptr;
    const auto array = nb::cast<Flat<T>>(arrays_[name]);
    if (size >= 0 && static_cast<int64_t>(array.shape(0)) != size) {
      throw std::invalid_argument(std::string(name) + " has " + std::to_string(array.shape(0)) +
                                  " entries, not " + std::to_string(size));
    }
    return array.data();
  }
  template <class T>
  T* need(const char* name, int64_t size) {
    T* data = get<T>(name, size);
    if (data == nullptr) throw std::invalid_argument(std::string(name) + " is missing");
    return data;
  }

 private:
  nb::dict arrays_;
};

// Draws a token for each row; the named arrays are those of SamplingArgs.
void sample(const std::string& isa, ThreadPool& pool,
            nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> logits,
            nb::dict arrays, int repeats) {
  const Kernels& kernels = find_kernels(isa);
  Named named(std::move(arrays));
  const auto rows = static_cast<int64_t>(logits.shape(0));
  SamplingArgs args{};
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
  args.banned_ids = named.get<const int32_t>("banned_ids", -1);
  args.banned_offsets = named.get<const int32_t>("banned_offsets", rows + 1);
  args.repetition_penalties = named.get<const float>("repetition_penalties", rows);
  args.presence_penalties = named.get<const float>("presence_penalties", rows);
  args.frequency_penalties = named.get<const float>("frequency_penalties", rows);
  args.history_ids = named.get<const int32_t>("history_ids", -1);
  args.history_offsets = named.get<const int32_t>("history_offsets", rows + 1);
  args.history_prompt_lens = named.get<const int32_t>("history_prompt_lens", rows);
  args.bias_ids = named.get<const int32_t>("bias_ids", -1);
  args.bias_values = named.get<const float>("bias_values", -1);
  args.bias_offsets = named.get<const int32_t>("bias_offsets", rows + 1);
  args.allowed_masks = named.get<const uint32_t>("allowed_masks", -1);
  args.allowed_mask_rows = named.get<const int32_t>("allowed_mask_rows", rows);
  args.num_logprobs = named.get<const int32_t>("num_logprobs", rows);
  args.tokens = named.need<int32_t>("tokens", rows);
  if (args.num_logprobs != nullptr) {
    for (int64_t r = 0; r < rows; ++r) {
      args.max_logprobs =
          args.num_logprobs[r] > args.max_logprobs ? args.num_logprobs[r] : args.max_logprobs;
    }
    args.token_logprobs = named.need<float>("token_logprobs", rows);
    args.token_ranks = named.need<int32_t>("token_ranks", rows);
    args.top_ids = named.need<int32_t>("top_ids", rows * args.max_logprobs);
    args.top_logprobs = named.need<float>("top_logprobs", rows * args.max_logprobs);
  }
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
