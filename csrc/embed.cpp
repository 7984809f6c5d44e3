// Embedding rows as float32 from a table in a GGUF type, each value expanded by the type's own
// rule.
#include "elementwise.h"
#include "elementwise_row.h"
#include "half.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

// GGUF type numbers.
enum : int32_t {
  kTypeF32 = 0,
  kTypeF16 = 1,
  kTypeQ4_0 = 2,
  kTypeQ4_1 = 3,
  kTypeQ8_0 = 8,
  kTypeBf16 = 30
};

EVENFLOW_INLINE uint16_t read_u16(const uint8_t* p) {
  uint16_t u;
  std::memcpy(&u, p, 2);
  return u;
}

// Block formats hold 32 values: a half scale (and a half minimum), then the integers.
EVENFLOW_INLINE void expand_q8_0(const uint8_t* block, float* out) {
  const float scale = half_to_float(read_u16(block));
  for (int i = 0; i < kGroup; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
  }
}

EVENFLOW_INLINE void expand_q4_0(const uint8_t* block, float* out) {
  const float scale = half_to_float(read_u16(block));
  for (int i = 0; i < kGroup / 2; ++i) {
    out[i] = static_cast<float>((block[2 + i] & 15) - 8) * scale;
    out[i + kGroup / 2] = static_cast<float>((block[2 + i] >> 4) - 8) * scale;
  }
}

EVENFLOW_INLINE void expand_q4_1(const uint8_t* block, float* out) {
  const float scale = half_to_float(read_u16(block)), low = half_to_float(read_u16(block + 2));
  for (int i = 0; i < kGroup / 2; ++i) {
    out[i] = static_cast<float>(block[4 + i] & 15) * scale + low;
    out[i + kGroup / 2] = static_cast<float>(block[4 + i] >> 4) * scale + low;
  }
}

EVENFLOW_INLINE void expand_row(int32_t type, const uint8_t* row, int width, float* out) {
  switch (type) {
    case kTypeF32:
      std::memcpy(out, row, size_t(width) * 4);
      return;
    case kTypeF16:
      for (int i = 0; i < width; ++i) out[i] = half_to_float(read_u16(row + 2 * i));
      return;
    case kTypeBf16:
      for (int i = 0; i < width; ++i) out[i] = scalar_from_bf16(read_u16(row + 2 * i));
      return;
    case kTypeQ8_0:
      for (int i = 0; i < width; i += kGroup, row += 34) expand_q8_0(row, out + i);
      return;
    case kTypeQ4_0:
      for (int i = 0; i < width; i += kGroup, row += 18) expand_q4_0(row, out + i);
      return;
    case kTypeQ4_1:
      for (int i = 0; i < width; i += kGroup, row += 20) expand_q4_1(row, out + i);
      return;
    default:
      __builtin_trap();  // the loader converts every other type first
  }
}

}  // namespace

void embed(const EmbedArgs& args, int begin, int end) {
  const uint8_t* table = static_cast<const uint8_t*>(args.table);
  for (int row = begin; row < end; ++row) {
    float* out = args.out + row * args.out_stride;
    expand_row(args.ggml_type, table + args.token_ids[row] * args.row_bytes, args.width, out);
    if (args.scale == 1.0f) continue;
    for (int i = 0; i < args.width; ++i) out[i] *= args.scale;
  }
}

}  // namespace evenflow::EVENFLOW_ISA
