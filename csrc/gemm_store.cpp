// What happens to finished sums: stored, added to the residual stream, or gated.

#include "gemm.h"
#include "vec.h"
#include "vec_tanh.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

// act(gate) * up for the first `columns` of 32 columns; sums hold gate, then up.
template <bool kToF32, bool kGelu>
void gate_row(const float* sums, int columns, void* out) {
  alignas(64) float gated[kPanelColumns];
  alignas(64) uint16_t narrow[kPanelColumns];
  for (int c = 0; c < kPanelColumns; c += kW) {
    const F gate = load(sums + c);
    const F value = mul(kGelu ? vec_gelu(gate) : vec_silu(gate), load(sums + kPanelColumns + c));
    store(gated + c, value);
    if constexpr (!kToF32) store_bf16(narrow + c, value);
  }
  if constexpr (kToF32) {
    std::memcpy(out, gated, columns * sizeof(float));
  } else {
    std::memcpy(out, narrow, columns * sizeof(uint16_t));
  }
}

template <bool kGelu>
void store_gated(const GemmArgs& args, const TileSums& sums, int row, int rows, int panel) {
  const int first = panel / 2 * kPanelColumns;
  const int left = args.columns - first;
  const int columns = left < kPanelColumns ? left : kPanelColumns;
  for (int r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * args.out_stride + first;
    if (args.format == WeightFormat::kF32) {
      gate_row<true, kGelu>(sums.at[r], columns, static_cast<float*>(args.out) + at);
    } else {
      gate_row<false, kGelu>(sums.at[r], columns, static_cast<uint16_t*>(args.out) + at);
    }
  }
}

template <bool kAdd>
void store_plain(const GemmArgs& args, const TileSums& sums, int row, int rows, int first,
                 int columns) {
  for (int r = 0; r < rows; ++r) {
    float* out = static_cast<float*>(args.out) + (row + r) * args.out_stride + first;
    const float* from = sums.at[r];
    int c = 0;
    for (; c + kW <= columns; c += kW) {
      F value = load(from + c);
      if (args.bias != nullptr) value = add(value, load(args.bias + first + c));
      if constexpr (kAdd) value = add(load(out + c), value);
      store(out + c, value);
    }
    for (; c < columns; ++c) {
      float value = from[c];
      if (args.bias != nullptr) value = value + args.bias[first + c];
      out[c] = kAdd ? out[c] + value : value;
    }
  }
}

// Outputs of fewer rows lie in the nearest cache anyway.
constexpr int kMinRowsToFetch = 48;

}  // namespace

void fetch_tile(const GemmArgs& args, int row, int rows, int panel, int num_panels) {
  if (args.rows < kMinRowsToFetch) return;
  const bool gated = args.epilogue == Epilogue::kSiluMul || args.epilogue == Epilogue::kGeluMul;
  const int width = gated && args.format != WeightFormat::kF32 ? 2 : 4;
  const int64_t first = (gated ? panel / 2 : panel) * int64_t{kPanelColumns};
  const int64_t left = args.columns - first, most = (gated ? 1 : num_panels) * kPanelColumns;
  const int64_t bytes = (left < most ? left : most) * width;
  for (int r = 0; r < rows; ++r) {
    const char* out =
        static_cast<const char*>(args.out) + ((row + r) * args.out_stride + first) * width;
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(out + b, 1, 3);
  }
}

void store_tile(const GemmArgs& args, const TileSums& sums, int row, int rows, int panel,
                int num_panels) {
  if (args.epilogue == Epilogue::kSiluMul) return store_gated<false>(args, sums, row, rows, panel);
  if (args.epilogue == Epilogue::kGeluMul) return store_gated<true>(args, sums, row, rows, panel);
  const int first = panel * kPanelColumns;
  const int left = args.columns - first;
  const int columns = left < num_panels * kPanelColumns ? left : num_panels * kPanelColumns;
  if (args.epilogue == Epilogue::kAddF32) {
    store_plain<true>(args, sums, row, rows, first, columns);
  } else {
    store_plain<false>(args, sums, row, rows, first, columns);
  }
}

}  // namespace evenflow::EVENFLOW_ISA
