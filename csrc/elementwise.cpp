// Norms, rounding and group sums of whole rows.
#include "elementwise.h"

#include "elementwise_row.h"
#include "vec_tanh.h"

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

void add_norm(const NormArgs& args, int begin, int end) {
  const int width = args.width;
  for (int row = begin; row < end; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = static_cast<float*>(args.out) + row * args.out_stride;
    const float scale = args.weight != nullptr ? inverse_rms(x, width, args.eps) : 1.0f;
    for (int i = 0; i < width; i += kW) {
      const int left = width - i;
      F value = load_part(x + i, left, 0.0f);
      if (args.weight != nullptr) {
        value = mul(mul(value, set1(scale)), load_part(args.weight + i, left, 0.0f));
      }
      value = mul(value, set1(args.out_scale));
      store_part(out + i, left, add(load_part(out + i, left, 0.0f), value));
    }
  }
}

void scale_and_cap(float* x, int64_t count, float scale, float cap) {
  for (int64_t i = 0; i < count; i += kW) {
    const int left = count - i < kW ? static_cast<int>(count - i) : kW;
    F value = mul(load_part(x + i, left, 0.0f), set1(scale));
    if (cap != 0.0f) value = mul(vec_tanh(mul(value, set1(1.0f / cap))), set1(cap));
    store_part(x + i, left, value);
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
