// Cuts the attention of a step into tasks, so that threads can share it evenly.
//
// Tokens are cut at multiples of 16, keys (only where a task would be too large a share of the
// step, as one long decode on many threads) at sections. All KV heads of some tokens follow each
// other, so that a thread reads the queries that it wrote, and its output too. The cut decides
// speed, never bits.
#include "attention.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

inline constexpr int kTasksPerThread = 4;

struct SpanShape {
  int length, context;
};

EVENFLOW_INLINE SpanShape shape(const AttentionArgs& args, int span) {
  return {args.span_offsets[span + 1] - args.span_offsets[span], args.context_lens[span]};
}

// Work of tokens [first, first + count) of a span, in rows by keys.
EVENFLOW_INLINE double cost(const SpanShape& s, int first, int count) {
  const double before = s.context - s.length + first;
  return count * (before + 0.5 * (count + 1));
}

// Floats of one section's parts, for either kernel.
EVENFLOW_INLINE int64_t section_floats(const AttentionArgs& args, int count) {
  const int64_t rows = int64_t{(count + 15) / 16 * 16} * (args.num_heads / args.num_kv_heads);
  return rows * (args.head_dim + 2 + 2 * kW);
}

// Tokens of the next task, from `first` on.
EVENFLOW_INLINE int tokens_together(const SpanShape& s, int first, double share) {
  const int left = s.length - first;
  int count = left < kMaxTaskTokens ? left : kMaxTaskTokens;
  while (count > 16 && cost(s, first, count) > share) count = (count - 1) / 16 * 16;
  const int tail = count % 16;
  return count > 16 && tail != 0 && tail <= kMaxRowTokens ? count - tail : count;
}

}  // namespace

AttentionPlan plan_attention(const AttentionArgs& args, int num_threads, AttentionTask* tasks,
                             int max_tasks) {
  double total = 0.0;
  for (int i = 0; i < args.num_spans; ++i) {
    const SpanShape s = shape(args, i);
    total += cost(s, 0, s.length) * args.num_kv_heads;
  }
  const double share = num_threads > 1 ? total / (num_threads * kTasksPerThread) : total;
  AttentionPlan plan{0, 0, 0};
  for (int span = 0; span < args.num_spans; ++span) {
    const SpanShape s = shape(args, span);
    for (int first = 0, count = 0; first < s.length; first += count) {
      count = tokens_together(s, first, share);
      const int last_limit = s.context - s.length + first + count;
      const int sections = (last_limit + kSectionKeys - 1) / kSectionKeys;
      int parts = 1;
      while (parts < sections && cost(s, first, count) > parts * share) ++parts;
      for (int kv_head = 0; kv_head < args.num_kv_heads; ++kv_head) {
        const int group = parts > 1 ? plan.num_groups++ : -1;
        for (int p = 0; p < parts; ++p) {
          const int begin = p * sections / parts, end = (p + 1) * sections / parts;
          if (plan.num_tasks < max_tasks) {
            tasks[plan.num_tasks] = {
                span, kv_head, first, count, begin, end - begin, group, parts, plan.num_partials};
          }
          ++plan.num_tasks;
        }
        if (parts > 1) plan.num_partials += sections * section_floats(args, count);
      }
    }
  }
  return plan;
}

}  // namespace evenflow::EVENFLOW_ISA
