// Finds where a head of the candidates, ordered by logit (largest first, lower id first), ends,
// without sorting them: bins over the range of logits, then bins over the range of the bin in which
// the end lies, until few are left.
#pragma once

#include "sampling_space.h"

namespace evenflow::EVENFLOW_ISA {

struct Edge {
  float logit;
  int32_t id;
};

// Whether candidate a comes before candidate b.
EVENFLOW_INLINE bool comes_before(const Candidates& c, int a, int b) {
  if (c.logits[a] != c.logits[b]) return c.logits[a] > c.logits[b];
  return c.ids[a] < c.ids[b];
}

EVENFLOW_INLINE void sort_few(const Candidates& c, int32_t* order, int count) {
  for (int i = 1; i < count; ++i) {
    const int32_t x = order[i];
    int j = i;
    for (; j > 0 && comes_before(c, x, order[j - 1]); --j) order[j] = order[j - 1];
    order[j] = x;
  }
}

// A candidate stays while the sum of the measures before it is below `wanted`; returns the last
// that stays. The measure is the weight, or 1. There is at least one candidate, all finite.
template <bool kByWeight>
EVENFLOW_INLINE Edge find_edge(const Candidates& c, double wanted, int32_t* active, double* bins) {
  auto measure = [&](int i) { return kByWeight ? static_cast<double>(c.weights[i]) : 1.0; };
  constexpr int kFew = 32;
  int count = c.count;
  for (int i = 0; i < count; ++i) active[i] = i;
  double before = 0.0;
  for (;;) {
    float high = c.logits[active[0]], low = high;
    for (int i = 1; i < count; ++i) {
      const float x = c.logits[active[i]];
      high = x > high ? x : high;
      low = x < low ? x : low;
    }
    if (count <= kFew || high == low) {
      if (high != low) sort_few(c, active, count);  // equal ones are in order of id already
      int last = 0;
      for (int i = 0; i < count && before < wanted; ++i) {
        last = i;
        before += measure(active[i]);
      }
      return {c.logits[active[last]], c.ids[active[last]]};
    }
    const double scale = (kBins - 1) / (static_cast<double>(high) - low);
    auto bin_of = [&](int i) {
      return static_cast<int>((static_cast<double>(high) - c.logits[i]) * scale);
    };
    for (int b = 0; b < kBins; ++b) bins[b] = -1.0;  // nobody there
    for (int i = 0; i < count; ++i) {
      double& bin = bins[bin_of(active[i])];
      bin = (bin < 0.0 ? 0.0 : bin) + measure(active[i]);
    }
    // The end lies in the first bin that reaches `wanted`, or, where rounding leaves none, the
    // last.
    int chosen = 0;
    double before_chosen = before;
    for (int b = 0; b < kBins; ++b) {
      if (bins[b] < 0.0) continue;
      chosen = b;
      before_chosen = before;
      before += bins[b];
      if (before >= wanted) break;
    }
    before = before_chosen;
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (bin_of(active[i]) == chosen) active[kept++] = active[i];
    }
    count = kept;
  }
}

}  // namespace evenflow::EVENFLOW_ISA
