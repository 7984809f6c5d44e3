// Single kernels in the submodule `_native.ops`, for tests and benchmarks.
//
// In: NumPy arrays, checked here for type, shape and range. Out: results in the caller's arrays.
// The step itself does not come this way.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "buffer.h"
#include "isa.h"
#include "threads.h"

namespace nb = nanobind;

namespace evenflow {
namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
template <class T, int N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N>
using Out = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T>
using MaybeIn = std::optional<In<T, 1>>;

void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

// True for float32, false for uint16 (bf16 as bits); nothing else will do.
bool is_f32(const Array& a, const char* name) {
  if (a.dtype() == nb::dtype<float>()) return true;
  if (a.dtype() == nb::dtype<uint16_t>()) return false;
  throw std::invalid_argument(std::string(name) + " must be float32 or uint16 (bf16 bits)");
}

int32_t dim(const Array& a, size_t i) { return static_cast<int32_t>(a.shape(i)); }

void check_pools(const Array& keys, const Array& values, bool f32) {
  require(keys.ndim() == 5 && values.ndim() == 5, "pools have five dimensions");
  require(is_f32(keys, "keys") == f32 && is_f32(values, "values") == f32,
          "q and pools differ in type");
  require(keys.shape(3) == kKeysPerBlock && keys.shape(4) == 2,
          "keys are [blocks, kv_heads, head_dim / 2, 64, 2]");
  require(values.shape(0) == keys.shape(0) && values.shape(1) == keys.shape(1) &&
              values.shape(2) == kKeysPerBlock / 2 && values.shape(3) == 2 * keys.shape(2) &&
              values.shape(4) == 2,
          "values are [blocks, kv_heads, 32, head_dim, 2]");
}

// Runs attention on a pool's threads, planned for `plan_threads`; returns [tasks, groups].
nb::tuple run_attention(const std::string& isa, ThreadPool& pool, Array q, Array keys, Array values,
                        Array out, In<int32_t, 1> span_offsets, In<int32_t, 1> context_lens,
                        In<int32_t, 1> block_tables, In<int32_t, 1> block_offsets, float scale,
                        int plan_threads, int repeats, int window, float soft_cap) {
  const Kernels& kernels = find_kernels(isa);
  AttentionArgs args{};
  args.kv_f32 = is_f32(q, "q");
  args.out_f32 = is_f32(out, "out");
  check_pools(keys, values, args.kv_f32);
  require(q.ndim() == 3 && out.ndim() == 3, "q and out are [tokens, heads, head_dim]");
  for (size_t i = 0; i < 3; ++i) require(q.shape(i) == out.shape(i), "q and out differ in shape");
  args.num_heads = dim(q, 1);
  args.head_dim = dim(q, 2);
  args.num_kv_heads = dim(keys, 1);
  require(args.head_dim % 16 == 0 && args.head_dim <= 256 && args.head_dim == 2 * dim(keys, 2),
          "head_dim must be a multiple of 16, at most 256, and the pool's");
  require(args.num_heads % args.num_kv_heads == 0, "heads must be a multiple of KV heads");
  args.num_spans = static_cast<int32_t>(context_lens.shape(0));
  require(span_offsets.shape(0) == context_lens.shape(0) + 1 &&
              block_offsets.shape(0) == context_lens.shape(0) + 1,
          "offsets have one entry more than spans");
  for (int32_t i = 0; i < args.num_spans; ++i) {
    const int32_t blocks = block_offsets.data()[i + 1] - block_offsets.data()[i];
    const int32_t length = span_offsets.data()[i + 1] - span_offsets.data()[i];
    require(length > 0 && length <= context_lens.data()[i], "a span is longer than its context");
    require(blocks * kKeysPerBlock >= context_lens.data()[i],
            "a context is longer than its blocks");
  }
  require(args.num_spans == 0 ||
              (span_offsets.data()[args.num_spans] == dim(q, 0) &&
               block_offsets.data()[args.num_spans] == static_cast<int32_t>(block_tables.shape(0))),
          "offsets must end at the number of tokens and of blocks");
  for (size_t i = 0; i < block_tables.shape(0); ++i) {
    require(block_tables.data()[i] >= 0 && block_tables.data()[i] < dim(keys, 0), "no such block");
  }
  args.q = q.data();
  args.keys = keys.data();
  args.values = values.data();
  args.out = out.data();
  args.q_stride = args.out_stride = int64_t{args.num_heads} * args.head_dim;
  args.span_offsets = span_offsets.data();
  args.context_lens = context_lens.data();
  args.block_tables = block_tables.data();
  args.block_offsets = block_offsets.data();
  args.scale = scale;
  require(window >= 0 && soft_cap >= 0.0f, "a window and a cap are 0 or more");
  args.window = window;
  args.soft_cap = soft_cap;
  const int planned = plan_threads > 0 ? plan_threads : pool.num_threads();
  const AttentionPlan plan = kernels.plan_attention(args, planned, nullptr, 0);
  std::vector<AttentionTask> tasks(static_cast<size_t>(plan.num_tasks));
  kernels.plan_attention(args, planned, tasks.data(), plan.num_tasks);
  Buffer partials(static_cast<size_t>(plan.num_partials) * sizeof(float));
  Buffer arrivals(static_cast<size_t>(plan.num_groups) * sizeof(int32_t));
  args.partials = partials.as<float>();
  args.arrivals = arrivals.as<int32_t>();
  std::vector<Buffer> scratch;
  for (int i = 0; i < pool.num_threads(); ++i) {
    scratch.emplace_back(
        kernels.attention_scratch_bytes(args.num_heads, args.num_kv_heads, args.head_dim));
  }
  {
    nb::gil_scoped_release release;
    for (int i = 0; i < repeats; ++i) {
      pool.run(plan.num_tasks, [&](int task, int thread) {
        kernels.attention(args, tasks[task], scratch[thread].bytes());
      });
    }
  }
  return nb::make_tuple(plan.num_tasks, plan.num_groups);
}

void rms_norm(const std::string& isa, In<float, 2> x, In<float, 1> weight, float eps, Array out,
              std::optional<Out<float, 2>> sums, MaybeIn<int32_t> row_ids, int begin, int end) {
  NormArgs args{};
  require(out.ndim() == 2 && out.shape(1) == x.shape(1) && weight.shape(0) == x.shape(1),
          "x, weight and out differ in width");
  require(begin >= 0 && begin <= end && end <= dim(out, 0), "rows are outside out");
  require(row_ids ? row_ids->shape(0) == out.shape(0) : out.shape(0) == x.shape(0),
          "out must have a row for each row wanted");
  for (size_t i = 0; row_ids && i < row_ids->shape(0); ++i) {
    require(row_ids->data()[i] >= 0 && size_t(row_ids->data()[i]) < x.shape(0), "no such row");
  }
  args.x = x.data();
  args.weight = weight.data();
  args.out = out.data();
  args.row_ids = row_ids ? row_ids->data() : nullptr;
  args.x_stride = args.out_stride = static_cast<int64_t>(x.shape(1));
  args.width = static_cast<int32_t>(x.shape(1));
  if (sums) {
    require(sums->shape(0) == out.shape(0) && sums->shape(1) * kGroup == x.shape(1),
            "sums are [rows, width / 32]");
    args.x_sums = sums->data();
    args.x_sums_stride = static_cast<int64_t>(sums->shape(1));
  }
  args.eps = eps;
  args.out_f32 = is_f32(out, "out");
  find_kernels(isa).rms_norm(args, begin, end);
}

void rope_write(const std::string& isa, In<float, 2> qkv, In<int32_t, 1> positions,
                In<int64_t, 1> slots, In<float, 2> cos, In<float, 2> sin, MaybeIn<float> q_norm,
                MaybeIn<float> k_norm, float norm_eps, Array q, Array keys, Array values, int begin,
                int end) {
  RopeArgs args{};
  args.kv_f32 = is_f32(q, "q");
  check_pools(keys, values, args.kv_f32);
  require(q.ndim() == 3 && q.shape(0) == qkv.shape(0), "q is [tokens, heads, head_dim]");
  args.num_heads = dim(q, 1);
  args.head_dim = dim(q, 2);
  args.num_kv_heads = dim(keys, 1);
  args.rotary_dim = static_cast<int32_t>(cos.shape(1)) * 2;
  require(args.head_dim == 2 * dim(keys, 2) && args.head_dim <= 256,
          "q and keys differ in head_dim");
  require(qkv.shape(1) == size_t(args.num_heads + 2 * args.num_kv_heads) * args.head_dim,
          "qkv is [tokens, (heads + 2 kv_heads) * head_dim]");
  require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1) &&
              args.rotary_dim <= args.head_dim,
          "cos and sin are [positions, rotary_dim / 2]");
  require(positions.shape(0) == qkv.shape(0) && slots.shape(0) == qkv.shape(0),
          "every token has a position and a slot");
  require(begin >= 0 && begin <= end && end <= dim(q, 0), "rows are outside q");
  for (size_t i = 0; i < positions.shape(0); ++i) {
    require(positions.data()[i] >= 0 && size_t(positions.data()[i]) < cos.shape(0),
            "no such position");
    require(slots.data()[i] >= -1 && slots.data()[i] < int64_t{dim(keys, 0)} * kKeysPerBlock,
            "no such slot");
  }
  const auto fits = [&](const MaybeIn<float>& norm, int heads) {
    return !norm || norm->shape(0) == q.shape(2) || norm->shape(0) == heads * q.shape(2);
  };
  require(fits(q_norm, args.num_heads) && fits(k_norm, args.num_kv_heads),
          "norm weights are [head_dim], or as wide as all heads");
  args.q_norm_width = q_norm ? static_cast<int32_t>(q_norm->shape(0)) : 0;
  args.k_norm_width = k_norm ? static_cast<int32_t>(k_norm->shape(0)) : 0;
  args.qkv = qkv.data();
  args.positions = positions.data();
  args.slots = slots.data();
  args.cos = cos.data();
  args.sin = sin.data();
  args.q_norm = q_norm ? q_norm->data() : nullptr;
  args.k_norm = k_norm ? k_norm->data() : nullptr;
  args.q = q.data();
  args.keys = keys.data();
  args.values = values.data();
  args.qkv_stride = static_cast<int64_t>(qkv.shape(1));
  args.q_stride = int64_t{args.num_heads} * args.head_dim;
  args.norm_eps = norm_eps;
  find_kernels(isa).rope_write(args, begin, end);
}

