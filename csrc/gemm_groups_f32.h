// Weights in groups of 32 without bf16 products: a panel is expanded to float32, exactly.
#pragma once

#include "gemm.h"
#include "gemm_tile.h"
#include "half.h"
#include "pack.h"
#include "vec.h"

namespace evenflow::EVENFLOW_ISA {

// Bytes of scales (and mins) before the integers of a group.
template <WeightFormat kFormat>
constexpr int kHeader = kFormat == WeightFormat::kQ4_1 ? 4 * kPanelColumns : 2 * kPanelColumns;

// A panel's integers, scales and mins as float32, in scratch.
struct Expanded {
  float* weights;  // [K][32]
  float* scales;   // [K / 32][32]
  float* mins;     // [K / 32][32]
  float* rows;     // [kTileRows][K] widened activations
};

Expanded lay_out(void* scratch, int depth) {
  auto* at = static_cast<float*>(scratch);
  const int64_t weights = int64_t{depth} * kPanelColumns;
  const int64_t headers = int64_t{depth} / kGroup * kPanelColumns;
  return {at, at + weights, at + weights + headers, at + weights + 2 * headers};
}

template <WeightFormat kFormat>
void expand_group(const uint8_t* group, int g, const Expanded& out) {
  float* to = out.weights + int64_t{g} * kGroup * kPanelColumns;
  for (int c = 0; c < kPanelColumns; ++c) {
    uint16_t half;
    std::memcpy(&half, group + 2 * c, 2);
    out.scales[g * kPanelColumns + c] = half_to_float(half);
    if constexpr (kFormat == WeightFormat::kQ4_1) {
      std::memcpy(&half, group + 2 * (kPanelColumns + c), 2);
      out.mins[g * kPanelColumns + c] = half_to_float(half);
    }
  }
  const uint8_t* data = group + kHeader<kFormat>;
  if constexpr (kFormat == WeightFormat::kQ8_0) {
    for (int k = 0; k < kGroup; ++k) {
      for (int c = 0; c < kPanelColumns; ++c) {
        const auto q = static_cast<int8_t>(data[q8_at(k, c)]);
        to[k * kPanelColumns + c] = static_cast<float>(q);
      }
    }
  } else {
    const int zero = kFormat == WeightFormat::kQ4_0 ? 8 : 0;
    for (int k = 0; k < kGroup; ++k) {
      const int word = k / 8, shift = k % 8 / 2 * 4;
      for (int c = 0; c < kPanelColumns; ++c) {
        uint16_t nibbles;
        std::memcpy(&nibbles, data + q4_at(word, c, k % 2) * 2, 2);
        to[k * kPanelColumns + c] = static_cast<float>((nibbles >> shift & 15) - zero);
      }
    }
  }
}

template <int R, WeightFormat kFormat>
void tile_groups(const GemmArgs& args, int row, const float* x, const Expanded& from, int column,
                 TileSums& sums) {
  const int groups = args.depth / kGroup;
  for (int first = 0; first < kPanelColumns; first += 2 * kW) {
    F total[R][2];
    for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = set1(0.0f);
    for (int g = 0; g < groups; ++g) {
      F acc[R][2];
      for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = set1(0.0f);
      for (int k = g * kGroup; k < (g + 1) * kGroup; ++k) {
        const float* w = from.weights + int64_t{k} * kPanelColumns + first;
        const F w0 = load(w), w1 = load(w + kW);
        for (int r = 0; r < R; ++r) {
          const F value = set1(x[int64_t{r} * args.depth + k]);
          acc[r][0] = fma(w0, value, acc[r][0]);
          acc[r][1] = fma(w1, value, acc[r][1]);
        }
      }
      for (int v = 0; v < 2; ++v) {
        const F scale = load(from.scales + g * kPanelColumns + first + v * kW);
        for (int r = 0; r < R; ++r) total[r][v] = fma(scale, acc[r][v], total[r][v]);
        if constexpr (kFormat == WeightFormat::kQ4_1) {
          const F min = load(from.mins + g * kPanelColumns + first + v * kW);
          for (int r = 0; r < R; ++r) {
            const F sum = set1(args.x_sums[(row + r) * args.x_sums_stride + g]);
            total[r][v] = fma(min, sum, total[r][v]);
          }
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      store(&sums.at[r][column + first], total[r][0]);
      store(&sums.at[r][column + first + kW], total[r][1]);
    }
  }
}

// Products of one or two panels with any number of rows: the panels are expanded once.
template <WeightFormat kFormat>
class GroupTiles {
 public:
  // sums and totals of a tile must fit the registers
  static constexpr int kRows = kNumVectorRegisters >= 32 ? kTileRows : 3;

  GroupTiles(const GemmArgs& args, const PanelRange& range, int /*panel_end*/, void* scratch)
      : args_(args), num_panels_(range.num_panels) {
    const int64_t bytes = panel_bytes(kFormat, args.depth);
    const auto* panel = static_cast<const uint8_t*>(args.weights) + range.panel * bytes;
    const size_t half = gemm_scratch_bytes(args.depth) / 2;
    for (int p = 0; p < num_panels_; ++p) {
      from_[p] = lay_out(static_cast<char*>(scratch) + p * half, args.depth);
      for (int g = 0; g < args.depth / kGroup; ++g) {
        expand_group<kFormat>(panel + p * bytes + g * group_bytes(kFormat), g, from_[p]);
      }
    }
  }

  template <int R>
  void run(int row, TileSums& sums) {
    const auto* x = static_cast<const uint16_t*>(args_.x) + row * args_.x_stride;
    widen_rows(x, args_.x_stride, R, args_.depth, from_[0].rows);
    for (int p = 0; p < num_panels_; ++p) {
      tile_groups<R, kFormat>(args_, row, from_[0].rows, from_[p], p * kPanelColumns, sums);
    }
  }

 private:
  const GemmArgs& args_;
  int num_panels_;
  Expanded from_[2];
};

}  // namespace evenflow::EVENFLOW_ISA
