// A pool of compute threads that share the tiles of one job after another.
//
// Each thread owns a contiguous range of a job's tiles and claims them in order from its own
// counter; when its range is used up it steals from the others. So threads keep to their own part
// of the weights (which stays in their cache from row block to row block), and yet a thread that
// the operating system has put aside holds up nothing but the one tile it was at.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace evenflow {

// Physical cores this process may use: CPU affinity, hyper-thread siblings counted once, and the
// cgroup's CPU quota (rounded up) respected. At least 1.
int usable_cores();

class ThreadPool {
 public:
  // num_threads counts the caller of run(), so num_threads - 1 threads are started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(lanes_.size()); }

  // Calls fn(tile, thread) once for every tile in [0, num_tiles) and returns when all are done.
  // Which thread runs a tile is open. One job at a time; fn must not throw and not call run().
  // A thread's own range starts and ends at a multiple of `unit`, which divides num_tiles.
  template <class Fn>
  void run(int num_tiles, const Fn& fn, int unit = 1) {
    run_job(
        num_tiles, unit,
        [](const void* context, int tile, int thread) {
          (*static_cast<const Fn*>(context))(tile, thread);
        },
        &fn);
  }

  // First of the `num_units` units that belong to `thread`.
  int first_unit(int num_units, int thread) const {
    return static_cast<int>(static_cast<int64_t>(num_units) * thread / num_threads());
  }

 private:
  using Job = void (*)(const void* context, int tile, int thread);

  // One thread's range: the next tile and the end of the range in the low halves, the number of the
  // job they belong to in both high halves. A thread that read `next` of one job must not meet the
  // `end` of the following one, or it would claim a tile that no job has.
  struct alignas(128) Lane {
    std::atomic<uint64_t> next{0};
    std::atomic<uint64_t> end{0};
  };

  void run_job(int num_tiles, int unit, Job job, const void* context);
  void work(uint32_t serial, int thread);
  bool claim(Lane& lane, uint32_t serial, int* tile);
  void worker(int thread);
  uint32_t await_job(uint32_t seen);

  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::thread> threads_;
  alignas(128) std::atomic<uint32_t> serial_{0};  // number of the newest job
  std::atomic<Job> job_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<bool> closing_{false};
  alignas(128) std::atomic<uint32_t> remaining_{0};  // tiles of the job not finished
  int spin_rounds_;
};

}  // namespace evenflow
