// AVX2 + FMA vectors: 8 lanes, masks as vectors. Included by vec.h only.
#pragma once

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kW = 8;
inline constexpr int kNumVectorRegisters = 16;
using F = __m256;
struct M {
  __m256 bits;
};

inline constexpr bool kFused = true;  // fma rounds once

EVENFLOW_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
EVENFLOW_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
EVENFLOW_INLINE F set1(float x) { return _mm256_set1_ps(x); }
EVENFLOW_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
EVENFLOW_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
EVENFLOW_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
EVENFLOW_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
EVENFLOW_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
EVENFLOW_INLINE F vmax(F a, F b) { return _mm256_max_ps(a, b); }  // b when either is NaN
EVENFLOW_INLINE M less(F a, F b) { return {_mm256_cmp_ps(a, b, _CMP_LT_OQ)}; }
EVENFLOW_INLINE F select(M m, F a, F b) { return _mm256_blendv_ps(b, a, m.bits); }  // m ? a : b
EVENFLOW_INLINE bool any(M m) { return _mm256_movemask_ps(m.bits) != 0; }
EVENFLOW_INLINE M is_nan(F a) { return {_mm256_cmp_ps(a, a, _CMP_UNORD_Q)}; }
EVENFLOW_INLINE uint32_t bits(M m) {  // bit i is lane i
  return static_cast<uint32_t>(_mm256_movemask_ps(m.bits));
}
EVENFLOW_INLINE F lane_numbers() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

EVENFLOW_INLINE float reduce_max(F x) {
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

// Pairwise: halves, quarters, eighths.
EVENFLOW_INLINE float reduce_add(F x) {
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

// Sum as a binary tree over neighbours: ((0 + 1) + (2 + 3)) + ...
EVENFLOW_INLINE float reduce_add_neighbours(F x) {
  x = _mm256_add_ps(x, _mm256_permute_ps(x, 0xb1));
  x = _mm256_add_ps(x, _mm256_permute_ps(x, 0x4e));
  x = _mm256_add_ps(x, _mm256_permute2f128_ps(x, x, 0x01));
  return _mm256_cvtss_f32(x);
}

// Outside [-127, 128] the power of two below is 0 or infinite whatever the fraction; NaN stays.
EVENFLOW_INLINE F clamp_exponent(F x) {
  return _mm256_min_ps(_mm256_set1_ps(128.0f), _mm256_max_ps(_mm256_set1_ps(-127.0f), x));
}
EVENFLOW_INLINE F fraction(F x) {  // x - floor(x)
  const F c = clamp_exponent(x);
  return _mm256_sub_ps(c, _mm256_floor_ps(c));
}
EVENFLOW_INLINE F scale_by_floor(F p, F x) {  // p 2^floor(x)
  const __m256i n = _mm256_cvttps_epi32(_mm256_floor_ps(clamp_exponent(x)));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

EVENFLOW_INLINE void store_bf16(uint16_t* p, F x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i round = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i kept = _mm256_srli_epi32(_mm256_blendv_epi8(round, quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0x88);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

EVENFLOW_INLINE F load_bf16(const uint16_t* p) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

// Splits kW pairs of bf16 into their even and odd members.
EVENFLOW_INLINE void load_bf16_pairs(const uint16_t* p, F& even, F& odd) {
  const __m256i u = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

EVENFLOW_INLINE F round_nearest(F x) { return _mm256_round_ps(x, 0x08); }
// kW values from x, or `left` of them and then `fill`.
EVENFLOW_INLINE F load_part(const float* x, int left, float fill) {
  if (left >= kW) return load(x);
  float part[kW];
  for (int i = 0; i < kW; ++i) part[i] = i < left ? x[i] : fill;
  return load(part);
}
// The first `left` lanes, or all.
EVENFLOW_INLINE void store_part(float* x, int left, F value) {
  if (left >= kW) return store(x, value);
  float part[kW];
  store(part, value);
  for (int i = 0; i < left; ++i) x[i] = part[i];
}

// Writes the lanes of x whose bit is set, packed; kW must fit.
EVENFLOW_INLINE void store_packed(float* p, F x, uint32_t lanes) {
  alignas(32) float all[kW];
  _mm256_store_ps(all, x);
  for (; lanes != 0; lanes &= lanes - 1) *p++ = all[__builtin_ctz(lanes)];
}
// Lane i holds the bits of the integer first + i.
EVENFLOW_INLINE F lane_ids(int32_t first) {
  const __m256i up = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_set1_epi32(first), up));
}

// A float64 sum for each lane.
struct DoubleSum {
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  EVENFLOW_INLINE void add(F x) {
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  }
  EVENFLOW_INLINE double total() const {
    double d[4];
    _mm256_storeu_pd(d, _mm256_add_pd(low, high));
    return (d[0] + d[2]) + (d[1] + d[3]);
  }
};

// Transposes rows[i] lane j <-> rows[j] lane i.
EVENFLOW_INLINE void transpose(F* r) {
  F t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
      r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
    }
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

}  // namespace evenflow::EVENFLOW_ISA
