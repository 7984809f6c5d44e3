// AVX-512 vectors: 16 lanes, mask registers; level 3 adds bf16 products. Included by vec.h only.
#pragma once

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kW = 16;
inline constexpr int kNumVectorRegisters = 32;
using F = __m512;
using M = __mmask16;

inline constexpr bool kFused = true;  // fma rounds once

EVENFLOW_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
EVENFLOW_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
EVENFLOW_INLINE F set1(float x) { return _mm512_set1_ps(x); }
EVENFLOW_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
EVENFLOW_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
EVENFLOW_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
EVENFLOW_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
EVENFLOW_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
EVENFLOW_INLINE F vmax(F a, F b) { return _mm512_max_ps(a, b); }  // b when either is NaN
EVENFLOW_INLINE M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
EVENFLOW_INLINE F select(M m, F a, F b) { return _mm512_mask_blend_ps(m, b, a); }  // m ? a : b
EVENFLOW_INLINE bool any(M m) { return m != 0; }
EVENFLOW_INLINE M is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
EVENFLOW_INLINE uint32_t bits(M m) { return m; }  // bit i is lane i
EVENFLOW_INLINE F lane_numbers() {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
EVENFLOW_INLINE float reduce_max(F x) { return _mm512_reduce_max_ps(x); }

// Pairwise: halves, quarters, eighths, sixteenths.
EVENFLOW_INLINE float reduce_add(F x) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

// Sum as a binary tree over neighbours: ((0 + 1) + (2 + 3)) + ...
EVENFLOW_INLINE float reduce_add_neighbours(F x) {
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4e));
  x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  return _mm512_cvtss_f32(x);
}

EVENFLOW_INLINE F fraction(F x) { return _mm512_reduce_ps(x, 0x09); }          // x - floor(x)
EVENFLOW_INLINE F scale_by_floor(F p, F x) { return _mm512_scalef_ps(p, x); }  // p 2^floor(x)

#if EVENFLOW_ISA_LEVEL >= 3
// This instruction takes numbers below 2^-126 for zero.
EVENFLOW_INLINE void store_bf16(uint16_t* p, F x) {
  const __m256bh narrow = _mm512_cvtneps_pbh(x);
  std::memcpy(p, &narrow, 32);
}
#else
EVENFLOW_INLINE void store_bf16(uint16_t* p, F x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i round = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __m512i kept = _mm512_mask_mov_epi32(round, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
#endif

EVENFLOW_INLINE F load_bf16(const uint16_t* p) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

// Splits kW pairs of bf16 into their even and odd members.
EVENFLOW_INLINE void load_bf16_pairs(const uint16_t* p, F& even, F& odd) {
  const __m512i u = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

EVENFLOW_INLINE F round_nearest(F x) { return _mm512_roundscale_ps(x, 0x08); }
// kW values from x, or `left` of them and then `fill`.
EVENFLOW_INLINE F load_part(const float* x, int left, float fill) {
  const uint32_t there = left >= kW ? 0xffffu : (1u << left) - 1u;
  return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), static_cast<__mmask16>(there), x);
}
// The first `left` lanes, or all.
EVENFLOW_INLINE void store_part(float* x, int left, F value) {
  const uint32_t there = left >= kW ? 0xffffu : (1u << left) - 1u;
  _mm512_mask_storeu_ps(x, static_cast<__mmask16>(there), value);
}

// Writes the lanes of x whose bit is set, packed, and perhaps more behind them; 16 must fit.
EVENFLOW_INLINE void store_packed(float* p, F x, uint32_t lanes) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(lanes), x));
}
// Lane i holds the bits of the integer first + i.
EVENFLOW_INLINE F lane_ids(int32_t first) {
  const __m512i up = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_set1_epi32(first), up));
}

// A float64 sum for each lane.
struct DoubleSum {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  EVENFLOW_INLINE void add(F x) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
  }
  EVENFLOW_INLINE double total() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }
};

// Transposes rows[i] lane j <-> rows[j] lane i.
EVENFLOW_INLINE void transpose(F* r) {
  F t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
      r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

}  // namespace evenflow::EVENFLOW_ISA
