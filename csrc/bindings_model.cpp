// The model and its step, as Python sees them. The GIL is released for all of a step's computing.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "isa.h"
#include "model.h"
#include "sampling_arrays.h"
#include "step_checks.h"

namespace nb = nanobind;

namespace evenflow {
namespace {

template <class T>
using Vec = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = Vec<float>;
using Ints = Vec<int32_t>;
using Rows2 = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Source = std::tuple<Rows2, std::optional<Vec<int64_t>>, int>;  // rows, row order, GGUF type

std::vector<float> floats(const Floats& x) { return {x.data(), x.data() + x.size()}; }

WeightSource source_of(const Source& source) {
  const auto& [rows, order, type] = source;
  WeightSource out{rows.data(), static_cast<int64_t>(rows.shape(1)), nullptr,
                   static_cast<int64_t>(rows.shape(0)), type};
  if (order) {
    if (order->size() != rows.shape(0)) {
      throw std::invalid_argument("a row order has " + std::to_string(order->size()) +
                                  " entries for " + std::to_string(rows.shape(0)) + " rows");
    }
    for (size_t i = 0; i < order->size(); ++i) {
      if (order->data()[i] < 0 || order->data()[i] >= out.num_rows) {
        throw std::invalid_argument("a row order names a row that does not exist");
      }
    }
    out.row_order = order->data();
  }
  return out;
}

// Weights and pool of one model. Python keeps the sources alive until pack(), the embedding's for
// good: it is read in place.
class NativeModel {
 public:
  NativeModel(std::vector<int> sizes, float norm_eps, const std::string& isa, int num_threads,
              int num_blocks, int block_size, bool full_precision, bool kv_f32)
      : block_size_(block_size),
        model_(shape_of(sizes, norm_eps), find_kernels(isa), num_threads,
               blocks_of(num_blocks, block_size), full_precision, kv_f32) {}

  void set_embedding(Source source) {
    keep_.push_back(nb::cast(std::get<0>(source)));
    model_.set_embedding(source_of(source));
  }

  // name: "qkv" (appends a part), "o", "gate_up" (two sources), "down", or "head" (layer ignored).
  void add_product(int layer, const std::string& name, int format, int64_t depth,
                   const std::vector<Source>& sources) {
    std::vector<WeightSource> from;
    for (const Source& source : sources) from.push_back(source_of(source));
    Product product(static_cast<WeightFormat>(format), depth, std::move(from), name == "gate_up");
    if (name == "head") return model_.set_head(std::move(product));
    Layer& to = layer_at(layer);
    if (name == "qkv") {
      to.qkv.push_back(std::move(product));
    } else if (name == "o") {
      to.o = std::move(product);
    } else if (name == "gate_up") {
      to.gate_up = std::move(product);
    } else if (name == "down") {
      to.down = std::move(product);
    } else {
      throw std::invalid_argument("there is no product '" + name + "'");
    }
  }

  // name: a vector of Layer's, or "final_norm".
  void set_vector(int layer, const std::string& name, Floats values) {
    if (name == "final_norm") return model_.set_final_norm(floats(values));
    Layer& to = layer_at(layer);
    const std::pair<const char*, std::vector<float>*> targets[] = {
        {"attn_norm", &to.attn_norm}, {"mlp_norm", &to.mlp_norm},
        {"qkv_bias", &to.qkv_bias},   {"attn_post_norm", &to.attn_post_norm},
        {"q_norm", &to.q_norm},       {"mlp_post_norm", &to.mlp_post_norm},
        {"k_norm", &to.k_norm},
    };
    for (const auto& [known, target] : targets) {
      if (name == known) return void(*target = floats(values));
    }
    throw std::invalid_argument("there is no vector '" + name + "'");
  }

  void add_rope(Floats cos, Floats sin, int rotary_dim) {
    if (cos.size() != sin.size()) throw std::invalid_argument("cos and sin differ in length");
    model_.add_rope(floats(cos), floats(sin), rotary_dim);
  }

  // See Model::set_number.
  void set_number(const std::string& name, float value) { model_.set_number(name, value); }

  // window: 0 for all positions; rope: the number of a table, -1 for none.
  void set_layer(int layer, int window, int rope) {
    layer_at(layer).window = window;
    layer_at(layer).rope = rope;
  }

  void pack() {
    model_.check_complete();
    nb::gil_scoped_release release;
    model_.pack();
  }

