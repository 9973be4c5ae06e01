// What kernels/ptx/ptx.cuh declares, for the simulator: an mbarrier is the 64-bit word that it is
// on the device, copies land late (tests/simulator/device.hpp).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "tests/simulator/mbarrier.hpp"

namespace fp8lab::cuda {

inline std::uint32_t shared_address(const void* pointer) {
  return simulator::shared_address(pointer);
}

inline constexpr int kWarpgroup = 128;  ///< threads

inline int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
inline int computed_here(int value) { return value; }
template <class Value>
inline Value held(Value value) {
  __syncwarp();
  return value;
}

template <class T>
inline T& held_shared(void* memory) {
  return *static_cast<T*>(memory);
}

// --- mbarrier -----------------------------------------------------------------------------------

inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  simulator::Mbarrier(barrier).init(arrivals);
}
inline void barrier_init_fence() {}
inline void barrier_arrive(std::uint64_t* barrier) { simulator::Mbarrier(barrier).arrive(0); }
inline void barrier_arrive_if(bool arrives, std::uint64_t* barrier) {
  if (arrives) barrier_arrive(barrier);
}
inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  simulator::Mbarrier(barrier).arrive(bytes);
}
inline void barrier_announce(std::uint64_t* barrier, std::uint32_t bytes) {
  simulator::Mbarrier(barrier).expect(bytes);
}
inline void barrier_arrive_at_if(bool arrives, std::uint64_t* barrier, std::uint32_t rank) {
  if (arrives) simulator::Mbarrier(simulator::shared_of(rank, barrier)).arrive(0);
}
inline bool barrier_passed(std::uint64_t* barrier, std::uint32_t parity) {
  return simulator::Mbarrier(barrier).passed(parity);
}
inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  simulator::wait_until([=] { return simulator::Mbarrier(barrier).passed(parity); });
}

template <int kStages>
struct Ring {
  int stage = 0;
  int parity = 0;
  void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// --- arithmetic ---------------------------------------------------------------------------------

inline float flushed_product_down(float x, float y) {
  const auto flushed = [](float value) { return std::fabs(value) < 0x1p-126f ? 0.0f : value; };
  const double product = double{flushed(x)} * flushed(y);
  const float nearest = static_cast<float>(product);
  return flushed(nearest > product ? std::nextafter(nearest, -INFINITY) : nearest);
}
inline void widen_pair(std::uint32_t pair, double& low, double& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xFFFF0000u);
}
inline float yielding_product(float x, float y) { return x * y; }
/// The rounded one: the steps that kernels add to it give the same number from every neighbour.
inline float approximate_reciprocal(float x) { return 1.0f / x; }

// --- named barriers and clusters ----------------------------------------------------------------

inline void named_sync(int barrier, int threads) { simulator::named_sync(barrier, threads); }
inline void named_arrive(int barrier, int threads) { simulator::named_arrive(barrier, threads); }
inline std::uint32_t cluster_rank() { return simulator::cluster_rank(); }
inline void cluster_sync() {
  simulator::cluster_arrive();
  simulator::cluster_wait();
}

// --- bulk tensor copy ---------------------------------------------------------------------------

inline void copy_box(void* destination, const CUtensorMap* map, std::uint64_t* barrier, int x,
                     int y) {
  simulator::load_box(destination, *map, barrier, {x, y, 0}, 0);
}
inline void copy_box(void* destination, const CUtensorMap* map, std::uint64_t* barrier, int x,
                     int y, int z) {
  simulator::load_box(destination, *map, barrier, {x, y, z}, 0);
}
inline void copy_box_to(void* destination, const CUtensorMap* map, std::uint64_t* barrier, int x,
                        int y, std::uint16_t blocks) {
  simulator::load_box(destination, *map, barrier, {x, y, 0}, blocks);
}
inline void copy_bytes(void* destination, const void* source, std::uint64_t* barrier,
                       std::uint32_t bytes) {
  simulator::load_bytes(destination, source, barrier, bytes);
}
inline void store_box(const void* source, const CUtensorMap* map, int x, int y) {
  simulator::store_box(source, *map, {x, y, 0});
}
inline void store_box(const void* source, const CUtensorMap* map, int x, int y, int z) {
  simulator::store_box(source, *map, {x, y, z});
}
inline void store_commit() { simulator::store_commit(); }
template <int kPending>
inline void store_wait_read() {
  simulator::store_wait(kPending);
}
inline void store_wait_all() { simulator::store_wait(0); }
inline void async_fence() {}
inline void prefetch_map(const CUtensorMap*) {}

// --- the grid -----------------------------------------------------------------------------------

inline void signal_set(unsigned* signal) { std::atomic_ref<unsigned>(*signal).store(1); }
inline void signal_await(const unsigned* signal) {
  auto* word = const_cast<unsigned*>(signal);
  simulator::wait_until([=] { return std::atomic_ref<unsigned>(*word).load() != 0; });
  __syncwarp();
}
inline void let_next_kernel_start() {}
inline void wait_for_earlier_kernels() {}

// --- registers of a warpgroup -------------------------------------------------------------------

template <int kRegisters>
inline void lower_registers() {}
template <int kRegisters>
inline void raise_registers() {}

}  // namespace fp8lab::cuda
