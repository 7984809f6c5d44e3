// Ceilings of the machine, for the benchmarks.
#pragma once

#include <cstdint>

namespace evenflow::EVENFLOW_ISA {

// Runs register-only products; returns the operations done, two per multiply-add.
double peak_products(int64_t iterations);

}  // namespace evenflow::EVENFLOW_ISA
