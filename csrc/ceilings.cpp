// What this core can do at most: the rate of products whose operands never leave the registers.

#include "ceilings.h"

#include "gemm_tile.h"

namespace evenflow::EVENFLOW_ISA {

double peak_products(int64_t iterations) {
  // twelve chains hide the latency of every product unit there is
  constexpr int kChains = 12;
  F acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = set1(0.0f);
#if EVENFLOW_ISA_LEVEL >= 3
  constexpr double kOperations = 4.0 * kW;  // two products and two sums a lane
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);
#else
  constexpr double kOperations = 2.0 * kW;
  const F ones = set1(1.0f);
#endif
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
#if EVENFLOW_ISA_LEVEL >= 3
      acc[i] = dot_pairs(acc[i], ones, ones);
#else
      acc[i] = fma(ones, ones, acc[i]);
#endif
      // the compiler may neither fold the chain nor move it to memory
#if defined(__x86_64__)
      asm volatile("" : "+v"(acc[i]));
#elif defined(__aarch64__)
      asm volatile("" : "+w"(acc[i]));
#endif
    }
  }
  F sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = add(sum, acc[i]);
  alignas(64) float lanes[kW];
  store(lanes, sum);
  // read back so that none of it is dead code; the sum is never negative
  return lanes[0] < 0.0f ? 0.0 : static_cast<double>(iterations) * kChains * kOperations;
}

}  // namespace evenflow::EVENFLOW_ISA
