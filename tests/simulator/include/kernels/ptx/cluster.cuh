// What kernels/ptx/cluster.cuh declares, for the simulator.
#pragma once

#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

inline void cluster_arrive() { simulator::cluster_arrive(); }
inline void cluster_wait() { simulator::cluster_wait(); }
inline float remote_float(const float* place, int rank) {
  return *reinterpret_cast<const float*>(simulator::shared_of(static_cast<unsigned>(rank), place));
}

}  // namespace fp8lab::cuda
