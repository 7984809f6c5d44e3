// Checks of a step's arrays.

#include "step_checks.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace evenflow {
namespace {

[[noreturn]] void refuse(const std::string& array, int64_t index, int64_t value,
                         const std::string& wanted) {
  throw std::invalid_argument(array + "[" + std::to_string(index) + "] is " +
                              std::to_string(value) + ", but " + wanted);
}

void check_range(const char* array, int64_t index, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    refuse(array, index, value,
           "must lie from " + std::to_string(low) + " to " + std::to_string(high));
  }
}

// Offsets rise from 0 to `end`; each part holds at least `least`.
void check_offsets(const char* array, const int32_t* offsets, int count, int64_t end, int least) {
  if (offsets[0] != 0) refuse(array, 0, offsets[0], "the first must be 0");
  for (int i = 0; i < count; ++i) {
    if (int64_t{offsets[i + 1]} - offsets[i] < least) {
      refuse(array, i + 1, offsets[i + 1],
             "must be at least " + std::to_string(int64_t{offsets[i]} + least));
    }
  }
  if (offsets[count] != end) {
    refuse(array, count, offsets[count], "the last must be " + std::to_string(end));
  }
}

void check_span(const StepInput& step, const StepLimits& limits, int span,
                std::vector<int64_t>& written) {
  const int first = step.span_offsets[span], length = step.span_offsets[span + 1] - first;
  const int context = step.context_lens[span];
  check_range("context_lens", span, context, length, limits.max_positions);
  const int32_t* table = step.block_tables + step.block_offsets[span];
  const int blocks = step.block_offsets[span + 1] - step.block_offsets[span];
  if (blocks < (context + kKeysPerBlock - 1) / kKeysPerBlock) {
    refuse("block_offsets", span + 1, step.block_offsets[span + 1],
           "a context of " + std::to_string(context) + " needs " +
               std::to_string((context + kKeysPerBlock - 1) / kKeysPerBlock) +
               " blocks of 64 slots");
  }
  for (int i = 0; i < blocks; ++i) {
    check_range("block_tables", step.block_offsets[span] + i, table[i], 0, limits.num_blocks - 1);
  }
  for (int i = 0; i < length; ++i) {
    const int token = first + i, position = context - length + i;
    check_range("token_ids", token, step.token_ids[token], 0, limits.vocab - 1);
    if (step.positions[token] != position) {
      refuse("positions", token, step.positions[token],
             "the span puts position " + std::to_string(position) + " there");
    }
    const int64_t slot =
        int64_t{table[position / kKeysPerBlock]} * kKeysPerBlock + position % kKeysPerBlock;
    if (step.slots[token] == -1) continue;
    if (step.slots[token] != slot) {
      refuse("slots", token, step.slots[token],
             "its block table puts position " + std::to_string(position) + " into slot " +
                 std::to_string(slot));
    }
    written.push_back(slot);
  }
}

}  // namespace

void check_step(const StepInput& step, const StepLimits& limits) {
  check_offsets("span_offsets", step.span_offsets, step.num_spans, step.num_tokens, 1);
  // the last offset was compared with the table's length where the arrays came in
  check_offsets("block_offsets", step.block_offsets, step.num_spans,
                step.block_offsets[step.num_spans], 1);
  std::vector<int64_t> written;
  written.reserve(static_cast<size_t>(step.num_tokens));
  for (int span = 0; span < step.num_spans; ++span) check_span(step, limits, span, written);
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end());
  if (twice != written.end()) {
    throw std::invalid_argument("two tokens write slot " + std::to_string(*twice));
  }
  for (int row = 0; row < step.num_rows; ++row) {
    check_range("logit_rows", row, step.logit_rows[row], 0, step.num_tokens - 1);
  }
}

namespace {

void check_numbers(const SamplingArgs& args, int row) {
  check_range("top_ks", row, args.top_ks[row], 0, INT32_MAX);
  check_range("positions of the draws", row, args.positions[row], 0, INT64_MAX);
  const bool good = args.temperatures[row] >= 0.0f && args.temperatures[row] <= 100.0f &&
                    args.top_ps[row] > 0.0f && args.top_ps[row] <= 1.0f &&
                    args.min_ps[row] >= 0.0f && args.min_ps[row] <= 1.0f;
  if (!good) {
    throw std::invalid_argument("row " + std::to_string(row) + " has temperature " +
                                std::to_string(args.temperatures[row]) + ", top_p " +
                                std::to_string(args.top_ps[row]) + " and min_p " +
                                std::to_string(args.min_ps[row]) +
                                ", but they must lie in [0, 100], (0, 1] and [0, 1]");
  }
}

void check_ids(const char* array, const int32_t* ids, int64_t count, int vocab) {
  for (int64_t i = 0; i < count; ++i) check_range(array, i, ids[i], 0, vocab - 1);
}

void check_finite(const char* array, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) {
      throw std::invalid_argument(std::string(array) + "[" + std::to_string(i) +
                                  "] is not a finite number");
    }
  }
}

void check_penalties(const SamplingArgs& args, int64_t num_history) {
  const int rows = args.num_rows;
  check_offsets("history_offsets", args.history_offsets, rows, num_history, 0);
  check_ids("history_ids", args.history_ids, num_history, args.vocab);
  check_finite("repetition_penalties", args.repetition_penalties, rows);
  check_finite("presence_penalties", args.presence_penalties, rows);
  check_finite("frequency_penalties", args.frequency_penalties, rows);
  for (int row = 0; row < rows; ++row) {
    const int count = args.history_offsets[row + 1] - args.history_offsets[row];
    check_range("history_prompt_lens", row, args.history_prompt_lens[row], 0, count);
    if (args.repetition_penalties[row] <= 0.0f) {
      throw std::invalid_argument("repetition_penalties[" + std::to_string(row) +
                                  "] is not above 0");
    }
  }
}

}  // namespace

void check_sampling(const SamplingArgs& args, const SamplingSizes& sizes) {
  const int rows = args.num_rows;
  if (rows == 0) return;
  check_offsets("banned_offsets", args.banned_offsets, rows, sizes.banned, 0);
  check_ids("banned_ids", args.banned_ids, sizes.banned, args.vocab);
  for (int row = 0; row < rows; ++row) check_numbers(args, row);
  if (args.history_offsets != nullptr) check_penalties(args, sizes.history);
  if (args.bias_offsets != nullptr) {
    check_offsets("bias_offsets", args.bias_offsets, rows, sizes.bias, 0);
    check_ids("bias_ids", args.bias_ids, sizes.bias, args.vocab);
    check_finite("bias_values", args.bias_values, sizes.bias);
  }
  for (int row = 0; args.allowed_mask_rows != nullptr && row < rows; ++row) {
    const int64_t masks = args.mask_words == 0 ? 0 : sizes.mask_words / args.mask_words;
    check_range("allowed_mask_rows", row, args.allowed_mask_rows[row], -1, masks - 1);
  }
  for (int row = 0; args.num_logprobs != nullptr && row < rows; ++row) {
    check_range("num_logprobs", row, args.num_logprobs[row], -1, args.max_logprobs);
  }
  for (int row = 0; args.targets != nullptr && row < rows; ++row) {
    check_range("targets", row, args.targets[row], -1, args.vocab - 1);
  }
}

}  // namespace evenflow
