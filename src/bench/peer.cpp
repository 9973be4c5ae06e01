#include <dlfcn.h>
#include <simd_sets.hpp>

#include <algorithm>

#include "emulation/cpu/simd/target.hpp"
#include "src/bench/simd/peer_gemm.hpp"
#include "src/bench/simd/peer_transpose.hpp"

namespace fp8lab {

#define FP8LAB_DECLARE_PEERS(isa)                                                             \
  namespace isa_##isa {                                                                       \
    void peer_gemm(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,  \
                   std::int64_t k);                                                           \
    void peer_transpose(const std::uint16_t* from, std::int64_t rows, std::int64_t cols,      \
                        std::int64_t from_stride, std::uint16_t* to, std::int64_t to_stride); \
  }
FP8LAB_FOR_EACH_SIMD_SET(FP8LAB_DECLARE_PEERS)
#undef FP8LAB_DECLARE_PEERS

namespace {

// The C interface of CBLAS, as far as it is used here.
constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;
using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                       float, float*, int);

Sgemm g_sgemm = nullptr;

void call_openblas(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
                   std::int64_t k) {
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), depth = static_cast<int>(k);
  g_sgemm(kRowMajor, kNoTranspose, kTranspose, rows, columns, depth, 1.0f, a, depth, b, depth, 0.0f,
          c, columns);
}

struct EigenPeers {
  cpu::SimdTarget target;
  PeerGemm gemm;
  PeerTranspose transpose;
};

#define FP8LAB_PEERS(isa) {cpu::SimdTarget::isa, isa_##isa::peer_gemm, isa_##isa::peer_transpose},
constexpr EigenPeers kEigenPeers[] = {FP8LAB_FOR_EACH_SIMD_SET(FP8LAB_PEERS)};
#undef FP8LAB_PEERS

/// For the best instruction set that Eigen knows of this processor: its code is that of avx512 for
/// the sets beyond it, whose copy serves where it is the only one.
EigenPeers eigen_peers() {
  EigenPeers best = kEigenPeers[0];
  for (const EigenPeers& peers : kEigenPeers) {
    if (peers.target <= std::min(cpu::available_targets().back(), cpu::SimdTarget::avx512)) {
      best = peers;
    }
  }
  return best;
}

}  // namespace

PeerGemm eigen_gemm() { return eigen_peers().gemm; }

PeerTranspose eigen_transpose() { return eigen_peers().transpose; }

PeerGemm openblas_gemm() {
  if (g_sgemm != nullptr) return call_openblas;
  // Loaded on demand: linked, it would start its threads in every run of the program.
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto set_threads =
      reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
  g_sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
  if (set_threads == nullptr || g_sgemm == nullptr) return nullptr;
  set_threads(1);
  return call_openblas;
}

}  // namespace fp8lab
