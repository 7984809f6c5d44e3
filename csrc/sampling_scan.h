// Passes over a whole row of logits: maximum, weights with their sum, ids above a cut.
#pragma once

#include "sampling_space.h"

namespace evenflow::EVENFLOW_ISA {

// The largest logit; NaN if any is. Leaves the maxima of segments in `maxima`.
EVENFLOW_INLINE float scan_maxima(const float* logits, int vocab, float* maxima) {
  F top = set1(kMinusInfinity);
  uint32_t nans = 0;
  for (int begin = 0; begin < vocab; begin += kSegment) {
    F most = set1(kMinusInfinity);
    for (int i = begin; i < begin + kSegment && i < vocab; i += kW) {
      const F x = load_part(logits + i, vocab - i, kMinusInfinity);
      most = vmax(most, x);
      nans |= bits(is_nan(x));
    }
    maxima[begin / kSegment] = reduce_max(most);
    top = vmax(top, most);
  }
  return nans == 0 ? reduce_max(top) : __builtin_nanf("");
}

// The lowest id with the largest logit.
EVENFLOW_INLINE int first_of(const float* logits, int vocab, const float* maxima, float top) {
  for (int segment = 0;; ++segment) {
    if (maxima[segment] != top) continue;
    for (int i = segment * kSegment; i < vocab; ++i) {
      if (logits[i] == top) return i;
    }
  }
}

// Weights e^((l - top) / temperature): difference and quotient are rounded one by one, as the rule
// says. The quotient comes from the reciprocal and one exact correction (Markstein, "Computation of
// elementary functions", 1990), where the target can and the reciprocal is finite.
class Weigher {
 public:
  EVENFLOW_INLINE Weigher(float top, float temperature)
      : top_(set1(top)),
        temperature_(set1(temperature)),
        minus_temperature_(set1(-temperature)),
        reciprocal_(set1(1.0f / temperature)),
        least_(set1(-150.0f * temperature)),
        divide_(!kFused || temperature < 1e-20f) {}

  // N vectors of logits become weights, in place.
  template <int N>
  EVENFLOW_INLINE void weigh(F* x) const {
    for (int i = 0; i < N; ++i) x[i] = sub(x[i], top_);
    if (divide_) {
      for (int i = 0; i < N; ++i) x[i] = vmax(set1(-150.0f), div(x[i], temperature_));
      return vec_exp<N>(x);
    }
    F q[N];
    for (int i = 0; i < N; ++i) x[i] = vmax(least_, x[i]);  // e^-150 is 0; keeps infinities out
    for (int i = 0; i < N; ++i) q[i] = mul(x[i], reciprocal_);
    for (int i = 0; i < N; ++i) x[i] = fma(q[i], minus_temperature_, x[i]);
    for (int i = 0; i < N; ++i) x[i] = fma(x[i], reciprocal_, q[i]);
    vec_exp<N>(x);
  }

 private:
  F top_, temperature_, minus_temperature_, reciprocal_, least_;
  bool divide_;
};

// All weights of a row and, range by range, their sums over weights >= least. Returns the total.
EVENFLOW_INLINE double scan_weights(const float* logits, int vocab, const Weigher& weigher,
                                    float least, float* weights, double* range_sums) {
  double total = 0.0;
  const F vleast = set1(least);
  for (int begin = 0; begin < vocab; begin += kSumRange) {
    DoubleSum sum;
    const int end = begin + kSumRange < vocab ? begin + kSumRange : vocab;
    int i = begin;
    for (; i + 4 * kW <= end; i += 4 * kW) {
      F w[4];
      for (int j = 0; j < 4; ++j) w[j] = load(logits + i + j * kW);
      weigher.weigh<4>(w);
      for (int j = 0; j < 4; ++j) store(weights + i + j * kW, w[j]);
      for (int j = 0; j < 4; ++j) sum.add(select(less(w[j], vleast), set1(0.0f), w[j]));
    }
    for (; i < end; i += kW) {
      F w = load_part(logits + i, end - i, kMinusInfinity);
      weigher.weigh<1>(&w);
      store_part(weights + i, end - i, w);
      sum.add(select(less(w, vleast), set1(0.0f), w));
    }
    const double here = sum.total();
    range_sums[begin / kSumRange] = here;
    total += here;
  }
  return total;
}

// Bits of the lanes i, i + 1, ... of `keys` that are not below `cut`; `left` entries are there.
EVENFLOW_INLINE uint32_t reached(F keys, F cut, int left) {
  const uint32_t there = left >= kW ? (1u << kW) - 1u : (1u << left) - 1u;
  return ~bits(less(keys, cut)) & there;
}

// Appends ids whose weight is at least `least` (weights known), with their logits.
EVENFLOW_INLINE void collect_heavy(const float* logits, const float* weights, int vocab,
                                   float least, Candidates& c) {
  for (int i = 0; i < vocab; i += kW) {
    const int left = vocab - i;
    const F w = load_part(weights + i, left, 0.0f);
    const uint32_t hits = reached(w, set1(least), left);
    if (hits == 0) continue;
    store_packed(reinterpret_cast<float*>(c.ids) + c.count, lane_ids(i), hits);
    store_packed(c.logits + c.count, load_part(logits + i, left, 0.0f), hits);
    store_packed(c.weights + c.count, w, hits);
    c.count += __builtin_popcount(hits);
  }
}

// Appends ids whose logit is at least `cut` and not -inf; their weights stay open.
EVENFLOW_INLINE void collect_large(const float* logits, int vocab, float cut, Candidates& c) {
  const float finite_cut = cut > -3.4028235e38f ? cut : -3.4028235e38f;
  for (int i = 0; i < vocab; i += kW) {
    const int left = vocab - i;
    const F l = load_part(logits + i, left, kMinusInfinity);
    const uint32_t hits = reached(l, set1(finite_cut), left);
    if (hits == 0) continue;
    store_packed(reinterpret_cast<float*>(c.ids) + c.count, lane_ids(i), hits);
    store_packed(c.logits + c.count, l, hits);
    c.count += __builtin_popcount(hits);
  }
}

}  // namespace evenflow::EVENFLOW_ISA
