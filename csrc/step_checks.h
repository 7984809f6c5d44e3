// Every number that crosses into the step is checked here, once, before a kernel sees it.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "model.h"

namespace evenflow {

// What the arrays of a step may refer to.
struct StepLimits {
  int32_t vocab;
  int64_t max_positions;
  int32_t num_blocks;  // of 64 slots
};

// Throws std::invalid_argument with the array, the index and both numbers.
// Also proves that no two tokens write the same slot of the pool and that a written slot belongs to
// its own span's table, so that a step can neither race nor touch another's memory.
void check_step(const StepInput& step, const StepLimits& limits);

// Lengths of the arrays of a SamplingArgs that are not one entry per row.
struct SamplingSizes {
  int64_t banned, history, bias, mask_words;
};

// args as for Model::sample; num_rows and vocab filled in; arrays that are absent are nullptr.
void check_sampling(const SamplingArgs& args, const SamplingSizes& sizes);

}  // namespace evenflow
