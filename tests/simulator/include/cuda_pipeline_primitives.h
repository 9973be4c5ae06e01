// The copies of single threads, for the simulator: they land at the wait (mbarrier.hpp).
#pragma once

#include <cstddef>

#include "tests/simulator/mbarrier.hpp"

inline void __pipeline_memcpy_async(void* shared, const void* global, std::size_t bytes) {
  fp8lab::simulator::copy_bytes(shared, global, bytes);
}
inline void __pipeline_commit() { fp8lab::simulator::copy_commit(); }
inline void __pipeline_wait_prior(std::size_t pending) {
  fp8lab::simulator::copy_wait(static_cast<int>(pending));
}
