// Attention for few tokens: lanes are keys for the scores and dims for the values.
//
// Same blocks, same order, same operations for every element as in attention_chunk.h, so the same
// bits; a decode does not pay for empty token lanes.
#pragma once

#include "attention_state.h"

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kMaxRows = kNumVectorRegisters >= 32 ? 6 : 4;    // rows at a time
inline constexpr int kLanesTile = kNumVectorRegisters >= 32 ? 4 : 2;  // vectors of lanes at a time

struct RowUnit {
  const float* q;     // [rows][dim steps] elements
  const int* limits;  // [rows]: keys that each row sees
  int max_limit;
  int window;     // keys that each row sees at most; 0: all
  int64_t ahead;  // floats from this block to the next, whose rows are fetched meanwhile
  int64_t after;  // elements of the pool from its start to what comes after the last block, or -1
};

// scores[row][64]; -inf behind the causal edge and before the window. Returns maxima through `max`.
template <class P, int R, bool kWindow>
EVENFLOW_INLINE void row_scores(const RowUnit& unit, const float* keys, int base, int steps, F* max,
                                float* scores) {
  for (int k0 = 0; k0 < kKeys; k0 += kLanesTile * kW) {
    F acc[R][kLanesTile];
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < kLanesTile; ++t) acc[r][t] = set1(0.0f);
    }
    const float* key = keys + k0;
    for (int s = 0; s < steps; ++s, key += kKeys) {
      F k[kLanesTile];
      for (int t = 0; t < kLanesTile; ++t) {
        k[t] = load(key + t * kW);
        if constexpr (P::kInPlace) fetch_ahead(key + unit.ahead + t * kW);
      }
      for (int r = 0; r < R; ++r) {
        const F x = set1(unit.q[r * steps + s]);
        for (int t = 0; t < kLanesTile; ++t) acc[r][t] = P::mac(acc[r][t], x, k[t]);
      }
    }
    for (int r = 0; r < R; ++r) {
      const F limit = set1(static_cast<float>(unit.limits[r] - base));
      for (int t = 0; t < kLanesTile; ++t) {
        const F lane = add(lane_numbers(), set1(static_cast<float>(k0 + t * kW)));
        F score = select(less(lane, limit), acc[r][t], set1(kMinusInfinity));
        if constexpr (kWindow) {
          const F begin = sub(limit, set1(static_cast<float>(unit.window)));
          score = select(less(lane, begin), set1(kMinusInfinity), score);
        }
        max[r] = vmax(max[r], score);
        store(scores + r * kKeys + k0 + t * kW, score);
      }
    }
  }
}

// Weights of one row in place of its scores, as elements; returns their sum, the same binary tree
// over neighbours as in the chunk kernel.
template <class P>
EVENFLOW_INLINE float row_weights(float* scores, F scale, F offset) {
  constexpr int kVectors = kKeys / P::kKeysPerStep / kW;
  float tree[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    const int first = i * P::kKeysPerStep * kW;
    const F x = fma(load(scores + first), scale, offset);
    F element;
    if constexpr (P::kKeysPerStep == 2) {
      element = P::row_weights(x, fma(load(scores + first + kW), scale, offset));
    } else {
      element = P::exp2(x);
    }
    store(scores + i * kW, element);
    tree[i] = reduce_add_neighbours(P::weight_sum(element));
  }
  for (int width = 1; width < kVectors; width *= 2) {
    for (int i = 0; i < kVectors; i += 2 * width) tree[i] += tree[i + width];
  }
  return tree[0];
}

// values[row][dims d0 ..] = values * keep + sum over steps; T vectors of dims.
template <class P, int R, int T, bool kFirst, bool kWindow>
EVENFLOW_INLINE void row_values_tile(const RowUnit& unit, const float* weights, const float* values,
                                     int base, int head_dim, int full_steps, int num_steps,
                                     const F* keep, float* out) {
  F acc[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) {
      acc[r][t] = kFirst ? set1(0.0f) : mul(load(out + r * head_dim + t * kW), keep[r]);
    }
  }
  for (int s = 0; s < full_steps; ++s, values += head_dim) {
    F x[T];
    for (int t = 0; t < T; ++t) {
      x[t] = load(values + t * kW);
      if constexpr (P::kInPlace) fetch_ahead(values + unit.ahead + t * kW);
    }
    for (int r = 0; r < R; ++r) {
      const F w = set1(weights[r * kKeys + s]);
      for (int t = 0; t < T; ++t) acc[r][t] = P::mac(acc[r][t], w, x[t]);
    }
  }
  for (int s = full_steps; s < num_steps; ++s, values += head_dim) {
    for (int r = 0; r < R; ++r) {
      const int left = unit.limits[r] - base - s * P::kKeysPerStep;
      if (left <= 0) continue;
      const int behind = kWindow ? left - unit.window : 0;  // keys of this step before the window
      if (behind >= P::kKeysPerStep) continue;
      const F w = set1(weights[r * kKeys + s]);
      for (int t = 0; t < T; ++t) {
        F x = load(values + t * kW);
        if constexpr (P::kKeysPerStep == 2) {
          if (left == 1) x = P::first_key_only(x);
          if (behind == 1) x = P::second_key_only(x);
        }
        acc[r][t] = P::mac(acc[r][t], w, x);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) store(out + r * head_dim + t * kW, acc[r][t]);
  }
}

