// One step through the model: all spans packed through every product, attention over the KV pool,
// logits for the rows that want them.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model.h"

namespace evenflow {
namespace {

// Rows of a tile of row-by-row work. Fewer rows than this run on the calling thread alone: waking
// another costs more than they do.
constexpr int kNormRows = 8;
constexpr int kRopeRows = 4;
// Rows whose logits are made at a time: enough for the head's product to run at its full rate.
constexpr int kHeadRows = 128;

void grow(Buffer& buffer, size_t bytes) {
  if (buffer.size() < bytes) buffer = Buffer(bytes + bytes / 4);
}

}  // namespace

template <class Fn>
void Model::for_rows(int count, int rows_per_tile, const Fn& fn) {
  const int tiles = (count + rows_per_tile - 1) / rows_per_tile;
  pool_.run(tiles, [&](int tile, int) {
    fn(tile * rows_per_tile, std::min(count, (tile + 1) * rows_per_tile));
  });
}

void Model::reserve(const StepInput& step) {
  const ModelShape& s = shape_;
  const auto tokens = static_cast<size_t>(std::max(step.num_tokens, step.num_rows));
  const int q_size = s.num_heads * s.head_dim;
  const int widest = std::max({s.hidden, s.intermediate, q_size});
  grow(residual_, tokens * s.hidden * 4);
  grow(normed_, tokens * s.hidden * value_bytes());
  grow(qkv_, tokens * (q_size + 2 * s.num_kv_heads * s.head_dim) * 4);
  grow(q_, tokens * q_size * 4);
  grow(mixed_, tokens * q_size * value_bytes());
  grow(gated_, tokens * s.intermediate * value_bytes());
  grow(sums_, tokens * (widest / kGroup) * 4);
  grow(logits_, static_cast<size_t>(std::min(step.num_rows, kHeadRows)) * s.vocab * 4);
}

Rows Model::norm(const float* x, const std::vector<float>& weight, int count, bool sums,
                 const int32_t* row_ids) {
  const int width = shape_.hidden;
  NormArgs args{};
  args.x = x;
  args.weight = weight.data();
  args.out = normed_.bytes();
  args.x_sums = sums ? sums_.as<float>() : nullptr;
  args.row_ids = row_ids;
  args.x_stride = args.out_stride = width;
  args.x_sums_stride = width / kGroup;
  args.width = width;
  args.eps = shape_.norm_eps;
  args.out_f32 = full_precision_;
  for_rows(count, kNormRows, [&](int begin, int end) { kernels_.rms_norm(args, begin, end); });
  return {normed_.bytes(), width, args.x_sums, args.x_sums_stride, count};
}

Rows Model::rows_of(Buffer& values, int width, int count, bool sums) {
  Rows rows{values.bytes(), width, nullptr, width / kGroup, count};
  if (sums) {
    rows.sums = sums_.as<float>();
    for_rows(count, kNormRows, [&](int begin, int end) {
      kernels_.group_sums(values.bytes(), width, width, full_precision_, sums_.as<float>(),
                          rows.sums_stride, begin, end);
    });
  }
  return rows;
}

// What a branch reads: a norm of the residual stream, or the stream itself as its products take it.
Rows Model::input_of(const std::vector<float>& weight, int count, bool sums) {
  if (!weight.empty()) return norm(residual_.as<float>(), weight, count, sums, nullptr);
  const int width = shape_.hidden;
  if (full_precision_) return {residual_.bytes(), width, nullptr, width / kGroup, count};
  for_rows(count, kNormRows, [&](int begin, int end) {
    const int64_t at = int64_t{begin} * width;
    kernels_.to_bf16(residual_.as<float>() + at, normed_.as<uint16_t>() + at,
                     int64_t{end - begin} * width);
  });
  return rows_of(normed_, width, count, sums);
}

// Adds a branch's product to the residual stream: at once, or normed and scaled.
void Model::add_branch(const Product& product, const Rows& rows,
                       const std::vector<float>& post_norm, const Product* next) {
  const int width = shape_.hidden;
  if (post_norm.empty() && shape_.residual_scale == 1.0f) {
    return multiply(kernels_, pool_, scratch_, product, rows, Epilogue::kAddF32, nullptr,
                    residual_.bytes(), width, next);
  }
  grow(branch_, static_cast<size_t>(rows.count) * width * 4);
  multiply(kernels_, pool_, scratch_, product, rows, Epilogue::kStoreF32, nullptr, branch_.bytes(),
           width, next);
  NormArgs args{};
  args.x = branch_.as<float>();
  args.weight = post_norm.empty() ? nullptr : post_norm.data();
  args.out = residual_.bytes();
  args.x_stride = args.out_stride = args.width = width;
  args.eps = shape_.norm_eps;
  args.out_scale = shape_.residual_scale;
  for_rows(rows.count, kNormRows, [&](int begin, int end) { kernels_.add_norm(args, begin, end); });
}

void Model::embed(const StepInput& step) {
  EmbedArgs args{};
  args.token_ids = step.token_ids;
  args.table = embedding_.rows;
  args.out = residual_.as<float>();
  args.row_bytes = embedding_.row_bytes;
  args.out_stride = args.width = shape_.hidden;
  args.ggml_type = embedding_.ggml_type;
  args.scale = shape_.embedding_scale;
  for_rows(step.num_tokens, kNormRows,
           [&](int begin, int end) { kernels_.embed(args, begin, end); });
}

AttentionArgs Model::attention_args(const StepInput& step) {
  AttentionArgs args{};
  args.q = q_.bytes();
  args.out = mixed_.bytes();
  args.q_stride = args.out_stride = int64_t{shape_.num_heads} * shape_.head_dim;
  args.span_offsets = step.span_offsets;
  args.context_lens = step.context_lens;
  args.block_tables = step.block_tables;
  args.block_offsets = step.block_offsets;
  args.num_spans = step.num_spans;
  args.num_heads = shape_.num_heads;
  args.num_kv_heads = shape_.num_kv_heads;
  args.head_dim = shape_.head_dim;
  args.scale = shape_.attention_scale;
  if (args.scale == 0.0f) args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  args.soft_cap = shape_.attention_cap;
  args.kv_f32 = kv_f32_;
  args.out_f32 = full_precision_;
  return args;
}

// The spans are the same for every layer, so one plan serves all of them.
void Model::plan_attention(const StepInput& step) {
  const AttentionArgs args = attention_args(step);
  const int threads = pool_.num_threads();
  AttentionPlan plan =
      kernels_.plan_attention(args, threads, tasks_.data(), static_cast<int>(tasks_.size()));
  if (plan.num_tasks > static_cast<int>(tasks_.size())) {
    tasks_.resize(static_cast<size_t>(plan.num_tasks));
    plan = kernels_.plan_attention(args, threads, tasks_.data(), plan.num_tasks);
  }
  num_tasks_ = plan.num_tasks;
  if (arrivals_.size() < static_cast<size_t>(plan.num_groups)) {
    arrivals_.resize(static_cast<size_t>(plan.num_groups), 0);
  }
  grow(partials_, static_cast<size_t>(plan.num_partials) * 4);
}

void Model::project(Layer& layer, const StepInput& step) {
  const ModelShape& s = shape_;
  const int q_size = s.num_heads * s.head_dim, qkv_size = q_size + 2 * s.num_kv_heads * s.head_dim;
  const bool sums = std::any_of(layer.qkv.begin(), layer.qkv.end(),
                                [](const Product& part) { return part.needs_sums(); });
  const Rows in = input_of(layer.attn_norm, step.num_tokens, sums);
  int64_t column = 0;
  for (const Product& part : layer.qkv) {
    const float* bias = layer.qkv_bias.empty() ? nullptr : layer.qkv_bias.data() + column;
    multiply(kernels_, pool_, scratch_, part, in, Epilogue::kStoreF32, bias,
             qkv_.as<float>() + column, qkv_size, &layer.o);
    column += part.columns();
  }
  write_qkv(layer, step);
}

void Model::attend(Layer& layer, const StepInput& step) {
  const int q_size = shape_.num_heads * shape_.head_dim;
  AttentionArgs args = attention_args(step);
  args.window = layer.window;
  args.keys = layer.keys;
  args.values = layer.values;
  args.partials = partials_.as<float>();
  args.arrivals = arrivals_.data();
  args.tasks_end = tasks_.data() + num_tasks_;
  pool_.run(num_tasks_, [&](int task, int thread) {
    kernels_.attention(args, tasks_[task], scratch_.of[thread].bytes());
  });
  const Rows mixed = rows_of(mixed_, q_size, step.num_tokens, layer.o.needs_sums());
  add_branch(layer.o, mixed, layer.attn_post_norm, &layer.gate_up);
}

// Norms and turns the step's queries and keys, and writes keys and values into the pool.
void Model::write_qkv(Layer& layer, const StepInput& step) {
  const ModelShape& s = shape_;
  const int q_size = s.num_heads * s.head_dim, qkv_size = q_size + 2 * s.num_kv_heads * s.head_dim;
  RopeArgs rope{};
  rope.qkv = qkv_.as<float>();
  rope.positions = step.positions;
  rope.slots = step.slots;
  if (layer.rope >= 0) {
    const RopeTable& table = ropes_[layer.rope];
    rope.cos = table.cos.data();
    rope.sin = table.sin.data();
    rope.rotary_dim = table.rotary_dim;
  }
  rope.q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data();
  rope.k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data();
  rope.q_norm_width = static_cast<int32_t>(layer.q_norm.size());
  rope.k_norm_width = static_cast<int32_t>(layer.k_norm.size());
  rope.q = q_.bytes();
  rope.keys = layer.keys;
  rope.values = layer.values;
  rope.qkv_stride = qkv_size;
  rope.q_stride = q_size;
  rope.num_heads = s.num_heads;
  rope.num_kv_heads = s.num_kv_heads;
  rope.head_dim = s.head_dim;
  rope.norm_eps = s.norm_eps;
  rope.kv_f32 = kv_f32_;
  for_rows(step.num_tokens, kRopeRows,
           [&](int begin, int end) { kernels_.rope_write(rope, begin, end); });
}

void Model::mlp(Layer& layer, int num_tokens, const Product* next) {
  const Rows in = input_of(layer.mlp_norm, num_tokens, layer.gate_up.needs_sums());
  const Epilogue gate = shape_.gelu ? Epilogue::kGeluMul : Epilogue::kSiluMul;
  multiply(kernels_, pool_, scratch_, layer.gate_up, in, gate, nullptr, gated_.bytes(),
           shape_.intermediate, &layer.down);
  const Rows gated = rows_of(gated_, shape_.intermediate, num_tokens, layer.down.needs_sums());
  add_branch(layer.down, gated, layer.mlp_post_norm, next);
}

// After the last layer's keys and values are written, only rows that want logits are needed.
bool Model::keep_logit_rows(const StepInput& step) {
  if (!wanted_.select(step)) return false;
  const StepInput& kept = wanted_.step();
  const int64_t hidden_bytes = int64_t{shape_.hidden} * 4;
  const int64_t q_bytes = int64_t{shape_.num_heads} * shape_.head_dim * (kv_f32_ ? 4 : 2);
  // rows ascend, so none is overwritten before it has moved
  for (int row = 0; row < kept.num_tokens; ++row) {
    const int64_t from = step.logit_rows[row];
    std::memmove(residual_.bytes() + row * hidden_bytes, residual_.bytes() + from * hidden_bytes,
                 hidden_bytes);
    std::memmove(q_.bytes() + row * q_bytes, q_.bytes() + from * q_bytes, q_bytes);
  }
  plan_attention(kept);
  return true;
}

void Model::forward(const StepInput& step) {
  reserve(step);
  plan_attention(step);
  embed(step);
  num_rows_ = step.num_rows;
  const StepInput* rest = &step;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool last = i + 1 == layers_.size();
    project(layers_[i], step);
    if (last && step.num_rows == 0) return;
    if (last && keep_logit_rows(step)) rest = &wanted_.step();
    attend(layers_[i], *rest);
    mlp(layers_[i], rest->num_tokens, last ? &head_ : &layers_[i + 1].qkv[0]);
  }
  if (step.num_rows == 0) return;
  final_ =
      norm(residual_.as<float>(), final_norm_, step.num_rows, head_.needs_sums(), rest->logit_rows);
}

