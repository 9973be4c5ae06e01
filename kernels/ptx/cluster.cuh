// Access to the shared memory of other blocks of a cluster. PTX ISA 8.x, sections "mapa",
// "ld" and "barrier.cluster".
#pragma once

#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

/// Arrives for cluster_wait, which waits until every thread of the cluster has arrived. It does not
/// order writes; it only guarantees that earlier reads of the arriving threads are done.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/// Returns the value at the same address in the shared memory of block `rank` of the cluster.
/// Preconditions: a cluster_sync separates the write from this read, and a cluster_arrive separates
/// this read from the end of that block.
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
