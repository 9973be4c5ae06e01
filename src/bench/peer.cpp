#include <dlfcn.h>
#include <simd_sets.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

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

// The part of the CBLAS C interface that is used here.
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

/// Returns OpenBLAS's name of the kernels for a target.
const char* core_type(cpu::SimdTarget target) {
  switch (target) {
    case cpu::SimdTarget::portable: return "Prescott";
    case cpu::SimdTarget::avx2: return "Haswell";
    case cpu::SimdTarget::avx512:
    case cpu::SimdTarget::avx512_fp16:
    case cpu::SimdTarget::avx512_amx: return "SkylakeX";
  }
  return "";
}

/// Sets an environment variable for the lifetime of the object.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~Setting() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

struct EigenCopy {
  cpu::SimdTarget target;
  PeerGemm gemm;
  PeerTranspose transpose;
};

#define FP8LAB_PEERS(isa) {cpu::SimdTarget::isa, isa_##isa::peer_gemm, isa_##isa::peer_transpose},
constexpr EigenCopy kEigenCopies[] = {FP8LAB_FOR_EACH_SIMD_SET(FP8LAB_PEERS)};
#undef FP8LAB_PEERS

const EigenCopy& eigen_copy(cpu::SimdTarget target) {
  return *std::ranges::find(kEigenCopies, target, &EigenCopy::target);
}

}  // namespace

Peer eigen_peer(cpu::SimdTarget target) {
  const EigenCopy& copy = eigen_copy(target);
  return {"eigen " + std::string(cpu::name_of(copy.target)), copy.gemm};
}

PeerTranspose eigen_transpose() { return eigen_copy(cpu::available_targets().back()).transpose; }

OpenBlas::OpenBlas(cpu::SimdTarget target) {
  const Setting kernels("OPENBLAS_CORETYPE", core_type(target));
  // Loaded on demand: a linked library would start its threads in every run of the program.
  library_ = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  const auto set_threads =
      reinterpret_cast<void (*)(int)>(dlsym(library_, "openblas_set_num_threads"));
  const auto core_name =
      reinterpret_cast<const char* (*)()>(dlsym(library_, "openblas_get_corename"));
  g_sgemm = reinterpret_cast<Sgemm>(dlsym(library_, "cblas_sgemm"));
  if (set_threads == nullptr || core_name == nullptr || g_sgemm == nullptr) return;
  set_threads(1);
  peer_ = {"openblas " + std::string(core_name()), call_openblas};
}

OpenBlas::~OpenBlas() {
  if (library_ != nullptr) dlclose(library_);
}

}  // namespace fp8lab
