// Passes over a whole row of logits: maximum, weights with their sum, ids above a cut.
#pragma once

#include "sampling_space.h"

namespace evenflow::EVENFLOW_ISA {

// kW values from x, or `left` values and then `fill`.
EVENFLOW_INLINE F load_part(const float* x, int left, float fill) {
  if (left >= kW) return load(x);
  float part[kW];
  for (int i = 0; i < kW; ++i) part[i] = i < left ? x[i] : fill;
  return load(part);
}

EVENFLOW_INLINE void store_part(float* x, int left, F value) {
  if (left >= kW) return store(x, value);
  float part[kW];
  store(part, value);
  for (int i = 0; i < left; ++i) x[i] = part[i];
}

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

// Weights e^((l - top) / temperature); the division and the difference are rounded one by one.
EVENFLOW_INLINE F weigh(F logits, F top, F temperature) {
  return vec_exp(div(sub(logits, top), temperature));
}

// All weights of a row and, range by range, their sums over weights >= least. Returns the total.
EVENFLOW_INLINE double scan_weights(const float* logits, int vocab, float top, float temperature,
                                    float least, float* weights, double* range_sums) {
  double total = 0.0;
  const F vtop = set1(top), vtemperature = set1(temperature), vleast = set1(least);
  for (int begin = 0; begin < vocab; begin += kSumRange) {
    double lanes[kW] = {};
    for (int i = begin; i < begin + kSumRange && i < vocab; i += kW) {
      const F x = load_part(logits + i, vocab - i, kMinusInfinity);
      const F w = weigh(x, vtop, vtemperature);
      store_part(weights + i, vocab - i, w);
      float kept[kW];
      store(kept, select(less(w, vleast), set1(0.0f), w));
      for (int j = 0; j < kW; ++j) lanes[j] += static_cast<double>(kept[j]);
    }
    for (int width = kW / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    range_sums[begin / kSumRange] = lanes[0];
    total += lanes[0];
  }
  return total;
}

// Calls take(id) for each id, ascending, whose key is >= cut (and above -inf).
template <class Take>
EVENFLOW_INLINE void for_each_above(const float* keys, int vocab, float cut, const Take& take) {
  for (int i = 0; i < vocab; i += kW) {
    const F x = load_part(keys + i, vocab - i, kMinusInfinity);
    uint32_t hits = ~bits(less(x, set1(cut))) & ((1u << kW) - 1u);
    for (; hits != 0; hits &= hits - 1) {
      const int id = i + __builtin_ctz(hits);
      if (id < vocab && keys[id] > kMinusInfinity) take(id);
    }
  }
}

}  // namespace evenflow::EVENFLOW_ISA
