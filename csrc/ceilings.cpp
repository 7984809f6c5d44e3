// What this core can do at most: the rate of products whose operands never leave the registers.

#include "ceilings.h"

#include "gemm_tile.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

#if EVENFLOW_ISA_LEVEL >= 3
constexpr double kOperations = 4.0 * kW;  // two products and two sums a lane
EVENFLOW_INLINE void step(F& acc, F ones) {
  acc = dot_pairs(acc, _mm512_castps_si512(ones), _mm512_castps_si512(ones));
  asm volatile("" : "+v"(acc));  // the compiler may not fold the chain
}
#else
constexpr double kOperations = 2.0 * kW;
EVENFLOW_INLINE void step(F& acc, F ones) {
  acc = fma(ones, ones, acc);
#if EVENFLOW_ISA_LEVEL == 2
  asm volatile("" : "+v"(acc));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(acc));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(acc));
#endif
}
#endif

}  // namespace

double peak_products(int64_t iterations) {
  // Twelve chains hide the latency of every product unit there is. Named one by one: GCC keeps an
  // array of them in memory.
  F a = set1(0.0f), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a;
  const F ones = set1(float_of(0x3f803f80u));  // two bf16 ones, or a little over 1
  for (int64_t n = 0; n < iterations; ++n) {
    step(a, ones), step(b, ones), step(c, ones), step(d, ones);
    step(e, ones), step(f, ones), step(g, ones), step(h, ones);
    step(i, ones), step(j, ones), step(k, ones), step(l, ones);
  }
  const F sum =
      add(add(add(add(a, b), add(c, d)), add(add(e, f), add(g, h))), add(add(i, j), add(k, l)));
  alignas(64) float lanes[kW];
  store(lanes, sum);
  // read back so that none of it is dead code; the sum is never negative
  return lanes[0] < 0.0f ? 0.0 : static_cast<double>(iterations) * 12 * kOperations;
}

}  // namespace evenflow::EVENFLOW_ISA
