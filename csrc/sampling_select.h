// Finds where a head of the candidates, ordered by logit (largest first, lower id first), ends,
// without sorting them: bins over the range of logits, then bins over the range of the bin in which
// the end lies, until few are left.
#pragma once

#include "sampling_scan.h"

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kNarrowFrom = 256;  // candidates that are worth narrowing down first

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
EVENFLOW_INLINE Edge find_edge(const Candidates& c, double before, double wanted, int32_t* active,
                               double* bins) {
  auto measure = [&](int i) { return kByWeight ? static_cast<double>(c.weights[i]) : 1.0; };
  constexpr int kFew = 32;
  int count = c.count;
  for (int i = 0; i < count; ++i) active[i] = i;
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

// Logits of at least `upper` stay, those below `lower` go, the end lies between.
struct Band {
  float lower, upper;
};

// Narrows the place where weights reach `wanted`, in rounds of seven cuts, until few candidates are
// left in it. Sums are float32 here, so a cut is believed only where it is clear by a thousandth.
EVENFLOW_INLINE Band narrow(const Candidates& c, double wanted) {
  constexpr int kCuts = 7, kRounds = 6, kFew = 128;
  constexpr float kClear = 1.001f;
  const float goal = static_cast<float>(wanted);
  Band band{kMinusInfinity, __builtin_inff()};
  F low = set1(__builtin_inff()), high = set1(kMinusInfinity);
  for (int i = 0; i < c.count; i += kW) {
    const F l = load_part(c.logits + i, c.count - i, c.logits[0]);
    low = select(less(l, low), l, low);
    high = vmax(high, l);
  }
  float from = -reduce_max(sub(set1(0.0f), low)), to = reduce_max(high);
  for (int round = 0; round < kRounds && from < to; ++round) {
    F mass[kCuts], number[kCuts], edge[kCuts];
    float cuts[kCuts];
    for (int k = 0; k < kCuts; ++k) {
      const float share = static_cast<float>(k + 1) / (kCuts + 1);
      cuts[k] = from * (1.0f - share) + to * share;
      mass[k] = number[k] = set1(0.0f);
      edge[k] = set1(cuts[k]);
    }
    for (int i = 0; i < c.count; i += kW) {
      const F l = load_part(c.logits + i, c.count - i, kMinusInfinity);
      const F w = load_part(c.weights + i, c.count - i, 0.0f);
      for (int k = 0; k < kCuts; ++k) {
        const M below = less(l, edge[k]);
        mass[k] = add(mass[k], select(below, set1(0.0f), w));
        number[k] = add(number[k], select(below, set1(0.0f), set1(1.0f)));
      }
    }
    float within = static_cast<float>(c.count), above = 0.0f;
    for (int k = 0; k < kCuts; ++k) {
      const float m = reduce_add(mass[k]), n = reduce_add(number[k]);
      if (m > goal * kClear) {
        band.lower = from = cuts[k];
        within = n;
      } else if (m * kClear < goal) {
        band.upper = to = cuts[k];
        above = n;
        break;
      }
    }
    if (within - above <= kFew) break;
  }
  return band;
}

// The last candidate that stays when a candidate stays while the weights before it are below
// `wanted`.
EVENFLOW_INLINE Edge find_edge_by_weight(const Candidates& c, double wanted,
                                         const SamplingSpace& space) {
  if (c.count <= kNarrowFrom) return find_edge<true>(c, 0.0, wanted, space.active, space.bins);
  const Band band = narrow(c, wanted);
  Candidates between = space.between;
  DoubleSum above;
  for (int i = 0; i < c.count; i += kW) {
    const int left = c.count - i;
    const F l = load_part(c.logits + i, left, kMinusInfinity);
    const F w = load_part(c.weights + i, left, 0.0f);
    const M below = less(l, set1(band.upper));
    above.add(select(below, set1(0.0f), w));
    const uint32_t hits = reached(l, set1(band.lower), left) & bits(below);
    if (hits == 0) continue;
    F ids;
    std::memcpy(&ids, c.ids + i, sizeof(ids));  // may read past the last, which is never taken
    store_packed(reinterpret_cast<float*>(between.ids) + between.count, ids, hits);
    store_packed(between.logits + between.count, l, hits);
    store_packed(between.weights + between.count, w, hits);
    between.count += __builtin_popcount(hits);
  }
  if (between.count == 0) return {band.upper, 0x7fffffff};
  return find_edge<true>(between, above.total(), wanted, space.active, space.bins);
}

}  // namespace evenflow::EVENFLOW_ISA
