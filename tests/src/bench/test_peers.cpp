// What `bench emulation` measures the emulation beside.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/bench/emulation.hpp"
#include "src/bench/simd/peer_gemm.hpp"

using namespace fp8lab;

namespace {

/// Whether `gemm` multiplies small integers exactly, which it does with any instructions.
bool multiplies(PeerGemm gemm) {
  constexpr std::int64_t kM = 19, kN = 37, kK = 53;
  std::vector<float> a, b, want, c(kM * kN);
  for (std::int64_t i = 0; i < kM * kK; ++i) a.push_back(static_cast<float>(i % 7 - 3));
  for (std::int64_t i = 0; i < kN * kK; ++i) b.push_back(static_cast<float>(i % 11 - 5));
  for (std::int64_t i = 0; i < kM; ++i) {
    for (std::int64_t j = 0; j < kN; ++j) {
      float sum = 0;
      for (std::int64_t l = 0; l < kK; ++l) sum += a.data()[i * kK + l] * b.data()[j * kK + l];
      want.push_back(sum);
    }
  }
  gemm(a.data(), b.data(), c.data(), kM, kN, kK);
  return c == want;
}

std::string openblas_name(cpu::SimdTarget target) {
  switch (target) {
    case cpu::SimdTarget::portable: return "openblas Prescott";
    case cpu::SimdTarget::avx2: return "openblas Haswell";
    default: return "openblas SkylakeX";
  }
}

bool openblas_is_installed() {
  return OpenBlas(cpu::available_targets().front()).peer().gemm != nullptr;
}

}  // namespace

TEST_CASE("Peers have the instructions of the target, in any order of targets") {
  std::vector<cpu::SimdTarget> targets = cpu::available_targets();
  targets.insert(targets.end(), targets.rbegin(), targets.rend());
  const bool installed = openblas_is_installed();
  if (!installed) WARN("OpenBLAS is not installed");
  for (const cpu::SimdTarget target : targets) {
    INFO(cpu::name_of(target));
    CHECK(eigen_peer(target).name == "eigen " + std::string(cpu::name_of(target)));
    CHECK(multiplies(eigen_peer(target).gemm));
    if (!installed) continue;
    const OpenBlas openblas(target);
#if defined(__x86_64__)
    CHECK(openblas.peer().name == openblas_name(target));
#endif
    CHECK(multiplies(openblas.peer().gemm));
  }
}

TEST_CASE("The environment of OpenBLAS is what it was") {
  ::setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
  { const OpenBlas openblas(cpu::available_targets().back()); }
  CHECK(std::getenv("OPENBLAS_CORETYPE") == std::string("Nehalem"));
  ::unsetenv("OPENBLAS_CORETYPE");
  { const OpenBlas openblas(cpu::available_targets().back()); }
  CHECK(std::getenv("OPENBLAS_CORETYPE") == nullptr);
}

TEST_CASE("Rows of a target stand beside a peer of its instruction set") {
  GemmBenchOptions options;
  options.shapes = {{24, 40, 64}, {8, 16, 32}};
  options.targets = cpu::available_targets();
  options.repeats = 1;
  const std::vector<GemmBenchRow> rows = bench_gemm(options);
  for (const cpu::SimdTarget target : options.targets) {
    std::vector<std::string> names = {"eigen " + std::string(cpu::name_of(target))};
    const OpenBlas openblas(target);
    if (openblas.peer().gemm != nullptr) names.push_back(openblas.peer().name);
    std::size_t found = 0;
    for (const GemmBenchRow& row : rows) {
      if (row.target != cpu::name_of(target)) continue;
      ++found;
      INFO(row.operation << " " << row.target << " beside " << row.peer);
      CHECK(std::ranges::count(names, row.peer) == 1);
      CHECK(row.ratio > 0);
    }
    CHECK(found > 6);  // three operations a shape, and accumulators
  }
}
