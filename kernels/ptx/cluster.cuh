// Shared memory of the other blocks of a cluster. PTX ISA 8.x, sections "mapa", "ld" and
// "barrier.cluster".
#pragma once

#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

/// Arrives for cluster_wait, which waits until every thread of the cluster has. Orders no writes:
/// what a thread has read before is read, that is all.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/// What lies at the same place in the shared memory of block `rank` of the cluster. A cluster_sync
/// must stand between the write there and this, and a cluster_arrive between this and the end of
/// that block.
__device__ inline float remote_float(const float* place, int rank) {
  float value;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n"
      "}\n"
      : "=f"(value)
      : "r"(shared_address(place)), "r"(rank)
      : "memory");
  return value;
}

}  // namespace fp8lab::cuda
