// Checks of a step's arrays.

#include "step_checks.h"

#include <algorithm>
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

void check_sampling(const SamplingArgs& args, int64_t num_banned) {
  if (args.num_rows == 0) return;
  check_offsets("banned_offsets", args.banned_offsets, args.num_rows, num_banned, 0);
  for (int64_t i = 0; i < num_banned; ++i) {
    check_range("banned_ids", i, args.banned_ids[i], 0, args.vocab - 1);
  }
  for (int row = 0; row < args.num_rows; ++row) {
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
}

}  // namespace evenflow