  nb::object step(Ints token_ids, Ints positions, Vec<int64_t> slots, Ints span_offsets,
                  Ints context_lens, Ints block_tables, Ints block_offsets, Ints logit_rows,
                  Floats temperatures, Ints top_ks, Floats top_ps, Floats min_ps,
                  Vec<uint64_t> seeds, Vec<int64_t> draw_positions, Ints banned_ids,
                  Ints banned_offsets, std::optional<nb::dict> extras) {
    const size_t tokens = token_ids.size(), spans = context_lens.size(), rows = logit_rows.size();
    need("positions", positions.size(), tokens);
    need("slots", slots.size(), tokens);
    need("span_offsets", span_offsets.size(), spans + 1);
    need("block_offsets", block_offsets.size(), spans + 1);
    need("temperatures", temperatures.size(), rows);
    need("top_ks", top_ks.size(), rows);
    need("top_ps", top_ps.size(), rows);
    need("min_ps", min_ps.size(), rows);
    need("seeds", seeds.size(), rows);
    need("sampling positions", draw_positions.size(), rows);
    need("banned_offsets", banned_offsets.size(), rows + 1);
    if (tokens == 0) throw std::invalid_argument("a step computes at least one token");
    StepInput step{token_ids.data(),
                   positions.data(),
                   slots.data(),
                   span_offsets.data(),
                   context_lens.data(),
                   block_tables.data(),
                   block_offsets.data(),
                   logit_rows.data(),
                   static_cast<int32_t>(tokens),
                   static_cast<int32_t>(spans),
                   static_cast<int32_t>(rows)};
    SamplingArgs draw{};
    draw.num_rows = step.num_rows;
    draw.vocab = model_.shape().vocab;
    draw.temperatures = temperatures.data();
    draw.top_ks = top_ks.data();
    draw.top_ps = top_ps.data();
    draw.min_ps = min_ps.data();
    draw.seeds = seeds.data();
    draw.positions = draw_positions.data();
    draw.banned_ids = banned_ids.data();
    draw.banned_offsets = banned_offsets.data();
    SamplingSizes sizes{};
    sizes.banned = static_cast<int64_t>(banned_ids.size());
    if (extras) take_extras(NamedArrays(*extras), draw, sizes);
    tokens_.resize(rows);
    draw.tokens = tokens_.data();
    {
      nb::gil_scoped_release release;
      widen_tables(step, block_tables.size());
      check_step(step, {model_.shape().vocab, model_.max_positions(), model_.num_blocks()});
      check_sampling(draw, sizes);
      model_.forward(step);
      model_.sample(draw);
    }
    return nb::cast(tokens_);
  }

  // A copy of the last step's logits, [rows, vocab].
  nb::ndarray<nb::numpy, float, nb::ndim<2>> logits() {
    const size_t rows = model_.num_rows(), vocab = model_.shape().vocab;
    auto* copy = new float[rows * vocab + 1];
    nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    {
      nb::gil_scoped_release release;
      model_.logits(copy);
    }
    return {copy, {rows, vocab}, owner};
  }

  void poison_kv() { model_.poison_kv(); }
  size_t weight_bytes() const { return model_.weight_bytes(); }
  std::string isa() const { return model_.kernels().name; }
  int num_threads() { return model_.pool().num_threads(); }

 private:
  static ModelShape shape_of(const std::vector<int>& s, float eps) {
    if (s.size() != 7) throw std::invalid_argument("a model is described by seven sizes");
    for (int size : s) {
      if (size <= 0) throw std::invalid_argument("the model's sizes must be positive");
    }
    ModelShape shape{};
    shape.num_layers = s[0];
    shape.hidden = s[1];
    shape.num_heads = s[2];
    shape.num_kv_heads = s[3];
    shape.head_dim = s[4];
    shape.intermediate = s[5];
    shape.vocab = s[6];
    shape.norm_eps = eps;
    return shape;
  }

  static int blocks_of(int num_blocks, int block_size) {
    if (block_size <= 0 || block_size % kKeysPerBlock != 0 || num_blocks <= 0) {
      throw std::invalid_argument("a block of " + std::to_string(block_size) +
                                  " slots is not a multiple of 64");
    }
    return num_blocks * (block_size / kKeysPerBlock);
  }

