// One vector type per instruction set, with the handful of operations that the kernels use.
//
// In: EVENFLOW_ISA (namespace) and EVENFLOW_ISA_LEVEL (0 portable, 1 AVX2+FMA, 2 AVX-512, 3 AVX-512
// with bf16 products). Out: `F` (kW floats), `M` (one truth value a lane) and inline functions with
// the same names on every level. Every operation works lane by lane in IEEE single precision,
// except where it says otherwise, so a lane's bits never depend on its neighbours.
#pragma once

#include <cstdint>
#include <cstring>

#if EVENFLOW_ISA_LEVEL >= 1
#include <immintrin.h>
#endif

#define EVENFLOW_INLINE inline __attribute__((always_inline))

namespace evenflow::EVENFLOW_ISA {

inline constexpr float kMinusInfinity = -__builtin_inff();

EVENFLOW_INLINE uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}

EVENFLOW_INLINE float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// Round to nearest even; a NaN stays a (quiet) NaN.
EVENFLOW_INLINE uint16_t scalar_to_bf16(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

EVENFLOW_INLINE float scalar_from_bf16(uint16_t b) { return float_of(uint32_t{b} << 16); }

}  // namespace evenflow::EVENFLOW_ISA

#if EVENFLOW_ISA_LEVEL >= 2
#include "vec_avx512.h"
#elif EVENFLOW_ISA_LEVEL == 1
#include "vec_avx2.h"
#else
#include "vec_portable.h"
#endif

namespace evenflow::EVENFLOW_ISA {

// Polynomials for 2^f on [0, 1), fitted for the least relative error with p(0) = 1 exactly, so that
// 2^0 is 1 to the bit. Cubic: 8.6e-5, a fortieth of half a bf16 step. Sixth degree: 6.5e-8.
EVENFLOW_INLINE F exp2_poly3(F f) {
  F p = set1(0.0770670473575592f);
  p = fma(p, f, set1(0.22764499485492706f));
  p = fma(p, f, set1(0.6951167583465576f));
  return fma(p, f, set1(1.0f));
}

EVENFLOW_INLINE F exp2_poly6(F f) {
  F p = set1(0.00021612878481391817f);
  p = fma(p, f, set1(0.0012467862106859684f));
  p = fma(p, f, set1(0.009675449691712856f));
  p = fma(p, f, set1(0.055485282093286514f));
  p = fma(p, f, set1(0.2402293086051941f));
  p = fma(p, f, set1(0.6931470632553101f));
  return fma(p, f, set1(1.0f));
}

// 2^x; zero below -126, exact at 0, zero (not NaN) at minus infinity, infinite above 128.
EVENFLOW_INLINE F exp2_coarse(F x) { return scale_by_floor(exp2_poly3(fraction(x)), x); }
EVENFLOW_INLINE F exp2_fine(F x) { return scale_by_floor(exp2_poly6(fraction(x)), x); }

// x[i] = e^x[i] within two thirds of a unit in the last place, for x in [-200, 88]; 0 below -104.
// Step by step for all N, because a processor looks too few instructions ahead to overlap whole
// ones.
template <int N>
EVENFLOW_INLINE void vec_exp(F* x) {
  // fitted to e^r on |r| <= ln 2 / 2 with a relative error of 3e-9
  constexpr float kFit[] = {0.008368751965463161f,
                            0.04166839271783829f,
                            0.1666651964187622f,
                            0.4999999403953552f,
                            1.0f,
                            1.0f};
  F n[N], r[N], p[N];
  for (int i = 0; i < N; ++i) n[i] = mul(x[i], set1(1.44269504088896341f));
  for (int i = 0; i < N; ++i) n[i] = round_nearest(n[i]);                   // powers of two
  for (int i = 0; i < N; ++i) r[i] = fma(n[i], set1(-0.693359375f), x[i]);  // ln 2 in two parts
  for (int i = 0; i < N; ++i) r[i] = fma(n[i], set1(2.12194440e-4f), r[i]);
  for (int i = 0; i < N; ++i) p[i] = fma(set1(0.0013814496342092752f), r[i], set1(kFit[0]));
  for (int k = 1; k < 6; ++k) {
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], r[i], set1(kFit[k]));
  }
  for (int i = 0; i < N; ++i) x[i] = scale_by_floor(p[i], n[i]);
}

// x / (1 + e^-x)
EVENFLOW_INLINE F vec_silu(F x) {
  const F decay = exp2_fine(mul(x, set1(-1.44269504088896341f)));
  return div(x, add(set1(1.0f), decay));
}

}  // namespace evenflow::EVENFLOW_ISA