// One block of keys into the rows' state. `base` is the block's first position. kWindow: some row's
// window begins in this block, or behind it.
template <class P, int R, bool kFirst, bool kWindow>
EVENFLOW_INLINE void row_block(const AttentionArgs& args, const RowUnit& unit,
                               const BlockView& block, int base, float scale_log2e,
                               const State& state, float* scores) {
  const int head_dim = args.head_dim;
  F max[R], keep[R];
  for (int r = 0; r < R; ++r) max[r] = kFirst ? set1(kMinusInfinity) : load(state.max + r * kW);
  row_scores<P, R, kWindow>(unit, block.keys, base, P::dim_steps(head_dim), max, scores);
  if (args.soft_cap != 0.0f) {
    for (int r = 0; r < R; ++r) {
      F top = kFirst ? set1(kMinusInfinity) : load(state.max + r * kW);
      cap_scores<1>(args, scores + r * kKeys, kKeys / kW, &top);
      max[r] = top;
    }
  }
  const F scale = set1(scale_log2e), units = set1(scale_log2e * P::kUnits);
  int least = kKeys;
  for (int r = 0; r < R; ++r) {
    const F row_max = set1(reduce_max(max[r])), finite = finite_max(row_max);
    const F offset = sub(set1(0.0f), mul(finite, units));
    const F block_sum = set1(row_weights<P>(scores + r * kKeys, units, offset));
    if constexpr (kFirst) {
      store(state.sum + r * kW, block_sum);
    } else {
      keep[r] = P::exp2(mul(sub(load(state.max + r * kW), finite), scale));
      store(state.sum + r * kW, fma(load(state.sum + r * kW), keep[r], block_sum));
    }
    store(state.max + r * kW, row_max);
    const int left = unit.limits[r] - base;
    if (left < least) least = left > 0 ? left : 0;
  }
  const int most = unit.max_limit - base < kKeys ? unit.max_limit - base : kKeys;
  const int full_steps = kWindow ? 0 : least / P::kKeysPerStep;
  const int num_steps = (most + P::kKeysPerStep - 1) / P::kKeysPerStep;
  int d = 0;
  for (; d + kLanesTile * kW <= head_dim; d += kLanesTile * kW) {
    row_values_tile<P, R, kLanesTile, kFirst, kWindow>(unit, scores, block.values + d, base,
                                                       head_dim, full_steps, num_steps, keep,
                                                       state.values + d);
  }
  for (; d < head_dim; d += kW) {
    row_values_tile<P, R, 1, kFirst, kWindow>(unit, scores, block.values + d, base, head_dim,
                                              full_steps, num_steps, keep, state.values + d);
  }
}

// A block in which some row's window begins; apart, so that the others' code stays as it is.
template <class P, int R>
__attribute__((noinline)) void row_edge(const AttentionArgs& args, const RowUnit& unit,
                                        const BlockView& block, int base, bool first,
                                        float scale_log2e, const State& state, float* scores) {
  if (first)
    return row_block<P, R, true, true>(args, unit, block, base, scale_log2e, state, scores);
  row_block<P, R, false, true>(args, unit, block, base, scale_log2e, state, scores);
}

// All blocks of one section into `state`, which is overwritten.
template <class P, int R>
void row_section(const AttentionArgs& args, const int32_t* blocks, int64_t block_elements,
                 int64_t head_offset, const RowUnit& unit, int section, const State& state,
                 float* scores, float* block_space) {
  const int reach = first_block(args, unit.limits[0]);
  const int begin = section * kSectionBlocks > reach ? section * kSectionBlocks : reach;
  const int last = (unit.max_limit + kKeys - 1) / kKeys;
  const int stop = (section + 1) * kSectionBlocks, end = last < stop ? last : stop;
  const float scale = args.scale * 1.44269504088896341f;
  RowUnit at = unit;
  for (int b = begin; b < end; ++b) {
    const int64_t here = blocks[b] * block_elements + head_offset;
    int64_t next = here;
    if (b + 1 < last) {
      next = blocks[b + 1] * block_elements + head_offset;
    } else if (unit.after >= 0) {
      next = unit.after;
    }
    at.ahead = (next - here) / P::kKeysPerStep;
    const BlockView block = P::view(args, here, block_space);
    if (unit.window > 0 && b * kKeys < unit.max_limit - unit.window) {
      row_edge<P, R>(args, at, block, b * kKeys, b == begin, scale, state, scores);
    } else if (b == begin) {
      row_block<P, R, true, false>(args, at, block, b * kKeys, scale, state, scores);
    } else {
      row_block<P, R, false, false>(args, at, block, b * kKeys, scale, state, scores);
    }
  }
}

}  // namespace evenflow::EVENFLOW_ISA
