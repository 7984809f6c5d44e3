// How attention multiplies: bf16 pairs (AVX-512 BF16), or float32 fused multiply-adds.
//
// A policy turns scores and weighted sums into `steps` over 32-bit elements, stored as floats:
//   pairs:  an element is two bf16 (dims 2s, 2s + 1 of a key; keys 2s, 2s + 1 of a dim); the pools
//   are
//           used where they lie.
//   floats: an element is a float; a block is first unpacked, keys to [dim][64], values to
//           [64][dim].
// Both kernels of a policy take the steps of a row in ascending order.
#pragma once

#include "attention.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kLineFloats = 16;

// Into the second-level cache: the first has too few misses in flight for the memory's rate.
EVENFLOW_INLINE void fetch_ahead(const float* x) { __builtin_prefetch(x, 0, 2); }

// Where a block's elements lie, ready for the kernels.
struct BlockView {
  const float* keys;                 // [steps over dims][64]
  const float* values;               // [steps over keys][dim]
  const float* next_keys = nullptr;  // of the block after it, to be fetched meanwhile
  const float* next_values = nullptr;
};

#if EVENFLOW_ISA_LEVEL >= 3
struct PairPolicy {
  static constexpr int kKeysPerStep = 2;
  static constexpr float kUnits = 128.0f;  // of an exponent of two, as `weights` takes them
  static constexpr bool kInPlace = true;   // blocks are used where they lie
  static int dim_steps(int head_dim) { return head_dim / 2; }

  static EVENFLOW_INLINE F mac(F acc, F a, F b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static EVENFLOW_INLINE F exp2(F x) { return exp2_coarse(x); }

  // 2^(x / 128) for 32 integers as bf16, off by 0.7 % at most and 0.23 % rms (rounding alone: 0.39
  // and 0.17). x has the exponent and, but for a few units, the mantissa already; the rest is by
  // the upper six bits of the fraction f: 127 * 128 + 128 (2^f - 1 - f), rounded for the least
  // error of the two fractions that share it. 2^0 is 1 and what is below -127 is 0, exactly.
  static EVENFLOW_INLINE F power(__m512i x) {
    alignas(64) static constexpr int16_t kRest[64] = {
        16256, 16255, 16255, 16254, 16254, 16253, 16252, 16252, 16251, 16251, 16251, 16250, 16250,
        16249, 16249, 16248, 16248, 16248, 16247, 16247, 16247, 16247, 16246, 16246, 16246, 16246,
        16246, 16245, 16245, 16245, 16245, 16245, 16245, 16245, 16245, 16245, 16245, 16245, 16245,
        16245, 16245, 16246, 16246, 16246, 16246, 16246, 16247, 16247, 16247, 16248, 16248, 16248,
        16249, 16249, 16250, 16250, 16251, 16251, 16252, 16253, 16253, 16254, 16255, 16255,
    };
    x = _mm512_max_epi16(x, _mm512_set1_epi16(-127 * 128));
    const __m512i rest = _mm512_permutex2var_epi16(
        _mm512_load_si512(kRest), _mm512_srli_epi16(x, 1), _mm512_load_si512(kRest + 32));
    return _mm512_castsi512_ps(_mm512_add_epi16(x, rest));
  }

  // Weights of an even key and the next, kW rows each, as elements.
  static EVENFLOW_INLINE F weights(F even, F odd) {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    const __m512i x = _mm512_packs_epi32(_mm512_cvtps_epi32(even), _mm512_cvtps_epi32(odd));
    return power(_mm512_shuffle_epi8(x, order));
  }
  // Weights of 2 kW keys of one row, as elements.
  static EVENFLOW_INLINE F row_weights(F low, F high) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i x = _mm512_packs_epi32(_mm512_cvtps_epi32(low), _mm512_cvtps_epi32(high));
    return power(_mm512_permutexvar_epi64(order, x));
  }
  // The sum of an element's weights.
  static EVENFLOW_INLINE F weight_sum(F element) {
    const F ones = _mm512_castsi512_ps(_mm512_set1_epi32(0x3f803f80));
    return mac(_mm512_setzero_ps(), element, ones);
  }
  static EVENFLOW_INLINE F first_key_only(F element) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(element), _mm512_set1_epi32(0xffff)));
  }
  static EVENFLOW_INLINE F second_key_only(F element) {
    return _mm512_castsi512_ps(
        _mm512_andnot_si512(_mm512_set1_epi32(0xffff), _mm512_castps_si512(element)));
  }

  static EVENFLOW_INLINE void load_query(const AttentionArgs& args, int64_t offset, int head_dim,
                                         float* elements) {
    std::memcpy(elements, static_cast<const uint16_t*>(args.q) + offset, size_t(head_dim) * 2);
  }
  static EVENFLOW_INLINE BlockView view(const AttentionArgs& args, int64_t offset,
                                        float* /*space*/) {
    return {reinterpret_cast<const float*>(static_cast<const uint16_t*>(args.keys) + offset),
            reinterpret_cast<const float*>(static_cast<const uint16_t*>(args.values) + offset)};
  }
};
#endif

struct FloatPolicy {
  static constexpr int kKeysPerStep = 1;
  static constexpr float kUnits = 1.0f;
  static constexpr bool kInPlace = false;
  static int dim_steps(int head_dim) { return head_dim; }

  static EVENFLOW_INLINE F mac(F acc, F a, F b) { return fma(a, b, acc); }
  static EVENFLOW_INLINE F exp2(F x) { return exp2_fine(x); }
  static EVENFLOW_INLINE F weight_sum(F element) { return element; }

  static EVENFLOW_INLINE void load_query(const AttentionArgs& args, int64_t offset, int head_dim,
                                         float* elements) {
    if (args.kv_f32) {
      std::memcpy(elements, static_cast<const float*>(args.q) + offset, size_t(head_dim) * 4);
      return;
    }
    const uint16_t* q = static_cast<const uint16_t*>(args.q) + offset;
    for (int i = 0; i < head_dim; i += kW) store(elements + i, load_bf16(q + i));
  }

  // Rows of `width` pairs become two rows of `width` floats.
  template <class T>
  static EVENFLOW_INLINE void split_pairs(const T* pairs, int rows, int width, float* out) {
    for (int row = 0; row < rows; ++row, pairs += 2 * width, out += 2 * width) {
      if constexpr (sizeof(T) == 2) {
        for (int i = 0; i < width; i += kW) {
          F even, odd;
          load_bf16_pairs(pairs + 2 * i, even, odd);
          store(out + i, even);
          store(out + width + i, odd);
        }
      } else {
        for (int i = 0; i < width; ++i) {
          out[i] = pairs[2 * i];
          out[width + i] = pairs[2 * i + 1];
        }
      }
    }
  }

  static EVENFLOW_INLINE BlockView view(const AttentionArgs& args, int64_t offset, float* space) {
    const int dim = args.head_dim;
    float* values = space + kKeys * dim;
    if (args.kv_f32) {
      split_pairs(static_cast<const float*>(args.keys) + offset, dim / 2, kKeys, space);
      split_pairs(static_cast<const float*>(args.values) + offset, kKeys / 2, dim, values);
    } else {
      split_pairs(static_cast<const uint16_t*>(args.keys) + offset, dim / 2, kKeys, space);
      split_pairs(static_cast<const uint16_t*>(args.values) + offset, kKeys / 2, dim, values);
    }
    return {space, values};
  }
};

}  // namespace evenflow::EVENFLOW_ISA
