// Setting a model up: memory, weights, tables.

#include "model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "pack.h"

namespace evenflow {

Model::Model(const ModelShape& shape, const Kernels& kernels, int num_threads, int num_blocks,
             bool full_precision, bool kv_f32)
    : shape_(shape),
      kernels_(kernels),
      pool_(num_threads),
      num_blocks_(num_blocks),
      full_precision_(full_precision),
      kv_f32_(kv_f32 || full_precision),
      layers_(static_cast<size_t>(shape.num_layers)) {
  const size_t values =
      static_cast<size_t>(num_blocks) * shape.num_kv_heads * kKeysPerBlock * shape.head_dim;
  const size_t bytes = values * (kv_f32_ ? 4 : 2);
  kv_ = Buffer(2 * bytes * layers_.size());
  uint8_t* at = kv_.bytes();
  for (Layer& layer : layers_) {
    layer.keys = at;
    layer.values = at + bytes;
    at += 2 * bytes;
  }
}

void Model::add_rope(std::vector<float> cos, std::vector<float> sin, int rotary_dim) {
  if (rotary_dim < 2 || rotary_dim % 2 != 0 || rotary_dim > shape_.head_dim) {
    throw std::invalid_argument(std::to_string(rotary_dim) + " of " +
                                std::to_string(shape_.head_dim) + " dimensions cannot turn");
  }
  const int64_t positions = static_cast<int64_t>(cos.size()) / (rotary_dim / 2);
  if (!ropes_.empty() && positions != max_positions_) {
    throw std::invalid_argument("RoPE tables differ in positions");
  }
  max_positions_ = positions;
  ropes_.push_back({std::move(cos), std::move(sin), rotary_dim});
}

void Model::set_number(const std::string& name, float value) {
  ModelShape& s = shape_;
  const std::pair<const char*, float*> numbers[] = {
      {"embedding_scale", &s.embedding_scale}, {"residual_scale", &s.residual_scale},
      {"logit_scale", &s.logit_scale},         {"attention_scale", &s.attention_scale},
      {"attention_cap", &s.attention_cap},     {"logit_cap", &s.logit_cap},
  };
  if (name == "gelu") return void(s.gelu = value != 0.0f);
  for (const auto& [known, number] : numbers) {
    if (name == known) return void(*number = value);
  }
  throw std::invalid_argument("there is no number '" + name + "'");
}

void Model::check_complete() const {
  const ModelShape& s = shape_;
  const auto need = [](const char* what, int64_t got, int64_t wanted) {
    if (got != wanted) {
      throw std::invalid_argument(std::string(what) + " is " + std::to_string(got) +
                                  ", but the model's sizes ask for " + std::to_string(wanted));
    }
  };
  const auto check = [&](const char* what, const Product& p, int64_t depth, int64_t columns) {
    need((std::string("depth of ") + what).c_str(), p.depth(), depth);
    need((std::string("columns of ") + what).c_str(), p.columns(), columns);
    need((std::string("float32 activations of ") + what).c_str(), p.format() == WeightFormat::kF32,
         full_precision_);
  };
  const int q_size = s.num_heads * s.head_dim, kv_size = s.num_kv_heads * s.head_dim;
  need("heads that share a KV head", s.num_heads % s.num_kv_heads, 0);
  for (const Layer& layer : layers_) {
    int64_t columns = 0;
    for (const Product& part : layer.qkv) {
      check("qkv", part, s.hidden, part.columns());
      columns += part.columns();
    }
    need("columns of qkv", columns, q_size + 2 * kv_size);
    check("o", layer.o, q_size, s.hidden);
    check("gate_up", layer.gate_up, s.hidden, s.intermediate);
    check("down", layer.down, s.intermediate, s.hidden);
    const auto vector = [&](const char* what, const std::vector<float>& values, int64_t wanted) {
      if (!values.empty()) need(what, static_cast<int64_t>(values.size()), wanted);
    };
    vector("attn_norm", layer.attn_norm, s.hidden);
    vector("mlp_norm", layer.mlp_norm, s.hidden);
    vector("attn_post_norm", layer.attn_post_norm, s.hidden);
    vector("mlp_post_norm", layer.mlp_post_norm, s.hidden);
    vector("qkv_bias", layer.qkv_bias, q_size + 2 * kv_size);
    const auto head = static_cast<size_t>(s.head_dim);
    vector("q_norm", layer.q_norm, layer.q_norm.size() == head ? s.head_dim : q_size);
    vector("k_norm", layer.k_norm, layer.k_norm.size() == head ? s.head_dim : kv_size);
    need("a layer's RoPE table", layer.rope >= -1 && layer.rope < int(ropes_.size()), 1);
    need("a window of 0 or more positions", layer.window >= 0, 1);
  }
  check("head", head_, s.hidden, s.vocab);
  need("final_norm", static_cast<int64_t>(final_norm_.size()), s.hidden);
  need("embedding rows", embedding_.num_rows, s.vocab);
  need("embedding row bytes", embedding_.row_bytes,
       source_row_bytes(embedding_.ggml_type, s.hidden));
  need("rows of the RoPE tables", max_positions_ > 0, 1);
}

void Model::pack() {
  std::vector<Product*> products;
  for (Layer& layer : layers_) {
    for (Product& part : layer.qkv) products.push_back(&part);
    products.insert(products.end(), {&layer.o, &layer.gate_up, &layer.down});
  }
  products.push_back(&head_);
  weights_ = Buffer(weight_bytes());
  uint8_t* at = weights_.bytes();
  std::vector<std::pair<Product*, int>> tiles;
  int deepest = 0;
  for (Product* product : products) {
    product->place(at);
    at += product->num_bytes();
    for (int i = 0; i < product->num_pack_tiles(); ++i) tiles.emplace_back(product, i);
    deepest = std::max(deepest, static_cast<int>(product->depth()));
  }
  pool_.run(static_cast<int>(tiles.size()),
            [&](int tile, int) { tiles[tile].first->pack_tile(tiles[tile].second); });
  for (Product* product : products) product->finish();

  const size_t bytes = std::max(
      {kernels_.gemm_scratch_bytes(deepest),
       kernels_.attention_scratch_bytes(shape_.num_heads, shape_.num_kv_heads, shape_.head_dim),
       kernels_.sampling_scratch_bytes(shape_.vocab)});
  scratch_.of.clear();
  for (int i = 0; i < pool_.num_threads(); ++i) scratch_.of.emplace_back(bytes);
}

void Model::poison_kv() {
  // all ones is a NaN in float32 and in bf16
  std::memset(kv_.bytes(), 0xff, kv_.size());
}

size_t Model::weight_bytes() const {
  size_t bytes = head_.num_bytes();
  for (const Layer& layer : layers_) {
    for (const Product& part : layer.qkv) bytes += part.num_bytes();
    bytes += layer.o.num_bytes() + layer.gate_up.num_bytes() + layer.down.num_bytes();
  }
  return bytes;
}

}  // namespace evenflow
