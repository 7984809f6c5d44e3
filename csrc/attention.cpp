// Attention's entry points: cutting a step into tasks, and running one task.
#include "attention.h"

#include "attention_chunk.h"
#include "attention_rows.h"

namespace evenflow::EVENFLOW_ISA {
namespace {

// What both kinds of task know about themselves.
struct TaskPlace {
  const AttentionArgs& args;
  const AttentionTask& task;
  const int32_t* blocks;
  int64_t block_elements, head_offset;
  int heads_per_kv, first_limit, row0;

  EVENFLOW_INLINE TaskPlace(const AttentionArgs& a, const AttentionTask& t) : args(a), task(t) {
    const int begin = a.span_offsets[t.span], length = a.span_offsets[t.span + 1] - begin;
    blocks = a.block_tables + a.block_offsets[t.span];
    head_offset = int64_t{t.kv_head} * kKeys * a.head_dim;
    block_elements = int64_t{a.num_kv_heads} * kKeys * a.head_dim;
    heads_per_kv = a.num_heads / a.num_kv_heads;
    first_limit = a.context_lens[t.span] - length + t.first_token + 1;
    row0 = begin + t.first_token;
  }
  EVENFLOW_INLINE int head(int h) const { return task.kv_head * heads_per_kv + h; }
  EVENFLOW_INLINE int64_t q_offset(int token, int h) const {
    return (row0 + token) * args.q_stride + int64_t{head(h)} * args.head_dim;
  }
  EVENFLOW_INLINE int64_t out_offset(int token, int h) const {
    return (row0 + token) * args.out_stride + int64_t{head(h)} * args.head_dim;
  }
};

EVENFLOW_INLINE float* take(char*& space, int64_t floats) {
  float* p = reinterpret_cast<float*>(space);
  space += (floats * 4 + 63) / 64 * 64;
  return p;
}

// A task in the chunk kernel: vectors of kW tokens by heads, in units.
template <class P>
struct ChunkWork {
  TaskPlace place;
  int num_vectors, num_units, steps;
  float *q, *limits, *totals, *part;
  ChunkSpace space;

  EVENFLOW_INLINE ChunkWork(const AttentionArgs& a, const AttentionTask& t, char* s) : place(a, t) {
    num_vectors = (t.num_tokens + kW - 1) / kW * place.heads_per_kv;
    num_units = chunk_units(num_vectors);
    steps = P::dim_steps(a.head_dim);
    q = take(s, int64_t{num_vectors} * steps * kW);
    limits = take(s, int64_t{num_vectors} * kW);
    totals = take(s, chunk_state_floats(num_vectors, a.head_dim));
    part = take(s, chunk_state_floats(kMaxUnit, a.head_dim));
    space.scores = take(s, kKeys * kMaxUnit * kW);
    space.block = take(s, 2 * kKeys * a.head_dim);
    for (int u = 0; u < num_units; ++u) pack(u);
  }
  // Units differ by one vector at most.
  EVENFLOW_INLINE int first(int u) const { return u * num_vectors / num_units; }
  EVENFLOW_INLINE int size(int u) const { return first(u + 1) - first(u); }
  EVENFLOW_INLINE int64_t state_offset(int u) const {
    return chunk_state_floats(first(u), place.args.head_dim);
  }
  EVENFLOW_INLINE int64_t state_floats() const {
    return chunk_state_floats(num_vectors, place.args.head_dim);
  }
  EVENFLOW_INLINE State state(float* at, int u) const {
    return chunk_state(at, size(u), place.args.head_dim);
  }
  EVENFLOW_INLINE int token(int vector, int lane) const {
    const int t = vector / place.heads_per_kv * kW + lane;
    return t < place.task.num_tokens ? t : place.task.num_tokens - 1;  // idle lanes repeat the last
  }
  EVENFLOW_INLINE int min_limit(int u) const { return place.first_limit + token(first(u), 0); }
  EVENFLOW_INLINE int max_limit(int u) const {
    return place.first_limit + token(first(u + 1) - 1, kW - 1);
  }