// Logits of rows [first_row, first_row + count) into out, [count, vocab].
void Model::head(int first_row, int count, float* out, const Product* next) {
  Rows rows = final_;
  rows.x = static_cast<const char*>(final_.x) + int64_t{first_row} * final_.stride * value_bytes();
  if (final_.sums != nullptr) rows.sums = final_.sums + int64_t{first_row} * final_.sums_stride;
  rows.count = count;
  const int64_t vocab = shape_.vocab;
  multiply(kernels_, pool_, scratch_, head_, rows, Epilogue::kStoreF32, nullptr, out, vocab, next);
  if (shape_.logit_scale == 1.0f && shape_.logit_cap == 0.0f) return;
  for_rows(count, 1, [&](int begin, int end) {
    kernels_.scale_and_cap(out + begin * vocab, (end - begin) * vocab, shape_.logit_scale,
                           shape_.logit_cap);
  });
}

void Model::sample(SamplingArgs args) {
  args.logits = logits_.as<float>();
  args.logits_stride = args.vocab = shape_.vocab;
  args.num_rows = num_rows_;
  for (int first = 0; first < num_rows_; first += kHeadRows) {
    const int count = std::min(kHeadRows, num_rows_ - first);
    const bool last = first + count == num_rows_;
    head(first, count, logits_.as<float>(), last && !layers_.empty() ? &layers_[0].qkv[0] : &head_);
    args.first_row = first;
    pool_.run(count, [&](int row, int thread) {
      kernels_.sample_row(args, first + row, scratch_.of[thread].bytes());
    });
  }
}

void Model::logits(float* out) {
  for (int first = 0; first < num_rows_; first += kHeadRows) {
    head(first, std::min(kHeadRows, num_rows_ - first), out + int64_t{first} * shape_.vocab,
         &head_);
  }
}

}  // namespace evenflow
