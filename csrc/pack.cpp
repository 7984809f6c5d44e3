// Packing: rows of a weight as a file stores them into the kernels' panels.

#include "pack.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "half.h"

namespace evenflow {
namespace {

// GGUF type numbers and block sizes, as in ggml.
enum GgmlType {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ4_1 = 3,
  kGgmlQ8_0 = 8,
  kGgmlBf16 = 30
};
constexpr int kQ4_0Bytes = 18, kQ4_1Bytes = 20, kQ8_0Bytes = 34;

uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

float read_f32(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, 4);
  return value;
}

// Nibble k of a 4-bit block: the low halves hold k = 0..15, the high ones k = 16..31.
int nibble(const uint8_t* bytes, int k) { return k < 16 ? bytes[k] & 15 : bytes[k - 16] >> 4; }

void widen_row(int type, int64_t depth, const uint8_t* row, float* out) {
  for (int64_t k = 0; k < depth; ++k) {
    const int64_t block = k / kGroup;
    const int at = static_cast<int>(k % kGroup);
    switch (type) {
      case kGgmlF32:
        out[k] = read_f32(row + 4 * k);
        break;
      case kGgmlF16:
        out[k] = half_to_float(read_u16(row + 2 * k));
        break;
      case kGgmlBf16:
        out[k] = bf16_to_float(read_u16(row + 2 * k));
        break;
      case kGgmlQ8_0: {
        const uint8_t* b = row + block * kQ8_0Bytes;
        out[k] = half_to_float(read_u16(b)) * static_cast<float>(static_cast<int8_t>(b[2 + at]));
        break;
      }
      case kGgmlQ4_0: {
        const uint8_t* b = row + block * kQ4_0Bytes;
        out[k] = half_to_float(read_u16(b)) * static_cast<float>(nibble(b + 2, at) - 8);
        break;
      }
      default: {
        const uint8_t* b = row + block * kQ4_1Bytes;
        const float scaled = half_to_float(read_u16(b)) * static_cast<float>(nibble(b + 4, at));
        out[k] = scaled + half_to_float(read_u16(b + 2));
        break;
      }
    }
  }
}

void pack_q8_group(const uint8_t* const* blocks, uint8_t* group) {
  uint8_t* data = group + 2 * kPanelColumns;
  for (int c = 0; c < kPanelColumns; ++c) {
    const uint8_t* b = blocks[c];
    std::memcpy(group + 2 * c, b, 2);
    for (int k = 0; k < kGroup; ++k) data[q8_at(k, c)] = b[2 + k];
  }
}

void pack_q4_group(const uint8_t* const* blocks, bool mins, uint8_t* group) {
  uint8_t* data = group + (mins ? 4 : 2) * kPanelColumns;
  for (int c = 0; c < kPanelColumns; ++c) {
    const uint8_t* b = blocks[c];
    std::memcpy(group + 2 * c, b, 2);
    if (mins) std::memcpy(group + 2 * (kPanelColumns + c), b + 2, 2);
    const uint8_t* q = b + (mins ? 4 : 2);
    for (int word = 0; word < 4; ++word) {
      for (int parity = 0; parity < 2; ++parity) {
        unsigned packed = 0;
        for (int s = 0; s < 4; ++s) {
          packed |= static_cast<unsigned>(nibble(q, 8 * word + 2 * s + parity)) << (4 * s);
        }
        const auto out = static_cast<uint16_t>(packed);
        std::memcpy(data + q4_at(word, c, parity) * 2, &out, 2);
      }
    }
  }
}

void pack_groups(WeightFormat format, int64_t depth, const uint8_t* const* rows, uint8_t* panel) {
  const bool mins = format == WeightFormat::kQ4_1;
  const int block_bytes =
      format == WeightFormat::kQ8_0 ? kQ8_0Bytes : (mins ? kQ4_1Bytes : kQ4_0Bytes);
  // an absent column has scale 0 (and min 0): whatever its integers, it adds nothing
  const uint8_t zeros[kQ8_0Bytes] = {};
  for (int64_t g = 0; g < depth / kGroup; ++g) {
    const uint8_t* blocks[kPanelColumns];
    for (int c = 0; c < kPanelColumns; ++c) {
      blocks[c] = rows[c] == nullptr ? zeros : rows[c] + g * block_bytes;
    }
    uint8_t* group = panel + g * group_bytes(format);
    if (format == WeightFormat::kQ8_0) {
      pack_q8_group(blocks, group);
    } else {
      pack_q4_group(blocks, mins, group);
    }
  }
}

// Rounds to Q8_0 and packs.
void quantize_panel(int type, int64_t depth, const uint8_t* const* rows, float* row,
                    uint8_t* panel) {
  std::vector<uint8_t> blocks(static_cast<size_t>(kPanelColumns * depth / kGroup * kQ8_0Bytes));
  const uint8_t* packed[kPanelColumns] = {};
  for (int c = 0; c < kPanelColumns; ++c) {
    if (rows[c] == nullptr) continue;
    widen_row(type, depth, rows[c], row);
    uint8_t* to = blocks.data() + c * (depth / kGroup) * kQ8_0Bytes;
    packed[c] = to;
    for (int64_t g = 0; g < depth / kGroup; ++g, to += kQ8_0Bytes) {
      float largest = 0.0f;
      for (int k = 0; k < kGroup; ++k) largest = std::max(largest, std::fabs(row[g * kGroup + k]));
      const float scale = largest / 127.0f;
      const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
      const uint16_t half = float_to_half(scale);
      std::memcpy(to, &half, 2);
      for (int k = 0; k < kGroup; ++k) {
        to[2 + k] =
            static_cast<uint8_t>(static_cast<int8_t>(std::lround(row[g * kGroup + k] * inverse)));
      }
    }
  }
  pack_groups(WeightFormat::kQ8_0, depth, packed, panel);
}

}  // namespace