void embed(const std::string& isa, In<int32_t, 1> token_ids, In<uint8_t, 2> table, int ggml_type,
           Out<float, 2> out) {
  require(out.shape(0) == token_ids.shape(0), "out must have a row for each token");
  for (size_t i = 0; i < token_ids.shape(0); ++i) {
    require(token_ids.data()[i] >= 0 && size_t(token_ids.data()[i]) < table.shape(0),
            "no such token");
  }
  EmbedArgs args{};
  args.token_ids = token_ids.data();
  args.table = table.data();
  args.out = out.data();
  args.row_bytes = static_cast<int64_t>(table.shape(1));
  args.out_stride = static_cast<int64_t>(out.shape(1));
  args.width = static_cast<int32_t>(out.shape(1));
  args.ggml_type = ggml_type;
  args.scale = 1.0f;
  int64_t wanted = 0;
  switch (ggml_type) {
    case 0:
      wanted = args.width * int64_t{4};
      break;
    case 1:
    case 30:
      wanted = args.width * int64_t{2};
      break;
    case 2:
      wanted = args.width / kGroup * int64_t{18};
      break;
    case 3:
      wanted = args.width / kGroup * int64_t{20};
      break;
    case 8:
      wanted = args.width / kGroup * int64_t{34};
      break;
    default:
      require(false, "embedding rows of this GGUF type are converted at load");
  }
  require(args.width % kGroup == 0 && wanted == args.row_bytes, "rows do not hold `width` values");
  find_kernels(isa).embed(args, 0, static_cast<int>(token_ids.shape(0)));
}

