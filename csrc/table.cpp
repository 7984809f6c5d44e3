// The table of one instruction set's kernels.

#include "attention.h"
#include "ceilings.h"
#include "elementwise.h"
#include "gemm.h"
#include "kernels.h"
#include "sampling.h"

#define EVENFLOW_JOIN2(a, b) a##b
#define EVENFLOW_JOIN(a, b) EVENFLOW_JOIN2(a, b)

namespace evenflow {
namespace {

constexpr const char* kName = EVENFLOW_ISA_LEVEL == 3   ? "avx512-bf16"
                              : EVENFLOW_ISA_LEVEL == 2 ? "avx512"
                              : EVENFLOW_ISA_LEVEL == 1 ? "avx2"
                                                        : "portable";

}  // namespace

const Kernels& EVENFLOW_JOIN(kernels_, EVENFLOW_ISA)() {
  static constexpr Kernels kernels = {
      .name = kName,
      .gemm = EVENFLOW_ISA::gemm,
      .gemm_scratch_bytes = EVENFLOW_ISA::gemm_scratch_bytes,
      .plan_attention = EVENFLOW_ISA::plan_attention,
      .attention = EVENFLOW_ISA::attention,
      .attention_scratch_bytes = EVENFLOW_ISA::attention_scratch_bytes,
      .rms_norm = EVENFLOW_ISA::rms_norm,
      .add_norm = EVENFLOW_ISA::add_norm,
      .scale_and_cap = EVENFLOW_ISA::scale_and_cap,
      .rope_write = EVENFLOW_ISA::rope_write,
      .embed = EVENFLOW_ISA::embed,
      .to_bf16 = EVENFLOW_ISA::to_bf16,
      .group_sums = EVENFLOW_ISA::group_sums,
      .sample_row = EVENFLOW_ISA::sample_row,
      .sampling_scratch_bytes = EVENFLOW_ISA::sampling_scratch_bytes,
      .peak_products = EVENFLOW_ISA::peak_products,
  };
  return kernels;
}

}  // namespace evenflow
