// Everything between the products that works row by row: norms, RoPE with the write into the KV
// pool, embedding rows, rounding, group sums. A row's bits depend on that row alone.
#pragma once

#include "kernels.h"

namespace evenflow::EVENFLOW_ISA {

void rms_norm(const NormArgs& args, int begin, int end);
void add_norm(const NormArgs& args, int begin, int end);
void scale_and_cap(float* x, int64_t count, float scale, float cap);
void rope_write(const RopeArgs& args, int begin, int end);
void embed(const EmbedArgs& args, int begin, int end);
void to_bf16(const float* x, uint16_t* out, int64_t count);
void group_sums(const void* x, int64_t x_stride, int width, bool x_f32, float* sums,
                int64_t sums_stride, int begin, int end);

}  // namespace evenflow::EVENFLOW_ISA
