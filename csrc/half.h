// Half precision as bits: exact widening and rounding, without the help of any instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace evenflow {

// static and always inlined: a copy compiled for AVX-512 must never serve a portable caller.
#define EVENFLOW_STATIC_INLINE static inline __attribute__((always_inline))

EVENFLOW_STATIC_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7fffu;
  float value;
  if (rest >= 0x7c00u) {  // infinity and NaN
    const uint32_t bits = sign | 0x7f800000u | (rest & 0x3ffu) << 13;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  // 2^112 moves the exponent's bias from 15 to 127, subnormals included
  const uint32_t bits = rest << 13;
  std::memcpy(&value, &bits, 4);
  value *= 0x1p112f;
  uint32_t out;
  std::memcpy(&out, &value, 4);
  out |= sign;
  std::memcpy(&value, &out, 4);
  return value;
}

// Round to nearest even, for finite numbers of at most 65504; what is too small becomes subnormal.
EVENFLOW_STATIC_INLINE uint16_t float_to_half(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint32_t sign = u >> 16 & 0x8000u;
  u &= 0x7fffffffu;
  if (u < 0x38800000u) {  // below 2^-14: adding 1/2 leaves the value in units of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &u, 4);
    magnitude += 0.5f;
    uint32_t sum;
    std::memcpy(&sum, &magnitude, 4);
    return static_cast<uint16_t>(sign | (sum - 0x3f000000u));
  }
  u += 0xc8000fffu + (u >> 13 & 1u);  // exponent bias from 127 to 15, and half of the last place
  return static_cast<uint16_t>(sign | u >> 13);
}

// Round to nearest even; a NaN stays a quiet NaN.
EVENFLOW_STATIC_INLINE uint16_t round_to_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

EVENFLOW_STATIC_INLINE float bf16_to_float(uint16_t bits) {
  const uint32_t u = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &u, 4);
  return value;
}

}  // namespace evenflow
