// Bias, penalties, masks and bans on a copy of a row of logits.
#pragma once

#include "sampling_space.h"

namespace evenflow::EVENFLOW_ISA {

EVENFLOW_INLINE int row_count(const int32_t* offsets, int row) {
  return offsets != nullptr ? offsets[row + 1] - offsets[row] : 0;
}

EVENFLOW_INLINE const uint32_t* allowed_mask(const SamplingArgs& args, int row) {
  if (args.allowed_mask_rows == nullptr || args.allowed_mask_rows[row] < 0) return nullptr;
  return args.allowed_masks + int64_t{args.allowed_mask_rows[row]} * args.mask_words;
}

struct Penalties {
  float repetition, presence, frequency;
  bool neutral() const { return repetition == 1.0f && presence == 0.0f && frequency == 0.0f; }
};

EVENFLOW_INLINE Penalties penalties(const SamplingArgs& args, int row) {
  return {args.repetition_penalties != nullptr ? args.repetition_penalties[row] : 1.0f,
          args.presence_penalties != nullptr ? args.presence_penalties[row] : 0.0f,
          args.frequency_penalties != nullptr ? args.frequency_penalties[row] : 0.0f};
}

EVENFLOW_INLINE bool needs_adjusting(const SamplingArgs& args, int row) {
  return row_count(args.banned_offsets, row) > 0 || row_count(args.bias_offsets, row) > 0 ||
         allowed_mask(args, row) != nullptr ||
         (row_count(args.history_offsets, row) > 0 && !penalties(args, row).neutral());
}

// Each id of the history once; `counts` [vocab] may hold anything before.
EVENFLOW_INLINE void penalise(const SamplingArgs& args, int row, int32_t* counts, float* logits) {
  const Penalties p = penalties(args, row);
  const int32_t* ids = args.history_ids + args.history_offsets[row];
  const int count = row_count(args.history_offsets, row);
  for (int i = 0; i < count; ++i) counts[ids[i]] = 0;
  for (int i = args.history_prompt_lens[row]; i < count; ++i) ++counts[ids[i]];
  for (int i = 0; i < count; ++i) {
    const int32_t id = ids[i], drawn = counts[id];
    if (drawn < 0) continue;  // done before
    counts[id] = -1;
    float l = logits[id];
    if (p.repetition != 1.0f) l = l > 0.0f ? l / p.repetition : l * p.repetition;
    if (drawn > 0) {
      l -= static_cast<float>(drawn) * p.frequency;
      l -= p.presence;
    }
    logits[id] = l;
  }
}

// The adjusted row, in space.row.
EVENFLOW_INLINE const float* adjust(const SamplingArgs& args, int row, const float* logits,
                                    const SamplingSpace& space) {
  std::memcpy(space.row, logits, size_t(args.vocab) * sizeof(float));
  for (int i = 0, n = row_count(args.bias_offsets, row); i < n; ++i) {
    const int at = args.bias_offsets[row] + i;
    space.row[args.bias_ids[at]] += args.bias_values[at];
  }
  if (row_count(args.history_offsets, row) > 0 && !penalties(args, row).neutral()) {
    penalise(args, row, space.numbers, space.row);
  }
  if (const uint32_t* mask = allowed_mask(args, row)) {
    for (int i = 0; i < args.vocab; ++i) {
      const bool may = i / 32 < args.mask_words && (mask[i / 32] >> (i % 32) & 1u) != 0;
      if (!may) space.row[i] = kMinusInfinity;
    }
  }
  for (int i = 0, n = row_count(args.banned_offsets, row); i < n; ++i) {
    space.row[args.banned_ids[args.banned_offsets[row] + i]] = kMinusInfinity;
  }
  return space.row;
}

}  // namespace evenflow::EVENFLOW_ISA
