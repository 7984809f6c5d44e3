// What a step computes, and the part of it that its logits need.
#pragma once

#include <cstdint>
#include <vector>

namespace evenflow {

// One step, checked; arrays as in evenflow/runner/batch.py, blocks of 64 slots.
struct StepInput {
  const int32_t* token_ids;
  const int32_t* positions;
  const int64_t* slots;
  const int32_t* span_offsets;
  const int32_t* context_lens;
  const int32_t* block_tables;
  const int32_t* block_offsets;
  const int32_t* logit_rows;
  int32_t num_tokens, num_spans, num_rows;
};

// The rows of a step that want logits, as a step of their own: the same positions over the same
// blocks, so the same bits. Neighbouring rows of a span stay together.
class WantedRows {
 public:
  // False where the rows do not ascend, or are all of the step: then there is nothing to leave out.
  bool select(const StepInput& step) {
    const int rows = step.num_rows;
    if (rows == step.num_tokens) return false;
    for (int i = 1; i < rows; ++i) {
      if (step.logit_rows[i] <= step.logit_rows[i - 1]) return false;
    }
    span_offsets_.assign(1, 0);
    context_lens_.clear();
    block_offsets_.clear();
    int span = 0;
    for (int i = 0; i < rows; ++i) {
      const int row = step.logit_rows[i];
      const bool joins = i > 0 && row == step.logit_rows[i - 1] + 1 && row < end_of(step, span);
      while (row >= end_of(step, span)) ++span;
      if (joins) {
        ++span_offsets_.back();
        ++context_lens_.back();
        continue;
      }
      span_offsets_.push_back(i + 1);
      context_lens_.push_back(step.context_lens[span] - (end_of(step, span) - 1 - row));
      block_offsets_.push_back(step.block_offsets[span]);
    }
    step_ = step;
    step_.span_offsets = span_offsets_.data();
    step_.context_lens = context_lens_.data();
    step_.block_offsets = block_offsets_.data();  // where a span's blocks begin; ends are not kept
    step_.logit_rows = nullptr;                   // all rows
    step_.num_tokens = rows;
    step_.num_spans = static_cast<int32_t>(context_lens_.size());
    return true;
  }

  const StepInput& step() const { return step_; }

 private:
  static int end_of(const StepInput& step, int span) { return step.span_offsets[span + 1]; }

  std::vector<int32_t> span_offsets_, context_lens_, block_offsets_;
  StepInput step_{};
};

}  // namespace evenflow
