// Runs many small jobs on a pool whose threads dawdle where they could meet badly; every tile of
// every job must run exactly once. Arguments: threads, jobs. Exit status 1: a tile was lost, run
// twice, or does not exist; a pool that waits for ever is ended by the alarm.
#include <unistd.h>

#include <cstdlib>

namespace {
void dawdle() {
  static thread_local unsigned state = 1;
  state = state * 1664525u + 1013904223u;
  if ((state >> 20) % 16 == 0) usleep(30);
}
}  // namespace
#define EVENFLOW_POOL_PAUSE() dawdle()
#include "../../csrc/threads.cpp"

int main(int, char** argv) {
  constexpr int kMostTiles = 64;
  alarm(120);
  evenflow::ThreadPool pool(std::atoi(argv[1]));
  std::vector<std::atomic<int>> runs(kMostTiles);
  for (int job = 0; job < std::atoi(argv[2]); ++job) {
    const int tiles = 2 + job * 7 % 59;
    for (auto& count : runs) count = 0;
    pool.run(tiles, [&](int tile, int) { runs[tile].fetch_add(1); });
    for (int tile = 0; tile < kMostTiles; ++tile) {
      if (runs[tile] != (tile < tiles)) return 1;
    }
  }
  return 0;
}
