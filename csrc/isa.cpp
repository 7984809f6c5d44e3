#include "isa.h"

#include <stdexcept>

namespace evenflow {
namespace {

using Table = const Kernels& (*)();

struct Isa {
  Table table;
  bool runnable;
};

std::vector<Isa> all_isas() {
  std::vector<Isa> isas;
#if defined(__x86_64__)
  // __builtin_cpu_supports asks XGETBV too, so it is false for registers that the OS does not save.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
  const bool bf16 =
      avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  isas.push_back({kernels_avx512bf16, bf16});
  isas.push_back({kernels_avx512, avx512});
  isas.push_back({kernels_avx2, avx2});
#endif
  isas.push_back({kernels_portable, true});
  return isas;
}

}  // namespace

std::vector<std::string> runnable_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : all_isas()) {
    if (isa.runnable) names.emplace_back(isa.table().name);
  }
  return names;
}

const Kernels& find_kernels(std::string_view name) {
  std::string known;
  for (const Isa& isa : all_isas()) {
    if (!isa.runnable) continue;
    const Kernels& kernels = isa.table();
    if (name == "auto" || name == kernels.name) return kernels;
    known += known.empty() ? kernels.name : std::string(", ") + kernels.name;
  }
  throw std::invalid_argument("instruction set '" + std::string(name) +
                              "' cannot be run here; this machine runs " + known);
}

}  // namespace evenflow
