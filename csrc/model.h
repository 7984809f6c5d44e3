// A decoder-only transformer on this machine's cores: weights, KV pool, and one step at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "buffer.h"
#include "kernels.h"
#include "product.h"
#include "step.h"
#include "threads.h"

namespace evenflow {

struct ModelShape {
  int32_t num_layers, hidden, num_heads, num_kv_heads, head_dim, intermediate, vocab;
  float norm_eps;
  // What sets a family apart from Llama, as in evenflow/model/spec.py.
  float embedding_scale = 1.0f, residual_scale = 1.0f, logit_scale = 1.0f;
  float attention_scale = 0.0f;  // 0: 1 / sqrt(head_dim)
  float attention_cap = 0.0f, logit_cap = 0.0f;
  bool gelu = false;
};

struct Layer {
  std::vector<Product> qkv;  // one, or one for each run of parts that share a format
  Product o, gate_up, down;
  // Empty where the family has none. QK norms are [head_dim], or as wide as all heads together.
  std::vector<float> attn_norm, mlp_norm, qkv_bias, q_norm, k_norm, attn_post_norm, mlp_post_norm;
  int32_t window = 0;  // positions that a query sees, its own included; 0: all
  int32_t rope = 0;    // which of the model's tables turns queries and keys; -1: none
  uint8_t *keys = nullptr, *values = nullptr;  // its part of the pool, as the kernels see it
};

// Cosines and sines, [max positions, rotary_dim / 2] each.
struct RopeTable {
  std::vector<float> cos, sin;
  int32_t rotary_dim;
};

class Model {
 public:
  // num_blocks: blocks of 64 slots. full_precision: activations, and so the KV pool, are float32.
  Model(const ModelShape& shape, const Kernels& kernels, int num_threads, int num_blocks,
        bool full_precision, bool kv_f32);

  const ModelShape& shape() const { return shape_; }
  const Kernels& kernels() const { return kernels_; }
  ThreadPool& pool() { return pool_; }
  std::vector<Layer>& layers() { return layers_; }
  int num_blocks() const { return num_blocks_; }
  bool full_precision() const { return full_precision_; }

  void set_embedding(WeightSource source) { embedding_ = source; }
  void set_head(Product head) { head_ = std::move(head); }
  void set_final_norm(std::vector<float> weight) { final_norm_ = std::move(weight); }
  // Adds a table; layers name it by its number. All tables have as many positions.
  void add_rope(std::vector<float> cos, std::vector<float> sin, int rotary_dim);
  // Sets one of the shape's numbers beyond the sizes, by name.
  void set_number(const std::string& name, float value);
  int64_t max_positions() const { return max_positions_; }

  // Throws std::invalid_argument naming the first thing whose shape does not fit the model's.
  void check_complete() const;
  // Packs all weights on all threads.
  void pack();
  // Writes NaN into every slot of the KV pool: what leaks then shows.
  void poison_kv();

  // Computes a step up to the rows that the head reads: writes keys and values.
  void forward(const StepInput& step);
  // Draws a token per row; args.logits and its shape are filled in here. Logits are made for some
  // rows at a time: all those of a long prompt would take hundreds of megabytes.
  void sample(SamplingArgs args);

  // The last step's logits, made once more: the same bits. out: [num_rows, vocab].
  void logits(float* out);
  int num_rows() const { return num_rows_; }
  size_t weight_bytes() const;

 private:
  size_t value_bytes() const { return full_precision_ ? 4 : 2; }
  void reserve(const StepInput& step);
  void embed(const StepInput& step);
  Rows norm(const float* x, const std::vector<float>& weight, int count, bool sums,
            const int32_t* row_ids);
  Rows input_of(const std::vector<float>& weight, int count, bool sums);
  void add_branch(const Product& product, const Rows& rows, const std::vector<float>& post_norm,
                  const Product* next);
  void write_qkv(Layer& layer, const StepInput& step);
  Rows rows_of(Buffer& values, int width, int count, bool sums);
  AttentionArgs attention_args(const StepInput& step);
  // Norm, QKV, RoPE and the write into the pool; then attention and O.
  void project(Layer& layer, const StepInput& step);
  void attend(Layer& layer, const StepInput& step);
  bool keep_logit_rows(const StepInput& step);
  void mlp(Layer& layer, int num_tokens, const Product* next);
  void head(int first_row, int count, float* out, const Product* next);
  void plan_attention(const StepInput& step);
  template <class Fn>
  void for_rows(int count, int rows_per_tile, const Fn& fn);

  ModelShape shape_;
  const Kernels& kernels_;
  ThreadPool pool_;
  int num_blocks_;
  bool full_precision_, kv_f32_;
  // All packed weights, and all keys and values: two runs of memory, so that huge pages cover them.
  Buffer weights_, kv_;
  std::vector<Layer> layers_;
  WeightSource embedding_{};
  Product head_;
  std::vector<float> final_norm_;
  std::vector<RopeTable> ropes_;
  int64_t max_positions_ = 0;

  // Grown to the largest step seen; content lives for one step.
  Buffer residual_, branch_, normed_, qkv_, q_, mixed_, gated_, sums_, logits_, partials_;
  std::vector<int32_t> arrivals_;
  std::vector<AttentionTask> tasks_;
  WantedRows wanted_;
  ThreadScratch scratch_;
  Rows final_{};  // what the head reads, [num_rows_], until the next step
  int num_rows_ = 0, num_tasks_ = 0;
};

}  // namespace evenflow
