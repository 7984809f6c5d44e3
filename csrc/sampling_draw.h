// Which candidates a row keeps, and the draw among them.
#pragma once

#include "philox.h"
#include "sampling_scan.h"
#include "sampling_select.h"

namespace evenflow::EVENFLOW_ISA {

struct RowParams {
  float temperature, top_p, min_p;
  int top_k;  // 0 keeps all
  double uniform;
};

// Keeps the candidates whose lanes `stay(i, left)` names, in order.
template <class Stay>
EVENFLOW_INLINE void keep(Candidates& c, const Stay& stay) {
  int kept = 0;
  for (int i = 0; i < c.count; i += kW) {
    const uint32_t hits = stay(i, c.count - i);
    F ids;
    std::memcpy(&ids, c.ids + i, sizeof(ids));
    const F l = load(c.logits + i), w = load(c.weights + i);
    store_packed(reinterpret_cast<float*>(c.ids) + kept, ids, hits);
    store_packed(c.logits + kept, l, hits);
    store_packed(c.weights + kept, w, hits);
    kept += __builtin_popcount(hits);
  }
  c.count = kept;
}

// Keeps the candidates up to and including the edge.
EVENFLOW_INLINE void keep_up_to(Candidates& c, Edge edge) {
  keep(c, [&](int i, int left) {
    const F l = load(c.logits + i);
    const uint32_t there = left >= kW ? (1u << kW) - 1u : (1u << left) - 1u;
    const uint32_t before = bits(less(set1(edge.logit), l)) & there;
    uint32_t equal = reached(l, set1(edge.logit), left) & ~before;
    uint32_t stay = before;
    for (; equal != 0; equal &= equal - 1) {
      const int lane = __builtin_ctz(equal);
      if (c.ids[i + lane] <= edge.id) stay |= 1u << lane;
    }
    return stay;
  });
}

EVENFLOW_INLINE double total_weight(const Candidates& c) {
  DoubleSum sum;
  for (int i = 0; i < c.count; i += kW) sum.add(load_part(c.weights + i, c.count - i, 0.0f));
  return sum.total();
}

// A logit that at least `count` of the row's logits reach, and not many more: the count-th largest
// of the segments' maxima. Everything, where there are fewer segments.
EVENFLOW_INLINE float cut_for_count(int vocab, int count, const SamplingSpace& space) {
  const int segments = (vocab + kSegment - 1) / kSegment;
  Candidates c = space.found;
  for (int i = 0; i < segments; ++i) {
    if (space.maxima[i] == kMinusInfinity) continue;
    c.ids[c.count] = i;
    c.logits[c.count++] = space.maxima[i];
  }
  if (c.count <= count) return kMinusInfinity;
  return find_edge<false>(c, 0.0, count, space.active, space.bins).logit;
}

// The top_k largest with a weight of at least min_p; weights only for those near the cut.
EVENFLOW_INLINE Candidates largest(const float* logits, int vocab, float top, const RowParams& p,
                                   const SamplingSpace& space) {
  const float cut = cut_for_count(vocab, p.top_k, space);
  Candidates c = space.found;
  collect_large(logits, vocab, cut, c);
  const Weigher weigher(top, p.temperature);
  for (int i = 0; i < c.count; i += kW) {
    F w = load_part(c.logits + i, c.count - i, kMinusInfinity);
    weigher.weigh<1>(&w);
    store_part(c.weights + i, c.count - i, w);
  }
  if (c.count > p.top_k) keep_up_to(c, find_edge<false>(c, 0.0, p.top_k, space.active, space.bins));
  keep(c, [&](int i, int left) { return reached(load(c.weights + i), set1(p.min_p), left); });
  return c;
}

// Candidates whose weight is at least `least`, from a row whose weights are known.
EVENFLOW_INLINE Candidates heaviest(const float* logits, int vocab, float least,
                                    const SamplingSpace& space) {
  Candidates c = space.found;
  collect_heavy(logits, space.weights, vocab, least, c);
  return c;
}

// The first kept id whose running sum is above the threshold, or the last with a weight.
EVENFLOW_INLINE int draw_candidate(const Candidates& c, double uniform) {
  const double threshold = uniform * total_weight(c);
  double running = 0.0;
  int last = 0;
  for (int i = 0; i < c.count; ++i) {
    running += static_cast<double>(c.weights[i]);
    if (running > threshold) return c.ids[i];
    if (c.weights[i] > 0.0f) last = i;
  }
  return c.ids[last];
}

// The same over all weights of a row, range by range.
EVENFLOW_INLINE int draw_any(int vocab, double total, double uniform, const SamplingSpace& space) {
  const double threshold = uniform * total;
  double before = 0.0;
  for (int begin = 0; begin < vocab; begin += kSumRange) {
    const double range = space.range_sums[begin / kSumRange];
    if (before + range > threshold) {
      double running = before;
      for (int i = begin; i < begin + kSumRange && i < vocab; ++i) {
        running += static_cast<double>(space.weights[i]);
        if (running > threshold) return i;
      }
    }
    before += range;
  }
  int last = vocab - 1;
  while (last > 0 && !(space.weights[last] > 0.0f)) --last;
  return last;
}

// Draws from a row whose temperature is above 0; `top` is its largest logit.
EVENFLOW_INLINE int draw(const float* logits, int vocab, float top, const RowParams& p,
                         const SamplingSpace& space) {
  Candidates c;
  if (p.top_k > 0 && p.top_k < vocab) {
    c = largest(logits, vocab, top, p, space);
    if (p.top_p < 1.0f) {
      const double wanted = static_cast<double>(p.top_p) * total_weight(c);
      keep_up_to(c, find_edge_by_weight(c, wanted, space));
    }
    return draw_candidate(c, p.uniform);
  }
  const double total = scan_weights(logits, vocab, Weigher(top, p.temperature), p.min_p,
                                    space.weights, space.range_sums);
  if (p.top_p < 1.0f) {
    // What weighs less than `slight` weighs, all together, less than what top_p leaves out.
    const double wanted = static_cast<double>(p.top_p) * total;
    const double slight = 0.99 * (total - wanted) / vocab;
    const float least = static_cast<float>(slight) > p.min_p ? static_cast<float>(slight) : p.min_p;
    c = heaviest(logits, vocab, least, space);
    keep_up_to(c, find_edge_by_weight(c, wanted, space));
    return draw_candidate(c, p.uniform);
  }
  if (p.min_p > 0.0f) return draw_candidate(heaviest(logits, vocab, p.min_p, space), p.uniform);
  return draw_any(vocab, total, p.uniform, space);
}

}  // namespace evenflow::EVENFLOW_ISA