  static void need(const char* name, size_t got, size_t wanted) {
    if (got != wanted) {
      throw std::invalid_argument(std::string(name) + " has " + std::to_string(got) +
                                  " entries, but the step has " + std::to_string(wanted));
    }
  }

  Layer& layer_at(int layer) {
    if (layer < 0 || layer >= static_cast<int>(model_.layers().size())) {
      throw std::invalid_argument("there is no layer " + std::to_string(layer));
    }
    return model_.layers()[layer];
  }

  // A block of more than 64 slots is a run of blocks of 64 to the kernels.
  void widen_tables(StepInput& step, size_t num_entries) {
    const int parts = block_size_ / kKeysPerBlock;
    const int count = step.num_spans;
    if (count > 0 && (step.block_offsets[0] != 0 ||
                      step.block_offsets[count] != static_cast<int64_t>(num_entries))) {
      throw std::invalid_argument("block_offsets do not span the " + std::to_string(num_entries) +
                                  " entries of block_tables");
    }
    if (parts == 1) return;
    tables_.clear();
    for (size_t i = 0; i < num_entries; ++i) {
      const int64_t block = step.block_tables[i];
      // too large a number stays too large to pass the check, and does not overflow
      const bool wild = block < 0 || block >= model_.num_blocks() / parts;
      for (int p = 0; p < parts; ++p) {
        tables_.push_back(wild ? -1 : static_cast<int32_t>(block * parts + p));
      }
    }
    offsets_.clear();
    for (int i = 0; i <= count; ++i) {
      const int64_t offset = step.block_offsets[i];
      if (offset < 0 || offset > static_cast<int64_t>(num_entries)) {
        throw std::invalid_argument("block_offsets[" + std::to_string(i) + "] is " +
                                    std::to_string(offset) + ", outside block_tables");
      }
      offsets_.push_back(static_cast<int32_t>(offset * parts));
    }
    step.block_tables = tables_.data();
    step.block_offsets = offsets_.data();
  }

  int block_size_;
  Model model_;
  std::vector<nb::object> keep_;
  std::vector<int32_t> tokens_, tables_, offsets_;
};

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<NativeModel>(m, "Model", "Weights, KV pool and the step of one model.")
      .def(nb::init<std::vector<int>, float, const std::string&, int, int, int, bool, bool>(),
           nb::arg("sizes"), nb::arg("norm_eps"), nb::arg("isa"), nb::arg("num_threads"),
           nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("full_precision"),
           nb::arg("kv_f32"))
      .def("set_embedding", &NativeModel::set_embedding, nb::arg("source"))
      .def("add_product", &NativeModel::add_product, nb::arg("layer"), nb::arg("name"),
           nb::arg("kind"), nb::arg("depth"), nb::arg("sources"))
      .def("set_vector", &NativeModel::set_vector, nb::arg("layer"), nb::arg("name"),
           nb::arg("values"))
      .def("add_rope", &NativeModel::add_rope, nb::arg("cos"), nb::arg("sin"),
           nb::arg("rotary_dim"))
      .def("set_number", &NativeModel::set_number, nb::arg("name"), nb::arg("value"))
      .def("set_layer", &NativeModel::set_layer, nb::arg("layer"), nb::arg("window"),
           nb::arg("rope"))
      .def("pack", &NativeModel::pack)
      .def("step", &NativeModel::step, nb::arg("token_ids").noconvert(),
           nb::arg("positions").noconvert(), nb::arg("slots").noconvert(),
           nb::arg("span_offsets").noconvert(), nb::arg("context_lens").noconvert(),
           nb::arg("block_tables").noconvert(), nb::arg("block_offsets").noconvert(),
           nb::arg("logit_rows").noconvert(), nb::arg("temperatures").noconvert(),
           nb::arg("top_ks").noconvert(), nb::arg("top_ps").noconvert(),
           nb::arg("min_ps").noconvert(), nb::arg("seeds").noconvert(),
           nb::arg("draw_positions").noconvert(), nb::arg("banned_ids").noconvert(),
           nb::arg("banned_offsets").noconvert(), nb::arg("extras") = nb::none())
      .def("logits", &NativeModel::logits)
      .def("poison_kv", &NativeModel::poison_kv)
      .def_prop_ro("weight_bytes", &NativeModel::weight_bytes)
      .def_prop_ro("isa", &NativeModel::isa)
      .def_prop_ro("num_threads", &NativeModel::num_threads);
}

}  // namespace evenflow
