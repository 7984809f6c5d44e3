// Draws one token for a row of logits; a row's draw depends on the row, its parameters, its seed
// and its position alone.
//
// The rule is the one of evenflow/runner/sampler.py (check, greedy, weights, min_p, top_k, top_p,
// draw), with the row adjusted after the check in this order, each float32:
//   bias: l += bias of the id;
//   repetition penalty r, ids seen in prompt or output: l / r where l > 0, else l * r;
//   frequency and presence penalties f, p, ids seen n times in the output: l -= n f, then l -= p;
//   allowed mask and banned ids: l = -inf.
// A row with a target draws nothing: its token is the target.
// Sums are float64 but not in vocabulary order throughout: partial sums of ranges are added. Log
// probabilities are those of the row as it came, before any adjustment or temperature.
#pragma once

#include "kernels.h"

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kTokenBadLogits = -1;    // the largest logit is NaN or infinite
inline constexpr int kTokenNothingLeft = -2;  // every token is banned

void sample_row(const SamplingArgs& args, int row, void* scratch);
size_t sampling_scratch_bytes(int vocab);

}  // namespace evenflow::EVENFLOW_ISA
