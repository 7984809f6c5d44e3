// The table of functions that one instruction set provides, and the argument blocks they take.
//
// Every kernel source is compiled once per instruction set, in its own namespace, and exports its
// functions through this table only. A kernel reads its argument block and nothing else: no global
// state, no allocation, no threads. Work is cut into tiles by the caller; any thread may compute
// any tile, and the bits of a tile's output never depend on which thread does or what other tiles
// exist.
#pragma once

#include <cstddef>
#include <cstdint>

namespace evenflow {

// Stored weights. The last three are GGUF's formats, kept exactly, in groups of 32 along K.
enum class WeightFormat : int32_t { kF32 = 0, kBf16 = 1, kQ8_0 = 2, kQ4_0 = 3, kQ4_1 = 4 };

// Columns that one packed panel holds; every format, every instruction set.
inline constexpr int kPanelColumns = 32;
inline constexpr int kGroup = 32;            // weights along K that share a scale
inline constexpr int kKeysPerBlock = 64;     // slots of a KV block as the kernels see it
inline constexpr int kKeysPerSection = 512;  // keys whose partial results merge as one part

// What happens to a finished tile of a product.
enum class Epilogue : int32_t {
  kStoreF32 = 0,  // out[row, col] = sum (+ bias[col])
  kAddF32 = 1,    // out[row, col] += sum (+ bias[col]): the residual stream
  kSiluMul = 2,   // panels 2i and 2i + 1 hold the same 32 columns of gate and of up;
                  // out[row, 32 i + c] = silu(gate) * up, rounded to bf16 (float32 for kF32)
  kGeluMul = 3,   // the same with GELU in its tanh form
};

// True for the epilogues that take pairs of panels.
inline constexpr bool is_gated(Epilogue e) {
  return e == Epilogue::kSiluMul || e == Epilogue::kGeluMul;
}

// out[rows, columns] = x[rows, depth] times the transpose of weights[columns, depth].
struct GemmArgs {
  const void* x;          // [rows, depth] bf16, or float32 when weights are kF32
  const void* weights;    // packed panels, see pack.h
  const float* bias;      // [columns] or nullptr
  const float* x_sums;    // [rows, depth / 32] sums of x over each group (kQ4_1), else nullptr
  void* out;              // see Epilogue
  int64_t x_stride;       // elements between rows of x
  int64_t out_stride;     // elements between rows of out
  int64_t x_sums_stride;  // elements between rows of x_sums
  int32_t rows, depth, columns;  // columns of out, so half of the panels' for a gate
  WeightFormat format;
  Epilogue epilogue;
  const void* next_weights;  // what this thread will read next, to be prefetched; or nullptr
  int64_t next_bytes;
};

struct AttentionTask;

// Paged attention of one layer over a packed step. Key and value pools of the layer:
//   keys    [blocks][kv_heads][head_dim / 2][64 keys][2]
//   values  [blocks][kv_heads][64 keys / 2][head_dim][2]
// in bf16, or in float32 when kv_f32. Never-written slots may hold NaN.
struct AttentionArgs {
  const void* q;  // [tokens, heads, head_dim], RoPE applied; bf16, or float32 when kv_f32
  const void* keys;
  const void* values;
  void* out;                     // [tokens, heads, head_dim]; bf16, or float32 when out_f32
  int64_t q_stride, out_stride;  // elements between tokens
  const int32_t* span_offsets;   // [spans + 1]
  const int32_t* context_lens;   // [spans]
  const int32_t* block_tables;   // blocks of 64 slots
  const int32_t* block_offsets;  // [spans]: where a span's blocks begin
  int32_t num_spans, num_heads, num_kv_heads, head_dim;
  float scale;  // multiplied onto the scores
  bool kv_f32, out_f32;
  int32_t window;     // keys that a row sees, its own included; 0: all
  float soft_cap;     // scaled scores become cap * tanh(score / cap); 0: they stay
  float* partials;    // [plan.num_partials], 64-byte aligned; where split tasks leave their parts
  int32_t* arrivals;  // [plan.num_groups], all zero before the first call and after the last
  // End of the array that the task lies in: what follows it is fetched ahead. nullptr: nothing is.
  const AttentionTask* tasks_end;
};

// One piece of attention: consecutive tokens of one span, all query heads of one KV head, and a run
// of sections of keys. Tasks that share a group see the same rows; the last one to end merges.
struct AttentionTask {
  int32_t span, kv_head, first_token, num_tokens;  // first_token counts from the span's start
  int32_t first_section, num_sections;
  int32_t group, group_tasks;  // group is -1 where one task sees all sections
  int64_t partials;            // offset of the group's parts
};

// What a step needs: tasks, groups of split tasks, floats for their parts.
struct AttentionPlan {
  int32_t num_tasks, num_groups;
  int64_t num_partials;
};

// Norm: out[row] = x[row] / sqrt(mean(x[row]^2) + eps) * weight; float32 in, bf16 or float32 out.
struct NormArgs {
  const float* x;          // [rows, width]
  const float* weight;     // [width]
  void* out;               // [rows, width]
  float* x_sums;           // [rows, width / 32] sums over groups of the rounded outputs, or nullptr
  const int32_t* row_ids;  // x row of each output row, or nullptr for the same row
  int64_t x_stride, out_stride, x_sums_stride;
  int32_t width;
  float eps;
  bool out_f32;
  float out_scale;  // add_norm only: multiplies what is added
};

// Splits a QKV row, norms and rotates q and k (rotate-half), writes q, and k and v into the pool.
struct RopeArgs {
  const float* qkv;          // [tokens, (heads + 2 kv_heads) * head_dim]
  const int32_t* positions;  // [tokens]
  const int64_t* slots;      // [tokens], block * 64 + offset; -1 writes no key and no value
  const float* cos;          // [max positions, rotary_dim / 2]; nullptr: nothing turns
  const float* sin;          // [max positions, rotary_dim / 2]
  const float* q_norm;       // [q_norm_width] or nullptr (QK norm)
  const float* k_norm;       // [k_norm_width] or nullptr
  void* q;                   // [tokens, heads, head_dim] bf16, or float32 when kv_f32
  void* keys;                // pools as in AttentionArgs
  void* values;
  int64_t qkv_stride, q_stride;
  int32_t num_heads, num_kv_heads, head_dim, rotary_dim;
  int32_t q_norm_width, k_norm_width;  // head_dim: each head by itself; else all heads together
  float norm_eps;
  bool kv_f32;
};

// Embedding rows as float32, from the plain (unpacked) table.
struct EmbedArgs {
  const int32_t* token_ids;  // [tokens]
  const void* table;         // [vocab] rows of row_bytes; float32, bf16, Q8_0, Q4_0 or Q4_1 blocks
  float* out;                // [tokens, width]
  int64_t row_bytes, out_stride;
  int32_t width;
  int32_t ggml_type;  // GGUF type number: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 30 BF16
  float scale;        // multiplies every value
};

// Draws one token per row. Optional arrays are nullptr when nobody asks for them.
struct SamplingArgs {
  const float* logits;  // [rows from first_row on, vocab]; never changed
  int64_t logits_stride;
  int32_t num_rows, vocab;
  int32_t first_row;          // of those whose logits are there
  const float* temperatures;  // [rows]; 0 is greedy
  const int32_t* top_ks;      // [rows]; 0 keeps all
  const float* top_ps;        // [rows]
  const float* min_ps;        // [rows]
  const uint64_t* seeds;      // [rows]
  const int64_t* positions;   // [rows]
  const int32_t* banned_ids;  // row r owns banned_ids[banned_offsets[r] : banned_offsets[r + 1]]
  const int32_t* banned_offsets;
  const float* repetition_penalties;   // [rows], 1 is neutral, over prompt and output
  const float* presence_penalties;     // [rows], 0 is neutral, over output
  const float* frequency_penalties;    // [rows], 0 is neutral, over output
  const int32_t* history_ids;          // prompt then output tokens of every row
  const int32_t* history_offsets;      // [rows + 1]
  const int32_t* history_prompt_lens;  // [rows]
  const int32_t* bias_ids;             // logit bias, added before everything else
  const float* bias_values;
  const int32_t* bias_offsets;       // [rows + 1]
  const uint32_t* allowed_masks;     // [masks, mask_words] bit 1 = may be drawn; none beyond
  int32_t mask_words;                // 32 ids each
  const int32_t* allowed_mask_rows;  // [rows], -1 for no mask
  const int32_t* targets;            // [rows], a token to report on and not to draw; -1 draws
  const int32_t* num_logprobs;       // [rows] top entries wanted, -1 none; stride max_logprobs
  int32_t max_logprobs;
  int32_t* tokens;        // [rows] out; -1 when the row holds NaN, -2 when nothing may be drawn
  float* token_logprobs;  // [rows] out, where num_logprobs >= 0
  int32_t* token_ranks;   // [rows] out, 1 is the largest logit
  int32_t* top_ids;       // [rows, max_logprobs] out
  float* top_logprobs;    // [rows, max_logprobs] out
};

struct Kernels {
  const char* name;  // "avx512-bf16", "avx512", "avx2", "portable"

