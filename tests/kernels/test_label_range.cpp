// Profilers see the label of operations as one range at a time.
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

// This test stands for the profiler: NVTX calls the function behind this pointer.
extern "C" {
extern int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(std::uint32_t));
}
#define NVTX_STATIC_INJECTION_IMPL
#include <nvtx3/nvToolsExt.h>

#include "kernels/runtime/label_range.hpp"

using namespace fp8lab;

namespace {

std::vector<std::string> open_ranges, all_ranges;

int push(const char* message) {
  open_ranges.emplace_back(message);
  all_ranges.emplace_back(message);
  return static_cast<int>(open_ranges.size()) - 1;
}

int pop() {
  open_ranges.pop_back();
  return static_cast<int>(open_ranges.size());
}

int initialize(NvtxGetExportTableFunc_t table_of) {
  const auto* const tables =
      static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int count = 0;
  if (tables->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &count) == 0) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

}  // namespace

NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = &initialize;

TEST_CASE("a profiler sees the label of operations as one range at a time") {
  {
    cuda::LabelRange range;
    range.enter({.micro_batch = 1, .phase = Phase::backward});
    CHECK(open_ranges == std::vector<std::string>{"backward"});
    range.enter({1, Phase::backward, "layers.0.mlp.down", "wgrad"});
    CHECK(open_ranges == std::vector<std::string>{"backward layers.0.mlp.down wgrad"});
    range.enter({1, Phase::forward, "lm_head", {}, "x"});
    CHECK(open_ranges == std::vector<std::string>{"forward lm_head x"});
  }
  CHECK(open_ranges.empty());
  CHECK(all_ranges.size() == 3);
}
