// Portable vectors: 4 lanes as a GCC/Clang vector type (SSE2 on x86-64, NEON on aarch64).
// A fused multiply-add is used where the target has one, else a product and a sum; one build always
// takes the same way. Included by vec.h only.
#pragma once

namespace evenflow::EVENFLOW_ISA {

inline constexpr int kW = 4;
#if defined(__aarch64__)
inline constexpr int kNumVectorRegisters = 32;
#else
inline constexpr int kNumVectorRegisters = 16;
#endif
typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
struct M {
  I bits;
};

#if defined(__FMA__) || defined(__aarch64__)
inline constexpr bool kFused = true;  // fma rounds once
#else
inline constexpr bool kFused = false;
#endif

EVENFLOW_INLINE F load(const float* p) {
  F x;
  std::memcpy(&x, p, 16);
  return x;
}
EVENFLOW_INLINE void store(float* p, F x) { std::memcpy(p, &x, 16); }
EVENFLOW_INLINE F set1(float x) { return F{x, x, x, x}; }
EVENFLOW_INLINE F add(F a, F b) { return a + b; }
EVENFLOW_INLINE F sub(F a, F b) { return a - b; }
EVENFLOW_INLINE F mul(F a, F b) { return a * b; }
EVENFLOW_INLINE F div(F a, F b) { return a / b; }
EVENFLOW_INLINE M less(F a, F b) { return {a < b}; }
EVENFLOW_INLINE F select(M m, F a, F b) {  // m ? a : b
  return reinterpret_cast<F>((m.bits & reinterpret_cast<I>(a)) |
                             (~m.bits & reinterpret_cast<I>(b)));
}
EVENFLOW_INLINE F vmax(F a, F b) { return select(less(b, a), a, b); }  // b when either is NaN
EVENFLOW_INLINE bool any(M m) { return (m.bits[0] | m.bits[1] | m.bits[2] | m.bits[3]) != 0; }
EVENFLOW_INLINE M is_nan(F a) { return {~(a == a)}; }
EVENFLOW_INLINE uint32_t bits(M m) {  // bit i is lane i
  return (m.bits[0] & 1u) | (m.bits[1] & 2u) | (m.bits[2] & 4u) | (m.bits[3] & 8u);
}
EVENFLOW_INLINE F lane_numbers() { return F{0, 1, 2, 3}; }

EVENFLOW_INLINE F fma(F a, F b, F c) {
#if defined(__FMA__) || defined(__aarch64__)
  F r;
  for (int i = 0; i < 4; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#else
  return a * b + c;
#endif
}

EVENFLOW_INLINE float reduce_max(F x) {
  const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
EVENFLOW_INLINE float reduce_add(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }

// Sum as a binary tree over neighbours: (0 + 1) + (2 + 3)
EVENFLOW_INLINE float reduce_add_neighbours(F x) { return (x[0] + x[1]) + (x[2] + x[3]); }

// Outside [-127, 128] the power of two below is 0 or infinite whatever the fraction; NaN stays.
EVENFLOW_INLINE F clamp_exponent(F x) {
  x = select(less(x, set1(-127.0f)), set1(-127.0f), x);
  return select(less(set1(128.0f), x), set1(128.0f), x);
}
EVENFLOW_INLINE I floor_to_int(F x) {  // |x| <= 128 or NaN, which gives some number
  const F kept = select(M{x == x}, x, set1(0.0f));
  const I cut = __builtin_convertvector(kept, I);
  return cut + (__builtin_convertvector(cut, F) > kept);  // true is -1
}
EVENFLOW_INLINE F fraction(F x) {  // x - floor(x)
  const F c = clamp_exponent(x);
  return c - __builtin_convertvector(floor_to_int(c), F);
}
EVENFLOW_INLINE F scale_by_floor(F p, F x) {  // p 2^floor(x)
  return p * reinterpret_cast<F>((floor_to_int(clamp_exponent(x)) + 127) << 23);
}

EVENFLOW_INLINE void store_bf16(uint16_t* p, F x) {
  for (int i = 0; i < 4; ++i) p[i] = scalar_to_bf16(x[i]);
}

EVENFLOW_INLINE F load_bf16(const uint16_t* p) {
  F x;
  for (int i = 0; i < 4; ++i) x[i] = scalar_from_bf16(p[i]);
  return x;
}

// Splits kW pairs of bf16 into their even and odd members.
EVENFLOW_INLINE void load_bf16_pairs(const uint16_t* p, F& even, F& odd) {
  I u;
  std::memcpy(&u, p, 16);
  even = reinterpret_cast<F>(u << 16);
  odd = reinterpret_cast<F>(u & static_cast<int32_t>(0xffff0000u));
}

EVENFLOW_INLINE F round_nearest(F x) {  // |x| < 2^22
  const F big = set1(12582912.0f);
  return (x + big) - big;
}
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
  for (; lanes != 0; lanes &= lanes - 1) *p++ = x[__builtin_ctz(lanes)];
}
// Lane i holds the bits of the integer first + i.
EVENFLOW_INLINE F lane_ids(int32_t first) {
  return reinterpret_cast<F>(I{first, first + 1, first + 2, first + 3});
}

// A float64 sum for each lane.
struct DoubleSum {
  double lanes[4] = {};
  EVENFLOW_INLINE void add(F x) {
    for (int i = 0; i < 4; ++i) lanes[i] += static_cast<double>(x[i]);
  }
  EVENFLOW_INLINE double total() const { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }
};

// Transposes rows[i] lane j <-> rows[j] lane i.
EVENFLOW_INLINE void transpose(F* r) {
  F t[4];
  for (int i = 0; i < 4; ++i) t[i] = F{r[0][i], r[1][i], r[2][i], r[3][i]};
  for (int i = 0; i < 4; ++i) r[i] = t[i];
}

}  // namespace evenflow::EVENFLOW_ISA
