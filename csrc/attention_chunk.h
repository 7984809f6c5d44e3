// Attention for many tokens: lanes are tokens, keys are broadcast.
//
// A unit is a few vectors of rows (kW tokens of one query head each). For each block of 64
// keys: scores [key][vector], weights, then values accumulated into [dim][vector]. A key behind a
// row's causal edge is never added to it, whatever it holds.
#pragma once

#include "attention_state.h"

namespace evenflow::EVENFLOW_ISA {

// A unit has two vectors of rows, or three where their number is odd: 16 sums at a time are enough
// for the latency of a product, and the keys, values, scores and sums of a block (36 KiB for 64
// dims) are nearer to what the first-level cache holds than those of three (46). With few registers
// a unit has three, for want of sums.
inline constexpr int kMaxUnit = 3;
inline constexpr int kTile = kNumVectorRegisters >= 32 ? 8 : 4;  // keys, or dims, at a time
inline constexpr float kLog2E = 1.44269504088896341f;

EVENFLOW_INLINE int chunk_units(int num_vectors) {
  if (kNumVectorRegisters < 32) return (num_vectors + kMaxUnit - 1) / kMaxUnit;
  return num_vectors > 2 ? num_vectors / 2 : 1;
}

struct ChunkUnit {
  const float* q;       // [dim steps][vectors][kW] elements
  const float* limits;  // [vectors][kW]: keys that each row sees
  int min_limit, max_limit;
  int window;  // keys that each row sees at most; 0: all
};

struct ChunkSpace {
  float* scores;  // [64][kMaxUnit][kW]
  float* block;   // room to unpack a block
};

// scores[key][vector] for keys [0, num_keys) and their maxima; -inf behind the causal edge, and
// before the window. Fetches a line of the next block with every step, keys and values in turn.
template <class P, int N, bool kMasked, bool kWindow>
EVENFLOW_INLINE void chunk_scores(const float* q, const BlockView& block, int steps, int num_keys,
                                  const F* limits, F window, F* max, float* scores) {
  F top[N];  // not `max` itself, which the stores below could alias
  for (int v = 0; v < N; ++v) top[v] = max[v];
  for (int k0 = 0; k0 < num_keys; k0 += kTile) {
    F acc[kTile][N];
    for (int t = 0; t < kTile; ++t) {
      for (int v = 0; v < N; ++v) acc[t][v] = set1(0.0f);
    }
    const float* key = block.keys + k0;
    const float* row = q;
    for (int s = 0; s < steps; ++s, key += kKeys, row += N * kW) {
      F x[N];
      for (int v = 0; v < N; ++v) x[v] = load(row + v * kW);
      if constexpr (P::kInPlace) {
        const int line = k0 / kTile * steps + s;
        fetch_ahead((line % 2 == 0 ? block.next_keys : block.next_values) + line / 2 * kLineFloats);
      }
      for (int t = 0; t < kTile; ++t) {
        const F k = set1(key[t]);
        for (int v = 0; v < N; ++v) acc[t][v] = P::mac(acc[t][v], x[v], k);
      }
    }
    for (int t = 0; t < kTile; ++t) {
      for (int v = 0; v < N; ++v) {
        F score = acc[t][v];
        if constexpr (kMasked) {
          const M seen = less(set1(static_cast<float>(k0 + t)), limits[v]);
          score = select(seen, score, set1(kMinusInfinity));
        }
        if constexpr (kWindow) {
          const M behind = less(set1(static_cast<float>(k0 + t)), sub(limits[v], window));
          score = select(behind, set1(kMinusInfinity), score);
        }
        top[v] = vmax(top[v], score);
        store(scores + ((k0 + t) * N + v) * kW, score);
      }
    }
  }
  for (int v = 0; v < N; ++v) max[v] = top[v];
}

// The sum of 2^n neighbours as a binary tree; weights are made on the way, in place of the scores.
template <class P, int N>
EVENFLOW_INLINE F chunk_weights_16(float* scores, int group, int v, F scale, F offset) {
  constexpr int kLeaves = 16 / P::kKeysPerStep;
  F tree[kLeaves];
  for (int i = 0; i < kLeaves; ++i) {
    F element;
    if constexpr (P::kKeysPerStep == 2) {
      const float* s = scores + ((group * 16 + 2 * i) * N + v) * kW;
      element = P::weights(fma(load(s), scale, offset), fma(load(s + N * kW), scale, offset));
    } else {
      element = P::exp2(fma(load(scores + ((group * 16 + i) * N + v) * kW), scale, offset));
    }
    store(scores + ((group * kLeaves + i) * N + v) * kW, element);
    tree[i] = P::weight_sum(element);
  }
  for (int width = 1; width < kLeaves; width *= 2) {
    for (int i = 0; i < kLeaves; i += 2 * width) tree[i] = add(tree[i], tree[i + width]);
  }
  return tree[0];
}

// values[dim][vector] = values * keep + sum over steps of weight * value.
template <class P, int N, bool kFirst, bool kWindow>
EVENFLOW_INLINE void chunk_values(const float* weights, const float* values, int head_dim,
                                  int full_steps, int num_steps, const F* limits, F window,
                                  const F* keep, float* out) {
  bool same = true;  // no row has a new maximum: the sums stay as they are
  for (int v = 0; v < N && !kFirst; ++v) same = same && !any(less(keep[v], set1(1.0f)));
  for (int d0 = 0; d0 < head_dim; d0 += kTile) {
    F acc[kTile][N];
    for (int t = 0; t < kTile; ++t) {
      for (int v = 0; v < N; ++v) {
        acc[t][v] = kFirst ? set1(0.0f) : load(out + ((d0 + t) * N + v) * kW);
      }
    }
    if (!kFirst && !same) {
      for (int t = 0; t < kTile; ++t) {
        for (int v = 0; v < N; ++v) acc[t][v] = mul(acc[t][v], keep[v]);
      }
    }
    const float* value = values + d0;
    const float* row = weights;
    for (int s = 0; s < full_steps; ++s, value += head_dim, row += N * kW) {
      F w[N];
      for (int v = 0; v < N; ++v) w[v] = load(row + v * kW);
      for (int t = 0; t < kTile; ++t) {
        const F x = set1(value[t]);
        for (int v = 0; v < N; ++v) acc[t][v] = P::mac(acc[t][v], w[v], x);
      }
    }
    for (int s = full_steps; s < num_steps; ++s, value += head_dim, row += N * kW) {
      const float first = static_cast<float>(s * P::kKeysPerStep);
      for (int v = 0; v < N; ++v) {
        const F w = load(row + v * kW);
        const M seen = less(set1(first), limits[v]);
        const M both = less(set1(first + 1.0f), limits[v]);
        for (int t = 0; t < kTile; ++t) {
          F x = set1(value[t]);
          if constexpr (P::kKeysPerStep == 2) x = select(both, x, P::first_key_only(x));
          if constexpr (kWindow) {
            const F begin = sub(limits[v], window);
            if constexpr (P::kKeysPerStep == 2) {
              x = select(less(set1(first), begin), P::second_key_only(x), x);
            }
            const M behind = less(set1(first + (P::kKeysPerStep - 1)), begin);
            acc[t][v] = select(behind, acc[t][v], select(seen, P::mac(acc[t][v], w, x), acc[t][v]));
          } else {
            acc[t][v] = select(seen, P::mac(acc[t][v], w, x), acc[t][v]);
          }
        }
      }
    }
    for (int t = 0; t < kTile; ++t) {
      for (int v = 0; v < N; ++v) store(out + ((d0 + t) * N + v) * kW, acc[t][v]);
    }
  }
}

// One block of keys into a unit's state. `base` is the block's first position. kWindow: some row's
// window begins in this block, or behind it.
template <class P, int N, bool kFirst, bool kWindow>
EVENFLOW_INLINE void chunk_block(const AttentionArgs& args, const ChunkUnit& unit,
                                 const BlockView& block, int base, float scale_log2e,
                                 const State& state, float* scores) {
  const int head_dim = args.head_dim;
  const F window = set1(static_cast<float>(unit.window));
  F limits[N], max[N], keep[N];
  for (int v = 0; v < N; ++v) {
    limits[v] = sub(load(unit.limits + v * kW), set1(static_cast<float>(base)));
    max[v] = kFirst ? set1(kMinusInfinity) : load(state.max + v * kW);
  }
  const int steps = P::dim_steps(head_dim);
  const int most = unit.max_limit - base, least = kWindow ? 0 : unit.min_limit - base;
  int num_groups = kKeys / 16;  // groups of keys that any row sees; the others add nothing
  if (least >= kKeys) {
    chunk_scores<P, N, false, false>(unit.q, block, steps, kKeys, limits, window, max, scores);
  } else {
    const int num_keys = most >= kKeys ? kKeys : (most + kTile - 1) / kTile * kTile;
    chunk_scores<P, N, true, kWindow>(unit.q, block, steps, num_keys, limits, window, max, scores);
    num_groups = (num_keys + 15) / 16;
    for (int i = num_keys * N; i < num_groups * 16 * N; ++i) {
      store(scores + i * kW, set1(kMinusInfinity));
    }
  }
  if (args.soft_cap != 0.0f) {
    F top[N];
    for (int v = 0; v < N; ++v) top[v] = kFirst ? set1(kMinusInfinity) : load(state.max + v * kW);
    cap_scores<N>(args, scores, num_groups * 16, top);
    for (int v = 0; v < N; ++v) max[v] = top[v];
  }
  const F scale = set1(scale_log2e), units = set1(scale_log2e * P::kUnits);
  for (int v = 0; v < N; ++v) {
    const F finite = finite_max(max[v]);
    const F offset = sub(set1(0.0f), mul(finite, units));
    F sums[4];
    for (int g = 0; g < 4; ++g) {
      sums[g] = g < num_groups ? chunk_weights_16<P, N>(scores, g, v, units, offset) : set1(0.0f);
    }
    const F block_sum = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
    if constexpr (kFirst) {
      store(state.sum + v * kW, block_sum);
    } else {
      keep[v] = P::exp2(mul(sub(load(state.max + v * kW), finite), scale));
      store(state.sum + v * kW, fma(load(state.sum + v * kW), keep[v], block_sum));
    }
    store(state.max + v * kW, max[v]);
  }
  const int seen = most >= kKeys ? kKeys : most;
  const int num_steps = (seen + P::kKeysPerStep - 1) / P::kKeysPerStep;
  const int sure = least >= kKeys ? kKeys : (least > 0 ? least : 0);
  chunk_values<P, N, kFirst, kWindow>(scores, block.values, head_dim, sure / P::kKeysPerStep,
                                      num_steps, limits, window, keep, state.values);
}

// A block in which some row's window begins; apart, so that the others' code stays as it is.
template <class P, int N>
__attribute__((noinline)) void chunk_edge(const AttentionArgs& args, const ChunkUnit& unit,
                                          const BlockView& block, int base, bool first,
                                          float scale_log2e, const State& state, float* scores) {
  if (first)
    return chunk_block<P, N, true, true>(args, unit, block, base, scale_log2e, state, scores);
  chunk_block<P, N, false, true>(args, unit, block, base, scale_log2e, state, scores);
}

// All blocks of one section into `state`, which is overwritten.
template <class P, int N>
void chunk_section(const AttentionArgs& args, const int32_t* blocks, int64_t block_elements,
                   int64_t head_offset, const ChunkUnit& unit, int section, const State& state,
                   const ChunkSpace& space) {
  const int reach = first_block(args, unit.min_limit);
  const int begin = section * kSectionBlocks > reach ? section * kSectionBlocks : reach;
  const int last = (unit.max_limit + kKeys - 1) / kKeys;
  const int stop = (section + 1) * kSectionBlocks, end = last < stop ? last : stop;
  const float scale = args.scale * kLog2E;
  for (int b = begin; b < end; ++b) {
    BlockView block = P::view(args, blocks[b] * block_elements + head_offset, space.block);
    if constexpr (P::kInPlace) {
      const int next = b + 1 < last ? b + 1 : b;
      const BlockView view = P::view(args, blocks[next] * block_elements + head_offset, nullptr);
      block.next_keys = view.keys;
      block.next_values = view.values;
    }
    if (unit.window > 0 && b * kKeys < unit.max_limit - unit.window) {
      chunk_edge<P, N>(args, unit, block, b * kKeys, b == begin, scale, state, space.scores);
    } else if (b == begin) {
      chunk_block<P, N, true, false>(args, unit, block, b * kKeys, scale, state, space.scores);
    } else {
      chunk_block<P, N, false, false>(args, unit, block, b * kKeys, scale, state, space.scores);
    }
  }
}

}  // namespace evenflow::EVENFLOW_ISA
