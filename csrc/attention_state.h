// Partial results of attention: what a row has seen so far, how two parts merge, how a row ends.
//
// A state covers `num` vectors of rows: running maximum of the raw scores, sum of the weights, and
// weighted sum of the values. In the chunk kernel lanes are tokens and the sums lie [dim][num][kW];
// in the row kernel a vector is one row, all lanes equal, and the sums lie [num][dim].
#pragma once

#include "attention_policy.h"
#include "vec_tanh.h"

namespace evenflow::EVENFLOW_ISA {

struct State {
  float* max;       // [num][kW]
  float* sum;       // [num][kW]
  float* values;    // see above
  int num;          // vectors of rows
  int steps;        // vectors of sums per vector of rows
  int row_stride;   // floats between the sums of neighbouring vectors of rows
  int step_stride;  // floats between a vector's neighbouring sums
};

EVENFLOW_INLINE State chunk_state(float* space, int num, int head_dim) {
  return {space, space + num * kW, space + 2 * num * kW, num, head_dim, kW, num * kW};
}
EVENFLOW_INLINE State row_state(float* space, int num, int head_dim) {
  return {space, space + num * kW, space + 2 * num * kW, num, head_dim / kW, head_dim, kW};
}
// Floats of a state; the row kernel's is never larger than the chunk kernel's.
EVENFLOW_INLINE int64_t chunk_state_floats(int num, int head_dim) {
  return int64_t{num} * kW * (head_dim + 2);
}
EVENFLOW_INLINE int64_t row_state_floats(int num, int head_dim) {
  return int64_t{num} * (2 * kW + head_dim);
}

EVENFLOW_INLINE void clear(const State& s) {
  for (int v = 0; v < s.num; ++v) {
    store(s.max + v * kW, set1(kMinusInfinity));
    store(s.sum + v * kW, set1(0.0f));
    for (int i = 0; i < s.steps; ++i) {
      store(s.values + v * s.row_stride + i * s.step_stride, set1(0.0f));
    }
  }
}

// A finite stand-in for a maximum over no keys, so that its weights come out as zero, not NaN.
EVENFLOW_INLINE F finite_max(F m) { return vmax(m, set1(-1e30f)); }

// Scores [count][N] become cap * tanh(score / cap), in units of the raw scores, so that nothing
// after it need know; a masked one stays. Finds the maxima anew.
template <int N>
__attribute__((noinline)) void cap_scores(const AttentionArgs& args, float* scores, int count,
                                          F* max) {
  const F shrink = set1(args.scale / args.soft_cap), grow = set1(args.soft_cap / args.scale);
  const F masked = set1(kMinusInfinity);
  for (int i = 0; i < count; ++i) {
    for (int v = 0; v < N; ++v) {
      float* at = scores + (i * N + v) * kW;
      const F score = load(at), capped = mul(vec_tanh(mul(score, shrink)), grow);
      const F kept = select(less(masked, score), capped, score);
      max[v] = vmax(max[v], kept);
      store(at, kept);
    }
  }
}

// The first block of keys that a row which sees `limit` keys, or a later one, can see.
EVENFLOW_INLINE int first_block(const AttentionArgs& args, int limit) {
  return args.window > 0 && limit > args.window ? (limit - args.window) / kKeys : 0;
}

// total = total and part, in this order. A part without keys changes nothing.
template <class P>
EVENFLOW_INLINE void merge(const State& total, const State& part, float scale_log2e) {
  const F scale = set1(scale_log2e);
  for (int v = 0; v < total.num; ++v) {
    const F old_max = load(total.max + v * kW), part_max = load(part.max + v * kW);
    const F new_max = vmax(old_max, part_max), finite = finite_max(new_max);
    const F keep = P::exp2(mul(sub(old_max, finite), scale));
    const F take = P::exp2(mul(sub(part_max, finite), scale));
    store(total.max + v * kW, new_max);
    const F sum = mul(load(total.sum + v * kW), keep);
    store(total.sum + v * kW, fma(load(part.sum + v * kW), take, sum));
    float* t = total.values + v * total.row_stride;
    const float* p = part.values + v * part.row_stride;
    for (int i = 0; i < total.steps; ++i, t += total.step_stride, p += part.step_stride) {
      store(t, fma(load(p), take, mul(load(t), keep)));
    }
  }
}

// Divides by the sum of the weights. Adding +0 makes the sign of a zero independent of the way.
EVENFLOW_INLINE void finish(const State& s) {
  for (int v = 0; v < s.num; ++v) {
    const F inverse = div(set1(1.0f), load(s.sum + v * kW));
    float* t = s.values + v * s.row_stride;
    for (int i = 0; i < s.steps; ++i, t += s.step_stride) {
      store(t, fma(load(t), inverse, set1(0.0f)));
    }
  }
}

// One row of the output, from floats.
EVENFLOW_INLINE void store_row(const AttentionArgs& args, int64_t offset, const float* row) {
  if (args.out_f32) {
    std::memcpy(static_cast<float*>(args.out) + offset, row, size_t(args.head_dim) * 4);
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(args.out) + offset;
  for (int i = 0; i < args.head_dim; i += kW) store_bf16(out + i, load(row + i));
}

}  // namespace evenflow::EVENFLOW_ISA
