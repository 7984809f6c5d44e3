// The arrays that drawing one row works in, laid out in a thread's scratch.
#pragma once

#include "sampling.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kSegment = 64;     // logits that share a stored maximum
inline constexpr int kSumRange = 1024;  // weights that share a stored sum
inline constexpr int kBins = 256;

// Some ids of a row, in ascending order, with their logits and weights.
struct Candidates {
  int32_t* ids;
  float* logits;
  float* weights;
  int count;
};

struct SamplingSpace {
  float* row;          // [vocab] the adjusted row
  float* weights;      // [vocab]
  float* maxima;       // [segments]
  int32_t* active;     // [vocab]
  int32_t* numbers;    // [vocab]
  double* range_sums;  // [vocab / kSumRange]
  double* bins;        // [kBins]
  Candidates found;    // room for [vocab]
  Candidates between;  // the same, in the place of numbers, weights and row
};

EVENFLOW_INLINE int64_t padded(int64_t count) { return (count + 63) / 64 * 64; }

EVENFLOW_INLINE SamplingSpace sampling_space(void* scratch, int vocab) {
  char* at = static_cast<char*>(scratch);
  const int64_t v = padded(vocab);
  auto take = [&](int64_t bytes) {
    char* p = at;
    at += padded(bytes);
    return p;
  };
  SamplingSpace s;
  // packed stores write a vector ahead
  s.row = reinterpret_cast<float*>(take(v * 4 + 64));
  s.weights = reinterpret_cast<float*>(take(v * 4 + 64));
  s.maxima = reinterpret_cast<float*>(take(v / kSegment * 4));
  s.active = reinterpret_cast<int32_t*>(take(v * 4));
  s.numbers = reinterpret_cast<int32_t*>(take(v * 4 + 64));
  s.range_sums = reinterpret_cast<double*>(take((v / kSumRange + 1) * 8));
  s.bins = reinterpret_cast<double*>(take(kBins * 8));
  s.found.ids = reinterpret_cast<int32_t*>(take(v * 4 + 64));
  s.found.logits = reinterpret_cast<float*>(take(v * 4 + 64));
  s.found.weights = reinterpret_cast<float*>(take(v * 4 + 64));
  s.found.count = 0;
  s.between = {s.numbers, s.weights, s.row, 0};
  return s;
}

}  // namespace evenflow::EVENFLOW_ISA
