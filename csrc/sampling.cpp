// One row: check, adjust, draw, and the log probabilities somebody asked for.
#include "sampling.h"

#include <cmath>

#include "sampling_adjust.h"
#include "sampling_draw.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

EVENFLOW_INLINE int choose(const SamplingArgs& args, int row, const float* logits,
                           const SamplingSpace& space) {
  float top = scan_maxima(logits, args.vocab, space.maxima);
  if (!(top - top == 0.0f)) return kTokenBadLogits;  // NaN or infinite
  if (args.targets != nullptr && args.targets[row] >= 0) return args.targets[row];
  if (needs_adjusting(args, row)) {
    logits = adjust(args, row, logits, space);
    top = scan_maxima(logits, args.vocab, space.maxima);
    if (top == kMinusInfinity) return kTokenNothingLeft;
    if (!(top - top == 0.0f)) return kTokenBadLogits;
  }
  const float temperature = args.temperatures[row];
  if (temperature == 0.0f) return first_of(logits, args.vocab, space.maxima, top);
  const RowParams params{
      temperature, args.top_ps[row], args.min_ps[row], args.top_ks[row],
      philox_uniform(args.seeds[row], static_cast<uint64_t>(args.positions[row]))};
  return draw(logits, args.vocab, top, params, space);
}

// The token's log probability and rank, and the largest few, from the row as it came.
EVENFLOW_INLINE void report(const SamplingArgs& args, int row, const float* logits, int token,
                            const SamplingSpace& space) {
  const int vocab = args.vocab, wanted = args.num_logprobs[row];
  const float top = scan_maxima(logits, vocab, space.maxima);
  const double total =
      scan_weights(logits, vocab, Weigher(top, 1.0f), 0.0f, space.weights, space.range_sums);
  const double norm = static_cast<double>(top) + std::log(total);
  args.token_logprobs[row] = static_cast<float>(static_cast<double>(logits[token]) - norm);
  int rank = 1;
  for (int i = 0; i < vocab; ++i) rank += logits[i] > logits[token] ? 1 : 0;
  args.token_ranks[row] = rank;
  if (wanted <= 0) return;
  int32_t* ids = args.top_ids + int64_t{row} * args.max_logprobs;
  float* values = args.top_logprobs + int64_t{row} * args.max_logprobs;
  Candidates c = space.found;
  collect_large(logits, vocab, cut_for_count(vocab, wanted, space), c);
  for (int i = 0; i < c.count; ++i) c.weights[i] = 0.0f;
  if (c.count > wanted) keep_up_to(c, find_edge<false>(c, 0.0, wanted, space.active, space.bins));
  for (int i = 0; i < c.count; ++i) space.active[i] = i;
  sort_few(c, space.active, c.count);
  for (int i = 0; i < wanted; ++i) {
    const bool there = i < c.count;
    const int at = there ? space.active[i] : 0;
    ids[i] = there ? c.ids[at] : -1;
    values[i] =
        there ? static_cast<float>(static_cast<double>(c.logits[at]) - norm) : kMinusInfinity;
  }
}

}  // namespace

void sample_row(const SamplingArgs& args, int row, void* scratch) {
  const SamplingSpace space = sampling_space(scratch, args.vocab);
  const float* logits = args.logits + (row - args.first_row) * args.logits_stride;
  const int token = choose(args, row, logits, space);
  args.tokens[row] = token;
  if (token >= 0 && args.num_logprobs != nullptr && args.num_logprobs[row] >= 0) {
    report(args, row, logits, token, space);
  }
}

size_t sampling_scratch_bytes(int vocab) {
  const int64_t v = padded(vocab);
  return static_cast<size_t>(7 * (v * 4 + 64) + v / kSegment * 4 + (v / kSumRange + 1 + kBins) * 8 +
                             16 * 64);
}

}  // namespace evenflow::EVENFLOW_ISA
