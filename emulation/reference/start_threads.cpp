#include "emulation/reference/start_threads.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

/// Throws RuntimeFailure if the system cannot run `count` threads at once.
void try_threads(int count) {
  std::latch all_tried(1);
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&all_tried] { all_tried.wait(); });
  } catch (const std::system_error& error) {
    all_tried.count_down();
    throw RuntimeFailure(fmt::format("cannot start {} threads: {}; accepted: fewer, by --threads",
                                     count + 1, error.code().message()));
  }
  all_tried.count_down();
}

}  // namespace

void start_threads(int count) {
  thread_local int started = 1;  // per thread, because each has its own OpenMP thread pool
  if (count <= started) return;
  try_threads(count - 1);
  int running = 0;
#pragma omp parallel num_threads(count) reduction(+ : running)
  running += 1;
  started = running;
}

}  // namespace fp8lab
