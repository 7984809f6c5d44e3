// The sampler's optional arrays, as Python hands them over: a dictionary of flat arrays by name.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels.h"
#include "step_checks.h"

namespace evenflow {

// Looks arrays up by name and checks their type and length; no array is converted or copied. Keeps
// the dictionary, and so the arrays, alive while their pointers are used.
class NamedArrays {
 public:
  explicit NamedArrays(nanobind::dict arrays) : arrays_(std::move(arrays)) {}

  // Whether there is an array of that name.
  bool has(const char* name) const { return arrays_.contains(name); }

  // The array's data; throws std::invalid_argument where it is absent, has another type, or another
  // number of entries than `size`. -1 takes any number, and `found` says how many there are;
  // `width` is the last dimension.
  template <class T>
  T* need(const char* name, int64_t size, int64_t* found = nullptr,
          int64_t* width = nullptr) const {
    if (!has(name)) throw std::invalid_argument(std::string(name) + " is missing");
    nanobind::ndarray<T, nanobind::c_contig, nanobind::device::cpu> array;
    if (!nanobind::try_cast(arrays_[name], array, false)) {
      throw std::invalid_argument(std::string(name) + " has the wrong type or layout");
    }
    const auto entries = static_cast<int64_t>(array.size());
    if (size >= 0 && entries != size) {
      throw std::invalid_argument(std::string(name) + " has " + std::to_string(entries) +
                                  " entries, not " + std::to_string(size));
    }
    if (found != nullptr) *found = entries;
    if (width != nullptr) {
      *width = array.ndim() == 0 ? 0 : static_cast<int64_t>(array.shape(array.ndim() - 1));
    }
    return array.data();
  }

  // As `need`, but nullptr where it is absent.
  template <class T>
  T* get(const char* name, int64_t size, int64_t* found = nullptr) const {
    return has(name) ? need<T>(name, size, found) : nullptr;
  }

 private:
  nanobind::dict arrays_;
};

// Fills in penalties, bias, masks, targets and the report of log probabilities; args.num_rows and
// vocab are set. Contents are checked by check_sampling. Throws as NamedArrays::need.
inline void take_extras(const NamedArrays& named, SamplingArgs& args, SamplingSizes& sizes) {
  const int64_t rows = args.num_rows;
  if (named.has("history_offsets")) {
    args.repetition_penalties = named.need<const float>("repetition_penalties", rows);
    args.presence_penalties = named.need<const float>("presence_penalties", rows);
    args.frequency_penalties = named.need<const float>("frequency_penalties", rows);
    args.history_ids = named.need<const int32_t>("history_ids", -1, &sizes.history);
    args.history_offsets = named.need<const int32_t>("history_offsets", rows + 1);
    args.history_prompt_lens = named.need<const int32_t>("history_prompt_lens", rows);
  }
  if (named.has("bias_offsets")) {
    args.bias_ids = named.need<const int32_t>("bias_ids", -1, &sizes.bias);
    args.bias_values = named.need<const float>("bias_values", sizes.bias);
    args.bias_offsets = named.need<const int32_t>("bias_offsets", rows + 1);
  }
  if (named.has("allowed_masks")) {
    int64_t width = 0;
    args.allowed_masks = named.need<const uint32_t>("allowed_masks", -1, &sizes.mask_words, &width);
    args.mask_words = static_cast<int32_t>(width);
    args.allowed_mask_rows = named.need<const int32_t>("allowed_mask_rows", rows);
  }
  args.targets = named.get<const int32_t>("targets", rows);
  args.num_logprobs = named.get<const int32_t>("num_logprobs", rows);
  if (args.num_logprobs != nullptr) {
    args.token_logprobs = named.need<float>("token_logprobs", rows);
    args.token_ranks = named.need<int32_t>("token_ranks", rows);
    int64_t entries = 0;
    args.top_ids = named.need<int32_t>("top_ids", -1, &entries);
    args.top_logprobs = named.need<float>("top_logprobs", entries);
    args.max_logprobs = rows == 0 ? 0 : static_cast<int32_t>(entries / rows);
    if (rows != 0 && entries % rows != 0) {
      throw std::invalid_argument("top_ids has " + std::to_string(entries) + " entries for " +
                                  std::to_string(rows) + " rows");
    }
  }
}

}  // namespace evenflow
