// Building blocks of the row-wise kernels: rounding a row, sums of its groups, its root mean
// square.
#pragma once

#include "kernels.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

EVENFLOW_INLINE void round_row(const float* x, uint16_t* out, int64_t count) {
  int64_t i = 0;
  for (; i + kW <= count; i += kW) store_bf16(out + i, load(x + i));
  if (i == count) return;
  float in[kW] = {};
  uint16_t rounded[kW];
  for (int64_t j = i; j < count; ++j) in[j - i] = x[j];
  store_bf16(rounded, load(in));
  for (int64_t j = i; j < count; ++j) out[j] = rounded[j - i];
}

EVENFLOW_INLINE F load_value(const float* x) { return load(x); }
EVENFLOW_INLINE F load_value(const uint16_t* x) { return load_bf16(x); }

// Sum of 32 values: vectors added in order, then the lanes pairwise.
template <class T>
EVENFLOW_INLINE float group_sum(const T* x) {
  F sum = load_value(x);
  for (int i = kW; i < kGroup; i += kW) sum = add(sum, load_value(x + i));
  return reduce_add(sum);
}

template <class T>
EVENFLOW_INLINE void row_group_sums(const T* x, int width, float* sums) {
  for (int g = 0; g < width / kGroup; ++g) sums[g] = group_sum(x + g * kGroup);
}

// 1 / sqrt(mean(x^2) + eps): four interleaved lanes of sums, then the rest, always in this order.
EVENFLOW_INLINE float inverse_rms(const float* x, int width, float eps) {
  F sums[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int i = 0;
  for (; i + 4 * kW <= width; i += 4 * kW) {
    for (int j = 0; j < 4; ++j) {
      const F v = load(x + i + j * kW);
      sums[j] = fma(v, v, sums[j]);
    }
  }
  for (; i + kW <= width; i += kW) {
    const F v = load(x + i);
    sums[0] = fma(v, v, sums[0]);
  }
  float total = reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  for (; i < width; ++i) total += x[i] * x[i];
  return 1.0f / __builtin_sqrtf(total / static_cast<float>(width) + eps);
}

// out = x * scale * weight, in this order.
EVENFLOW_INLINE void scale_row(const float* x, float scale, const float* weight, int width,
                               float* out) {
  int i = 0;
  for (; i + kW <= width; i += kW) {
    store(out + i, mul(mul(load(x + i), set1(scale)), load(weight + i)));
  }
  for (; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

EVENFLOW_INLINE void scale_round_row(const float* x, float scale, const float* weight, int width,
                                     uint16_t* out) {
  int i = 0;
  for (; i + kW <= width; i += kW) {
    store_bf16(out + i, mul(mul(load(x + i), set1(scale)), load(weight + i)));
  }
  for (; i < width; ++i) {
    const float y = x[i] * scale * weight[i];
    round_row(&y, out + i, 1);
  }
}

}  // namespace evenflow::EVENFLOW_ISA
