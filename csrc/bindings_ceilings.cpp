// What the machine allows, measured on the spot: the ceilings that the benchmarks compare with.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "buffer.h"
#include "isa.h"
#include "threads.h"

namespace nb = nanobind;

namespace evenflow {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Operations a second of all threads together, operands in registers.
double peak_rate(const std::string& isa, ThreadPool& pool, int64_t iterations) {
  const Kernels& kernels = find_kernels(isa);
  nb::gil_scoped_release release;
  const int tiles = pool.num_threads() * 16;
  std::vector<double> done(static_cast<size_t>(tiles));
  const auto start = Clock::now();
  pool.run(tiles, [&](int tile, int) { done[tile] = kernels.peak_products(iterations); });
  const double seconds = seconds_since(start);
  double total = 0;
  for (double d : done) total += d;
  return total / seconds;
}

uint64_t sum_words(const uint64_t* from, int64_t words) {
  uint64_t sum[8] = {};
  for (int64_t w = 0; w < words; w += 8) {
    for (int j = 0; j < 8; ++j) sum[j] += from[w + j];
  }
  uint64_t total = 0;
  for (uint64_t part : sum) total += part;
  return total;
}

// Bytes a second that all threads together read: `num_bytes` cut into tiles, `rounds` times over
// each tile before the next. Many bytes and one round read memory; few bytes and many rounds read
// the cache that holds a tile.
double read_rate(ThreadPool& pool, int64_t num_bytes, int tiles, int rounds, int repeats) {
  if (num_bytes <= 0 || tiles <= 0 || rounds <= 0 || repeats <= 0) {
    throw std::invalid_argument("bytes, tiles, rounds and repeats must be positive");
  }
  Buffer memory(static_cast<size_t>(num_bytes));
  std::memset(memory.bytes(), 1, memory.size());
  const int64_t words = num_bytes / 8 / tiles / 8 * 8;
  std::vector<uint64_t> sums(static_cast<size_t>(tiles));
  nb::gil_scoped_release release;
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    pool.run(tiles, [&](int tile, int) {
      for (int round = 0; round < rounds; ++round) {
        sums[tile] += sum_words(memory.as<uint64_t>() + tile * words, words);
      }
    });
    best = std::max(best, static_cast<double>(words) * 8 * tiles * rounds / seconds_since(start));
  }
  // never true, but the compiler cannot know: the sums must be made
  return sums[0] == 1 ? 0.0 : best;
}

// Nanoseconds for a value to go to another thread and back, halved: one hand-over.
double ping_pong_ns(int rounds) {
  nb::gil_scoped_release release;
  alignas(128) std::atomic<int> turn{0};
  std::thread other([&] {
    for (int i = 0; i < rounds; ++i) {
      while (turn.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  const auto start = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    turn.store(2 * i + 1, std::memory_order_release);
    while (turn.load(std::memory_order_acquire) != 2 * i + 2) {
    }
  }
  const double seconds = seconds_since(start);
  other.join();
  return seconds / rounds / 2 * 1e9;
}

}  // namespace

void bind_ceilings(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool", "Compute threads; the caller of a step is one of them.")
      .def(nb::init<int>(), nb::arg("num_threads"))
      .def_prop_ro("num_threads", &ThreadPool::num_threads);
  m.def("peak_rate", &peak_rate, nb::arg("isa"), nb::arg("pool"), nb::arg("iterations") = 200000);
  m.def("read_rate", &read_rate, nb::arg("pool"), nb::arg("num_bytes"), nb::arg("tiles") = 64,
        nb::arg("rounds") = 1, nb::arg("repeats") = 5);
  m.def("ping_pong_ns", &ping_pong_ns, nb::arg("rounds") = 20000);
}

}  // namespace evenflow
