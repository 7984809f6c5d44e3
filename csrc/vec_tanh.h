// tanh, and what is made of it: GELU gates, soft caps.
#pragma once

#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

// 1 - 2 / (1 + e^2x), within 2e-7 of the truth; exact at 0 and at the infinities.
EVENFLOW_INLINE F vec_tanh(F x) {
  const F growth = exp2_fine(mul(x, set1(2 * 1.44269504088896341f)));
  return sub(set1(1.0f), div(set1(2.0f), add(set1(1.0f), growth)));
}

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = x / (1 + e^(-2 sqrt(2 / pi) (...)))
EVENFLOW_INLINE F vec_gelu(F x) {
  constexpr float kSlope = -2 * 0.797884560802865356f * 1.44269504088896341f;
  const F turn = fma(mul(x, x), set1(kSlope * 0.044715f), set1(kSlope));
  return div(x, add(set1(1.0f), exp2_fine(mul(x, turn))));
}

}  // namespace evenflow::EVENFLOW_ISA