void to_bf16(const std::string& isa, In<float, 1> x, Out<uint16_t, 1> out) {
  require(x.shape(0) == out.shape(0), "x and out differ in length");
  find_kernels(isa).to_bf16(x.data(), out.data(), static_cast<int64_t>(x.shape(0)));
}

void group_sums(const std::string& isa, Array x, Out<float, 2> sums) {
  require(x.ndim() == 2 && sums.shape(0) == x.shape(0) && sums.shape(1) * kGroup == x.shape(1),
          "sums are [rows, width / 32]");
  find_kernels(isa).group_sums(x.data(), static_cast<int64_t>(x.shape(1)), dim(x, 1),
                               is_f32(x, "x"), sums.data(), static_cast<int64_t>(sums.shape(1)), 0,
                               dim(x, 0));
}

}  // namespace

void bind_ops(nb::module_& m) {
  m.doc() = "Single kernels, for tests and benchmarks";
  m.def("attention", &run_attention, nb::arg("isa"), nb::arg("pool"), nb::arg("q"), nb::arg("keys"),
        nb::arg("values"), nb::arg("out"), nb::arg("span_offsets"), nb::arg("context_lens"),
        nb::arg("block_tables"), nb::arg("block_offsets"), nb::arg("scale"),
        nb::arg("plan_threads") = 0, nb::arg("repeats") = 1, nb::arg("window") = 0,
        nb::arg("soft_cap") = 0.0f);
  m.def("rms_norm", &rms_norm, nb::arg("isa"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"),
        nb::arg("out"), nb::arg("sums").none(), nb::arg("row_ids").none(), nb::arg("begin"),
        nb::arg("end"));
  m.def("rope_write", &rope_write, nb::arg("isa"), nb::arg("qkv"), nb::arg("positions"),
        nb::arg("slots"), nb::arg("cos"), nb::arg("sin"), nb::arg("q_norm").none(),
        nb::arg("k_norm").none(), nb::arg("norm_eps"), nb::arg("q"), nb::arg("keys"),
        nb::arg("values"), nb::arg("begin"), nb::arg("end"));
  m.def("embed", &embed, nb::arg("isa"), nb::arg("token_ids"), nb::arg("table"),
        nb::arg("ggml_type"), nb::arg("out"));
  m.def("to_bf16", &to_bf16, nb::arg("isa"), nb::arg("x"), nb::arg("out"));
  m.def("group_sums", &group_sums, nb::arg("isa"), nb::arg("x"), nb::arg("sums"));
}

}  // namespace evenflow
