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

// e^x to about one unit in the last place; 0 at minus infinity, NaN at NaN; for x <= 88.
EVENFLOW_INLINE F vec_exp(F x) {
  x = vmax(set1(-104.0f), x);
  const F turns = fma(x, set1(1.44269504088896341f), set1(0.5f));
  const F n = sub(turns, fraction(turns));  // the nearest whole number of powers of two
  F r = fma(n, set1(-0.693359375f), x);     // ln 2 in two parts, the first exact
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);  // Moshier's Cephes polynomial for e^r, |r| <= ln 2 / 2
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return scale_by_floor(p, n);
}

// x / (1 + e^-x)
EVENFLOW_INLINE F vec_silu(F x) {
  const F decay = exp2_fine(mul(x, set1(-1.44269504088896341f)));
  return div(x, add(set1(1.0f), decay));
}

}  // namespace evenflow::EVENFLOW_ISA