  void pack(int u) {
    const int n = size(u);
    alignas(64) float rows[kW][256] = {};
    for (int v = 0; v < n; ++v) {
      const int vector = first(u) + v;
      for (int lane = 0; lane < kW; ++lane) {
        const int t = token(vector, lane);
        limits[vector * kW + lane] = static_cast<float>(place.first_limit + t);
        P::load_query(place.args, place.q_offset(t, vector % place.heads_per_kv),
                      place.args.head_dim, rows[lane]);
      }
      float* out = q + int64_t{first(u)} * steps * kW + v * kW;
      for (int s = 0; s < steps; s += kW) {
        F tile[kW];
        for (int lane = 0; lane < kW; ++lane) tile[lane] = load(rows[lane] + s);
        transpose(tile);
        const int here = steps - s < kW ? steps - s : kW;
        for (int i = 0; i < here; ++i) store(out + int64_t{s + i} * n * kW, tile[i]);
      }
    }
  }

  EVENFLOW_INLINE void section(int u, int index, const State& state) const {
    const ChunkUnit unit{q + int64_t{first(u)} * steps * kW, limits + first(u) * kW, min_limit(u),
                         max_limit(u), place.args.window};
    auto run = [&](auto kernel) {
      kernel(place.args, place.blocks, place.block_elements, place.head_offset, unit, index, state,
             space);
    };
    switch (size(u)) {
      case 1:
        return run(chunk_section<P, 1>);
      case 2:
        return run(chunk_section<P, 2>);
      default:
        return run(chunk_section<P, 3>);
    }
  }

  void write(int u, const State& state) const {
    const int dim = place.args.head_dim;
    alignas(64) float rows[kW][256];
    for (int v = 0; v < state.num; ++v) {
      const int vector = first(u) + v;
      for (int d = 0; d < dim; d += kW) {
        F tile[kW];
        for (int i = 0; i < kW; ++i) {
          tile[i] = load(state.values + v * kW + int64_t{d + i} * state.step_stride);
        }
        transpose(tile);
        for (int lane = 0; lane < kW; ++lane) store(rows[lane] + d, tile[lane]);
      }
      const int token0 = vector / place.heads_per_kv * kW;
      for (int lane = 0; lane < kW && token0 + lane < place.task.num_tokens; ++lane) {
        store_row(place.args, place.out_offset(token0 + lane, vector % place.heads_per_kv),
                  rows[lane]);
      }
    }
  }
};

// A task in the row kernel: every (token, head) is a row, units of up to kMaxRows rows.
template <class P>
struct RowWork {
  TaskPlace place;
  int num_rows, num_units, steps;
  float *q, *totals, *part, *scores, *block;
  int* limits;
  int64_t after;

  EVENFLOW_INLINE RowWork(const AttentionArgs& a, const AttentionTask& t, char* s) : place(a, t) {
    num_rows = t.num_tokens * place.heads_per_kv;
    num_units = (num_rows + kMaxRows - 1) / kMaxRows;
    steps = P::dim_steps(a.head_dim);
    q = take(s, int64_t{num_rows} * steps);
    limits = reinterpret_cast<int*>(take(s, num_rows));
    totals = take(s, row_state_floats(num_rows, a.head_dim));
    part = take(s, row_state_floats(kMaxRows, a.head_dim));
    scores = take(s, kKeys * kMaxRows);
    block = take(s, 2 * kKeys * a.head_dim);
    after = next_task();
    for (int r = 0; r < num_rows; ++r) {
      const int token = r / place.heads_per_kv;
      limits[r] = place.first_limit + token;
      P::load_query(a, place.q_offset(token, r % place.heads_per_kv), a.head_dim, q + r * steps);
    }
  }
  EVENFLOW_INLINE int first(int u) const { return u * num_rows / num_units; }
  EVENFLOW_INLINE int size(int u) const { return first(u + 1) - first(u); }
  EVENFLOW_INLINE int64_t state_offset(int u) const {
    return row_state_floats(first(u), place.args.head_dim);
  }
  EVENFLOW_INLINE int64_t state_floats() const {
    return row_state_floats(num_rows, place.args.head_dim);
  }
  EVENFLOW_INLINE State state(float* at, int u) const {
    return row_state(at, size(u), place.args.head_dim);
  }
  EVENFLOW_INLINE int min_limit(int u) const { return limits[first(u)]; }
  EVENFLOW_INLINE int max_limit(int u) const { return limits[first(u + 1) - 1]; }

  // Where the task after this one starts to read, or -1.
  int64_t next_task() const {
    const AttentionTask* next = &place.task + 1;
    if (next >= place.args.tasks_end) return -1;
    const TaskPlace there(place.args, *next);
    return there.blocks[next->first_section * kSectionBlocks] * there.block_elements +
           there.head_offset;
  }

