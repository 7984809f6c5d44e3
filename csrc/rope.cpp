// Splits a QKV row, norms and rotates queries and keys, writes queries out and keys and values into
// the pool. Products and sums are rounded one by one, as in the reference.
#include "elementwise.h"
#include "elementwise_row.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

inline constexpr int kMaxHeadDim = 256;

// Rotates the first rotary_dim values: j turns with j + rotary_dim / 2 (rotate-half order).
EVENFLOW_INLINE void rotate(float* x, const float* cos, const float* sin, int rotary_dim) {
  const int half = rotary_dim / 2;
  int j = 0;
  for (; j + kW <= half; j += kW) {
    const F a = load(x + j), b = load(x + half + j), c = load(cos + j), s = load(sin + j);
    store(x + j, sub(mul(a, c), mul(b, s)));
    store(x + half + j, add(mul(b, c), mul(a, s)));
  }
  for (; j < half; ++j) {
    const float a = x[j], b = x[half + j];
    x[j] = a * cos[j] - b * sin[j];
    x[half + j] = b * cos[j] + a * sin[j];
  }
}

// The norm of a row's queries, or of its keys: of each head, or of all heads together.
struct HeadNorm {
  const float* weight;
  int dim, width;
  float eps, whole;

  EVENFLOW_INLINE HeadNorm(const float* w, int d, int n, float e, const float* x) {
    weight = w, dim = d, width = n, eps = e;
    whole = w != nullptr && n > d ? inverse_rms(x, n, e) : 0.0f;
  }
  EVENFLOW_INLINE void apply(const float* x, int h, float* head) const {
    if (width > dim) return scale_row(x, whole, weight + h * dim, dim, head);
    scale_row(x, inverse_rms(x, dim, eps), weight, dim, head);
  }
};

// One head as the kernels want it, in `head`: normed if a weight is given, then rotated.
EVENFLOW_INLINE void prepare_head(const RopeArgs& args, const float* x, const HeadNorm& norm, int h,
                                  const float* cos, const float* sin, float* head) {
  if (norm.weight != nullptr) {
    norm.apply(x, h, head);
  } else {
    std::memcpy(head, x, size_t(args.head_dim) * sizeof(float));
  }
  if (cos != nullptr) rotate(head, cos, sin, args.rotary_dim);
}

// One key and one value into the pool: keys [dim / 2][64][2], values [32][dim][2].
template <class T>
EVENFLOW_INLINE void write_slot(const RopeArgs& args, int kv_head, int64_t slot, const T* key,
                                const T* value) {
  const int dim = args.head_dim;
  const int64_t block = slot / kKeysPerBlock, at = slot % kKeysPerBlock;
  const int64_t base = (block * args.num_kv_heads + kv_head) * kKeysPerBlock * dim;
  T* keys = static_cast<T*>(args.keys) + base + at * 2;
  for (int pair = 0; pair < dim / 2; ++pair) {
    std::memcpy(keys + pair * 2 * kKeysPerBlock, key + 2 * pair, 2 * sizeof(T));
  }
  T* values = static_cast<T*>(args.values) + base + at / 2 * 2 * dim + at % 2;
  for (int d = 0; d < dim; ++d) values[2 * d] = value[d];
}

// Asks for the lines that a slot's keys and values are written to: 32 bits of a key are apart by a
// row of 64 keys, so a token touches a hundred lines or more, none of which the cache holds.
template <class T>
EVENFLOW_INLINE void fetch_slot(const RopeArgs& args, int64_t slot) {
  const int dim = args.head_dim;
  const int64_t block = slot / kKeysPerBlock, at = slot % kKeysPerBlock;
  for (int h = 0; h < args.num_kv_heads; ++h) {
    const int64_t base = (block * args.num_kv_heads + h) * kKeysPerBlock * dim;
    const T* keys = static_cast<const T*>(args.keys) + base + at * 2;
    for (int pair = 0; pair < dim / 2; ++pair) {
      __builtin_prefetch(keys + pair * 2 * kKeysPerBlock, 1, 3);
    }
    const T* values = static_cast<const T*>(args.values) + base + at / 2 * 2 * dim;
    constexpr int kLine = 64 / sizeof(T);
    for (int i = 0; i < 2 * dim; i += kLine) __builtin_prefetch(values + i, 1, 3);
  }
}

EVENFLOW_INLINE void fetch_slot_of(const RopeArgs& args, int token) {
  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  if (args.kv_f32) {
    fetch_slot<float>(args, slot);
  } else {
    fetch_slot<uint16_t>(args, slot);
  }
}

}  // namespace

void rope_write(const RopeArgs& args, int begin, int end) {
  const int dim = args.head_dim, half = args.rotary_dim / 2;
  alignas(64) float head[kMaxHeadDim];
  alignas(64) uint16_t rounded_key[kMaxHeadDim], rounded_value[kMaxHeadDim];
  for (int token = begin; token < end; ++token) {
    fetch_slot_of(args, token);
    const float* x = args.qkv + token * args.qkv_stride;
    const int64_t turn = int64_t{args.positions[token]} * half;
    const float* cos = args.cos != nullptr ? args.cos + turn : nullptr;
    const float* sin = args.cos != nullptr ? args.sin + turn : nullptr;
    const HeadNorm q_norm(args.q_norm, dim, args.q_norm_width, args.norm_eps, x);
    for (int h = 0; h < args.num_heads; ++h, x += dim) {
      prepare_head(args, x, q_norm, h, cos, sin, head);
      const int64_t at = token * args.q_stride + int64_t{h} * dim;
      if (args.kv_f32) {
        std::memcpy(static_cast<float*>(args.q) + at, head, size_t(dim) * sizeof(float));
      } else {
        round_row(head, static_cast<uint16_t*>(args.q) + at, dim);
      }
    }
    const int64_t slot = args.slots[token];
    if (slot < 0) continue;
    const HeadNorm k_norm(args.k_norm, dim, args.k_norm_width, args.norm_eps, x);
    for (int h = 0; h < args.num_kv_heads; ++h, x += dim) {
      prepare_head(args, x, k_norm, h, cos, sin, head);
      const float* value = x + int64_t{args.num_kv_heads} * dim;
      if (args.kv_f32) {
        write_slot(args, h, slot, head, value);
      } else {
        round_row(head, rounded_key, dim);
        round_row(value, rounded_value, dim);
        write_slot(args, h, slot, rounded_key, rounded_value);
      }
    }
  }
}

}  // namespace evenflow::EVENFLOW_ISA