int64_t source_row_bytes(int type, int64_t depth) {
  switch (type) {
    case kGgmlF32:
      return depth * 4;
    case kGgmlF16:
    case kGgmlBf16:
      return depth * 2;
    case kGgmlQ8_0:
      return depth / kGroup * kQ8_0Bytes;
    case kGgmlQ4_0:
      return depth / kGroup * kQ4_0Bytes;
    case kGgmlQ4_1:
      return depth / kGroup * kQ4_1Bytes;
    default:
      return 0;
  }
}

bool can_pack(int type, WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return type == kGgmlQ4_0;
    case WeightFormat::kQ4_1:
      return type == kGgmlQ4_1;
    default:
      return source_row_bytes(type, kGroup) != 0;
  }
}

void pack_panel(WeightFormat format, int type, int64_t depth, const uint8_t* const* rows,
                uint8_t* panel) {
  const bool exact = !(format == WeightFormat::kQ8_0 && type != kGgmlQ8_0);
  if (group_bytes(format) != 0 && exact) return pack_groups(format, depth, rows, panel);
  std::vector<float> row(static_cast<size_t>(depth));
  if (!exact) return quantize_panel(type, depth, rows, row.data(), panel);
  for (int c = 0; c < kPanelColumns; ++c) {
    if (rows[c] == nullptr) {
      row.assign(row.size(), 0.0f);
    } else {
      widen_row(type, depth, rows[c], row.data());
    }
    if (format == WeightFormat::kF32) {
      auto* out = reinterpret_cast<float*>(panel);
      for (int64_t k = 0; k < depth; ++k) out[k * kPanelColumns + c] = row[k];
    } else {
      auto* out = reinterpret_cast<uint16_t*>(panel);
      for (int64_t k = 0; k < depth; ++k) {
        out[(k / 2 * kPanelColumns + c) * 2 + k % 2] = round_to_bf16(row[k]);
      }
    }
  }
}

}  // namespace evenflow
