// FP32 GEMMs to compare the emulation with, each compiled for one SIMD target.
#pragma once

#include <cstdint>
#include <string>

#include "emulation/cpu/simd/target.hpp"

namespace fp8lab {

/// Computes c (m, n) = a (m, k) b (n, k)^T, all row-major and contiguous, on the calling thread.
using PeerGemm = void (*)(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
                          std::int64_t k);

struct Peer {
  std::string name;  ///< library and its name of the instruction set: "eigen avx2"
  PeerGemm gemm;     ///< nullptr: not installed
};

/// Returns Eigen compiled for `target`. Precondition: the processor supports `target`.
Peer eigen_peer(cpu::SimdTarget target);

/// OpenBLAS on one thread with its kernels for `target`, selected by the environment variable
/// OPENBLAS_CORETYPE when the library is loaded. The library stays loaded for the lifetime of the
/// object; only one object may exist at a time. If the library lacks these kernels it uses others,
/// and the name states which. No other thread may read the environment during construction.
class OpenBlas {
 public:
  explicit OpenBlas(cpu::SimdTarget target);
  ~OpenBlas();
  OpenBlas(const OpenBlas&) = delete;
  OpenBlas& operator=(const OpenBlas&) = delete;

  /// Returns "openblas Haswell"; valid as long as this object.
  const Peer& peer() const { return peer_; }

 private:
  void* library_;
  Peer peer_{"openblas", nullptr};
};

}  // namespace fp8lab
