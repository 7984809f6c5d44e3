// How weights lie in memory for the kernels: the same on every instruction set.
//
// A weight of N columns (outputs) and depth K is cut into panels of 32 columns, padded with zeros.
//   f32    panel [K][32]
//   bf16   panel [K / 2][32][2]
//   Q8_0   per group of 32 along K: scales f16 [32], then int8 [16 pairs][4][2 halves][4][2]: a
//          pair of column 16 h + 4 i + j lies at [i][h][j], where unpacking bytes finds it
//   Q4_0   per group: scales f16 [32], then nibbles as below
//   Q4_1   per group: scales f16 [32], mins f16 [32], then nibbles
// Nibbles of a group: uint16 [4 words][2 halves of 16 columns][16][2]; word j of column c and
// parity e holds, from its low bits up, the weights at k = 8 j + e, + 2, + 4, + 6. Every panel
// starts on a 64-byte line and is read from front to back.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace evenflow {

inline constexpr int kHalfColumns = kPanelColumns / 2;

// Where a group's int8 weight at k and column c lies, in bytes.
static inline constexpr int q8_at(int k, int c) {
  const int half = c / kHalfColumns, in_half = c % kHalfColumns;
  return k / 2 * 2 * kPanelColumns + in_half / 4 * 16 + half * 8 + in_half % 4 * 2 + k % 2;
}

// Where a group's nibbles of word j, column c and parity e lie, in uint16.
static inline constexpr int q4_at(int word, int c, int parity) {
  return ((word * 2 + c / kHalfColumns) * kHalfColumns + c % kHalfColumns) * 2 + parity;
}

static inline constexpr int64_t group_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return 2 * kPanelColumns + kGroup * kPanelColumns;
    case WeightFormat::kQ4_0:
      return 2 * kPanelColumns + kGroup * kPanelColumns / 2;
    case WeightFormat::kQ4_1:
      return 4 * kPanelColumns + kGroup * kPanelColumns / 2;
    default:
      return 0;
  }
}

static inline constexpr int64_t panel_bytes(WeightFormat format, int64_t depth) {
  if (format == WeightFormat::kF32) return depth * kPanelColumns * 4;
  if (format == WeightFormat::kBf16) return depth * kPanelColumns * 2;
  return depth / kGroup * group_bytes(format);
}

static inline constexpr int64_t num_panels(int64_t columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns;
}

// Bytes of a row of `depth` weights as a GGUF file stores it.
int64_t source_row_bytes(int ggml_type, int64_t depth);

// True if rows of this GGUF type can be packed into the format.
bool can_pack(int ggml_type, WeightFormat format);

// Packs one panel from up to 32 source rows (a row of the source is a column of the product).
// rows[i] points at the bytes of column i, nullptr for a column of zeros. Values keep their bits
// where source and format agree. Otherwise they are multiplied out in float32 and then rounded to
// nearest even (bf16), or to Q8_0 as ggml does: scale = the largest magnitude of the group / 127,
// in half precision; integers = values / (scale before its rounding), halves away from zero.
void pack_panel(WeightFormat format, int ggml_type, int64_t depth, const uint8_t* const* rows,
                uint8_t* panel);

}  // namespace evenflow