  EVENFLOW_INLINE void section(int u, int index, const State& state) const {
    const RowUnit unit{
        q + first(u) * steps, limits + first(u), max_limit(u), place.args.window, 0, after};
    auto run = [&](auto kernel) {
      kernel(place.args, place.blocks, place.block_elements, place.head_offset, unit, index, state,
             scores, block);
    };
    switch (size(u)) {
      case 1:
        return run(row_section<P, 1>);
      case 2:
        return run(row_section<P, 2>);
      case 3:
        return run(row_section<P, 3>);
      case 4:
        return run(row_section<P, 4>);
      default:
        break;
    }
    if constexpr (kMaxRows > 4) {
      if (size(u) == 5) return run(row_section<P, 5>);
      return run(row_section<P, 6>);
    }
  }

  void write(int u, const State& state) const {
    for (int r = 0; r < state.num; ++r) {
      const int row = first(u) + r;
      store_row(place.args, place.out_offset(row / place.heads_per_kv, row % place.heads_per_kv),
                state.values + r * place.args.head_dim);
    }
  }
};

// Runs a task's sections; the last task of a group merges all of the group's parts in order.
template <class P, class Work>
void run_task(const AttentionArgs& args, const AttentionTask& task, char* scratch) {
  Work work(args, task, scratch);
  const float scale = args.scale * kLog2E;
  const bool whole = task.group < 0;
  float* const parts = args.partials + (whole ? 0 : task.partials);
  auto total = [&](int u) { return work.state(work.totals + work.state_offset(u), u); };
  auto shared = [&](int u, int section) {
    return work.state(parts + section * work.state_floats() + work.state_offset(u), u);
  };
  auto sees = [&](int u, int section) {
    return section >= first_block(args, work.min_limit(u)) / kSectionBlocks &&
           section * kSectionKeys < work.max_limit(u);
  };
  for (int u = 0; u < work.num_units; ++u) clear(total(u));
  const int end = task.first_section + task.num_sections;
  for (int section = task.first_section; section < end; ++section) {
    for (int u = 0; u < work.num_units; ++u) {
      if (!sees(u, section)) continue;
      const State part = whole ? work.state(work.part, u) : shared(u, section);
      work.section(u, section, part);
      if (whole) merge<P>(total(u), part, scale);
    }
  }
  if (!whole) {
    int32_t* arrivals = args.arrivals + task.group;
    if (__atomic_add_fetch(arrivals, 1, __ATOMIC_ACQ_REL) != task.group_tasks) return;
    __atomic_store_n(arrivals, 0, __ATOMIC_RELAXED);
    for (int u = 0; u < work.num_units; ++u) {
      for (int s = 0; s * kSectionKeys < work.max_limit(u); ++s) {
        if (sees(u, s)) merge<P>(total(u), shared(u, s), scale);
      }
    }
  }
  for (int u = 0; u < work.num_units; ++u) {
    finish(total(u));
    work.write(u, total(u));
  }
}

template <class P>
void run_policy(const AttentionArgs& args, const AttentionTask& task, char* scratch) {
  if (task.num_tokens <= kMaxRowTokens) return run_task<P, RowWork<P>>(args, task, scratch);
  run_task<P, ChunkWork<P>>(args, task, scratch);
}

}  // namespace

void attention(const AttentionArgs& args, const AttentionTask& task, void* scratch) {
#if EVENFLOW_ISA_LEVEL >= 3
  if (!args.kv_f32) return run_policy<PairPolicy>(args, task, static_cast<char*>(scratch));
#endif
  run_policy<FloatPolicy>(args, task, static_cast<char*>(scratch));
}

size_t attention_scratch_bytes(int num_heads, int num_kv_heads, int head_dim) {
  const int64_t rows = int64_t{kMaxTaskTokens} * (num_heads / num_kv_heads);
  const int64_t per_row = 2 * head_dim + 3 + 2 * kW;  // q, totals, limits (row kernel: kW lanes)
  const int64_t unit = kMaxUnit * kW > kMaxRows ? kMaxUnit * kW : kMaxRows;
  const int64_t shared = unit * (head_dim + 2 + 2 * kW + kKeys) + 2 * kKeys * head_dim;
  return static_cast<size_t>((rows * per_row + shared) * 4 + 16 * 64);
}

}  // namespace evenflow::EVENFLOW_ISA