  // --- gemm (csrc/gemm*.cpp) ---
  // Rows [row_begin, row_end) by panels [panel_begin, panel_end) of one product. scratch is the
  // calling thread's own, gemm_scratch_bytes long, 64-byte aligned. Panels come in whole pairs
  // (both ends even) for a gate; else the last pair of a range may be half.
  void (*gemm)(const GemmArgs& args, int row_begin, int row_end, int panel_begin, int panel_end,
               void* scratch);
  size_t (*gemm_scratch_bytes)(int depth);

  // --- attention (csrc/attention*.cpp) ---
  // Cuts a step into tasks, longest first is not needed; writes at most max_tasks, returns how many
  // there are (call with max_tasks = 0 to count). The cut decides speed, never bits.
  // The plan depends on the spans alone, so one serves all layers.
  AttentionPlan (*plan_attention)(const AttentionArgs& args, int num_threads, AttentionTask* tasks,
                                  int max_tasks);
  void (*attention)(const AttentionArgs& args, const AttentionTask& task, void* scratch);
  size_t (*attention_scratch_bytes)(int num_heads, int num_kv_heads, int head_dim);

  // --- elementwise (csrc/elementwise*.cpp); rows [begin, end) ---
  void (*rms_norm)(const NormArgs& args, int begin, int end);
  // out += x * out_scale, x normed first if a weight is given; out is float32, no sums, no row ids.
  void (*add_norm)(const NormArgs& args, int begin, int end);
  // x becomes x * scale, and then cap * tanh(x / cap) unless cap is 0.
  void (*scale_and_cap)(float* x, int64_t count, float scale, float cap);
  void (*rope_write)(const RopeArgs& args, int begin, int end);
  void (*embed)(const EmbedArgs& args, int begin, int end);
  // float32 [rows, width] to bf16, round to nearest even.
  void (*to_bf16)(const float* x, uint16_t* out, int64_t count);
  // sums[r, g] of x over groups of 32, for rows [begin, end); x is bf16, or float32 if x_f32.
  void (*group_sums)(const void* x, int64_t x_stride, int width, bool x_f32, float* sums,
                     int64_t sums_stride, int begin, int end);

  // --- sampling (csrc/sampling*.cpp) ---
  void (*sample_row)(const SamplingArgs& args, int row, void* scratch);
  size_t (*sampling_scratch_bytes)(int vocab);

  // --- ceilings (csrc/ceilings.cpp), for the benchmarks ---
  // Operations done (2 per multiply-add) by `iterations` rounds of register-only products.
  double (*peak_products)(int64_t iterations);
};

const Kernels& kernels_portable();
#if defined(__x86_64__)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512bf16();
#endif

}  // namespace evenflow
