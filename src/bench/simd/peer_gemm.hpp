// FP32 GEMMs that the emulation is measured beside, each with the instructions of one SIMD target.
#pragma once

#include <cstdint>
#include <string>

#include "emulation/cpu/simd/target.hpp"

namespace fp8lab {

/// c (m, n) = a (m, k) b (n, k)^T, all row-major and contiguous, on the calling thread.
using PeerGemm = void (*)(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
                          std::int64_t k);

struct Peer {
  std::string name;  ///< library and instruction set as it calls it: "eigen avx2"
  PeerGemm gemm;     ///< nullptr: not installed
};

/// Eigen compiled for `target`, which is available.
Peer eigen_peer(cpu::SimdTarget target);

/// OpenBLAS on one thread with its kernels for `target`, as the environment variable
/// OPENBLAS_CORETYPE selects them when the library is loaded; it is loaded as long as this lives,
/// one at a time. A library without those kernels takes others: the name says which. While it is
/// made no other thread may read the environment.
class OpenBlas {
 public:
  explicit OpenBlas(cpu::SimdTarget target);
  ~OpenBlas();
  OpenBlas(const OpenBlas&) = delete;
  OpenBlas& operator=(const OpenBlas&) = delete;

  /// "openblas Haswell", while this lives.
  const Peer& peer() const { return peer_; }

 private:
  void* library_;
  Peer peer_{"openblas", nullptr};
};

}  // namespace fp8lab
