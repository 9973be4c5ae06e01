#include "emulation/cpu/simd/target.hpp"

#include <simd_sets.hpp>

#include <algorithm>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "emulation/base/error.hpp"

namespace fp8lab::cpu {
namespace {

#if defined(__x86_64__)
constexpr unsigned kAvx512Fp16 = 1u << 23;
constexpr unsigned kAmx = 1u << 22 | 1u << 24;  // BF16, tiles

/// Returns EDX of CPUID leaf 7: GCC 12 does not know these features for __builtin_cpu_supports.
unsigned extended_features() {
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return edx;
}

/// Asks Linux once for the tile registers of AMX, which a process does not have from the start.
bool permits_tiles() {
#if defined(__linux__) && defined(ARCH_REQ_XCOMP_PERM)
  constexpr long kTileData = 18;  // the state component of XSAVE
  static const bool permitted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0;
  return permitted;
#else
  return false;
#endif
}
#endif

bool processor_runs(SimdTarget target) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  switch (target) {
    case SimdTarget::portable: return true;
    case SimdTarget::avx2: return avx2;
    case SimdTarget::avx512: return avx512;
    case SimdTarget::avx512_fp16:
      return avx512 && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("gfni") &&
             (extended_features() & kAvx512Fp16) != 0;
    case SimdTarget::avx512_amx:
      return processor_runs(SimdTarget::avx512_fp16) && (extended_features() & kAmx) == kAmx &&
             permits_tiles();
  }
  return false;
#else
  return target == SimdTarget::portable;
#endif
}

constexpr SimdTarget kCompiled[] = {
#define FP8LAB_TARGET(isa) SimdTarget::isa,
    FP8LAB_FOR_EACH_SIMD_SET(FP8LAB_TARGET)
#undef FP8LAB_TARGET
};

SimdTarget best_target() {
  const std::vector<SimdTarget> available = available_targets();
  if (!available.empty()) return available.back();
  std::string compiled;
  for (const SimdTarget target : kCompiled) {
    compiled += (compiled.empty() ? "" : ", ") + std::string(name_of(target));
  }
  throw RuntimeFailure("this build has code for " + compiled +
                       ", which this processor does not run: build it here, or for all processors "
                       "with FP8LAB_SIMD=all");
}

SimdTarget& active() {
  static SimdTarget target = best_target();
  return target;
}

}  // namespace

std::string_view name_of(SimdTarget target) {
  switch (target) {
    case SimdTarget::portable: return "portable";
    case SimdTarget::avx2: return "avx2";
    case SimdTarget::avx512: return "avx512";
    case SimdTarget::avx512_fp16: return "avx512_fp16";
    case SimdTarget::avx512_amx: return "avx512_amx";
  }
  return "?";
}

std::vector<SimdTarget> available_targets() {
  std::vector<SimdTarget> targets;
  for (const SimdTarget target : kCompiled) {
    if (processor_runs(target)) targets.push_back(target);
  }
  return targets;
}

SimdTarget active_target() { return active(); }

void set_active_target(SimdTarget target) {
  const std::vector<SimdTarget> available = available_targets();
  if (std::find(available.begin(), available.end(), target) == available.end()) {
    throw Error("SIMD target " + std::string(name_of(target)) +
                " does not run on this processor or was not compiled");
  }
  active() = target;
}

}  // namespace fp8lab::cpu
