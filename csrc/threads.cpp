#include "threads.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// A test stretches the moments in which two threads could meet badly.
#ifndef EVENFLOW_POOL_PAUSE
#define EVENFLOW_POOL_PAUSE()
#endif

namespace evenflow {
namespace {

// About 40 microseconds of polling: longer than the gap between two products of a layer, far
// shorter than the gap between two steps of an idle server.
constexpr int kSpinRounds = 1000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// CPUs that the cgroup's quota allows, or `most` without one.
int quota_cpus(int most) {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) {
    return static_cast<int>((std::stod(quota) + period - 1) / period);
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double us = -1;
  if (v1_quota >> us && v1_period >> period && us > 0 && period > 0) {
    return static_cast<int>((us + period - 1) / period);
  }
  return most;
}

// The set of CPUs that share a core with `cpu`, as the kernel writes it ("0,64"); empty: unknown.
std::string siblings(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace

int usable_cores() {
  std::set<std::string> cores;
  int cpus = 0;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      ++cpus;
      const std::string shared = siblings(cpu);
      cores.insert(shared.empty() ? "cpu" + std::to_string(cpu) : shared);
    }
  }
  if (cpus == 0) cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int physical = cores.empty() ? cpus : static_cast<int>(cores.size());
  return std::max(1, std::min(physical, quota_cpus(cpus)));
}

ThreadPool::ThreadPool(int num_threads) {
  num_threads = std::max(1, num_threads);
  // More threads than cores: polling would take the time of a thread that has work.
  spin_rounds_ = num_threads > usable_cores() ? 0 : kSpinRounds;
  for (int i = 0; i < num_threads; ++i) lanes_.push_back(std::make_unique<Lane>());
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  closing_.store(true);
  serial_.fetch_add(1);
  serial_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// A thread that wakes up late holds an old serial: the job numbers in the lane keep it from taking
// a tile of a job whose function it has not read. While `next` stays what was read, `end` is that
// job's too once its number says so, since a job is set up only when the one before has ended.
bool ThreadPool::claim(Lane& lane, uint32_t serial, int* tile) {
  uint64_t next = lane.next.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(next >> 32) == serial) {
    const uint32_t index = static_cast<uint32_t>(next);
    EVENFLOW_POOL_PAUSE();
    const uint64_t end = lane.end.load(std::memory_order_relaxed);
    if (static_cast<uint32_t>(end >> 32) != serial) return false;  // the next job is being set up
    if (index >= static_cast<uint32_t>(end)) return false;
    if (lane.next.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
      *tile = static_cast<int>(index);
      return true;
    }
  }
  return false;
}

void ThreadPool::work(uint32_t serial, int thread) {
  const Job job = job_.load(std::memory_order_relaxed);
  const void* context = context_.load(std::memory_order_relaxed);
  const int count = num_threads();
  uint32_t done = 0;
  int tile = 0;
  for (int i = 0; i < count; ++i) {
    Lane& lane = *lanes_[(thread + i) % count];
    while (claim(lane, serial, &tile)) {
      job(context, tile, thread);
      ++done;
    }
  }
  if (done != 0 && remaining_.fetch_sub(done, std::memory_order_acq_rel) == done) {
    remaining_.notify_one();
  }
}

void ThreadPool::run_job(int num_tiles, int unit, Job job, const void* context) {
  if (num_tiles <= 0) return;
  const int count = num_threads();
  if (count == 1 || num_tiles == 1) {
    for (int tile = 0; tile < num_tiles; ++tile) job(context, tile, 0);
    return;
  }
  const uint32_t serial = serial_.load(std::memory_order_relaxed) + 1;
  job_.store(job, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  remaining_.store(static_cast<uint32_t>(num_tiles), std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    const auto begin = static_cast<uint64_t>(first_unit(num_tiles / unit, i)) * unit;
    const auto end = static_cast<uint64_t>(first_unit(num_tiles / unit, i + 1)) * unit;
    const uint64_t number = static_cast<uint64_t>(serial) << 32;
    lanes_[i]->end.store(number | end, std::memory_order_relaxed);
    EVENFLOW_POOL_PAUSE();
    lanes_[i]->next.store(number | begin, std::memory_order_release);
  }
  serial_.store(serial, std::memory_order_seq_cst);
  serial_.notify_all();
  work(serial, 0);
  for (int round = 0; round < spin_rounds_; ++round) {
    if (remaining_.load(std::memory_order_acquire) == 0) return;
    pause();
  }
  uint32_t left = remaining_.load(std::memory_order_acquire);
  while (left != 0) {
    remaining_.wait(left, std::memory_order_acquire);
    left = remaining_.load(std::memory_order_acquire);
  }
}

uint32_t ThreadPool::await_job(uint32_t seen) {
  for (int round = 0; round < spin_rounds_; ++round) {
    const uint32_t serial = serial_.load(std::memory_order_acquire);
    if (serial != seen) return serial;
    pause();
  }
  serial_.wait(seen, std::memory_order_acquire);
  return serial_.load(std::memory_order_acquire);
}

void ThreadPool::worker(int thread) {
  uint32_t seen = 0;
  while (true) {
    seen = await_job(seen);
    if (closing_.load(std::memory_order_acquire)) return;
    work(seen, thread);
  }
}

}  // namespace evenflow
