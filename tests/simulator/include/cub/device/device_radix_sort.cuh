// The sort of the CUDA toolkit's CUB, for the simulator.
#pragma once

#include <cuda_runtime.h>

#include <numeric>
#include <vector>

namespace cub {

// NOLINTBEGIN: names of CUB
template <class T>
struct DoubleBuffer {
  T* d_buffers[2];
  int selector = 0;
  T* Current() const { return d_buffers[selector]; }
};

struct DeviceRadixSort {
  /// Stable, by bits [begin, end) of the keys. The other buffers receive the result.
  template <class Key, class Value, class Count>
  static cudaError_t SortPairs(void* scratch, std::size_t& scratch_bytes, DoubleBuffer<Key>& keys,
                               DoubleBuffer<Value>& values, Count count, int begin, int end,
                               cudaStream_t stream) {
    if (scratch == nullptr) {
      scratch_bytes = 256;
      return cudaSuccess;
    }
    const Key* const from_keys = keys.Current();
    const Value* const from_values = values.Current();
    keys.selector ^= 1;
    values.selector ^= 1;
    return fp8lab::simulator::enqueue(
        stream, [=, to_keys = keys.Current(), to_values = values.Current()] {
          std::vector<std::size_t> order(static_cast<std::size_t>(count));
          std::iota(order.begin(), order.end(), std::size_t{0});
          const auto key = [&](std::size_t i) {
            return (std::uint64_t{from_keys[i]} & ((std::uint64_t{1} << end) - 1)) >> begin;
          };
          std::stable_sort(order.begin(), order.end(),
                           [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
          for (std::size_t i = 0; i < order.size(); ++i) {
            to_keys[i] = from_keys[order[i]];
            to_values[i] = from_values[order[i]];
          }
        });
  }
};
// NOLINTEND

}  // namespace cub
