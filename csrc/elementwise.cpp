// Norms, rounding and group sums of whole rows.
#include "elementwise.h"

#include "elementwise_row.h"

namespace evenflow::EVENFLOW_ISA {

void rms_norm(const NormArgs& args, int begin, int end) {
  for (int row = begin; row < end; ++row) {
    const int64_t source = args.row_ids != nullptr ? args.row_ids[row] : row;
    const float* x = args.x + source * args.x_stride;
    float* sums = args.x_sums != nullptr ? args.x_sums + row * args.x_sums_stride : nullptr;
    const float scale = inverse_rms(x, args.width, args.eps);
    if (args.out_f32) {
      float* out = static_cast<float*>(args.out) + row * args.out_stride;
      scale_row(x, scale, args.weight, args.width, out);
      if (sums != nullptr) row_group_sums(out, args.width, sums);
    } else {
      uint16_t* out = static_cast<uint16_t*>(args.out) + row * args.out_stride;
      scale_round_row(x, scale, args.weight, args.width, out);
      if (sums != nullptr) row_group_sums(out, args.width, sums);
    }
  }
}

void to_bf16(const float* x, uint16_t* out, int64_t count) { round_row(x, out, count); }

void group_sums(const void* x, int64_t x_stride, int width, bool x_f32, float* sums,
                int64_t sums_stride, int begin, int end) {
  for (int row = begin; row < end; ++row) {
    float* out = sums + row * sums_stride;
    if (x_f32) {
      row_group_sums(static_cast<const float*>(x) + row * x_stride, width, out);
    } else {
      row_group_sums(static_cast<const uint16_t*>(x) + row * x_stride, width, out);
    }
  }
}

}  // namespace evenflow::EVENFLOW_ISA
