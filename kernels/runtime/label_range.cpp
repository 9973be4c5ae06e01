#include "kernels/runtime/label_range.hpp"

#include <string>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define FP8LAB_HAS_NVTX 1
#endif

namespace fp8lab::cuda {

void LabelRange::enter([[maybe_unused]] const Label& label) {
#ifdef FP8LAB_HAS_NVTX
  close();
  std::string text(name_of(label.phase));
  for (const std::string* part : {&label.layer, &label.gemm, &label.tensor}) {
    if (!part->empty()) text.append(" ").append(*part);
  }
  nvtxRangePushA(text.c_str());
  is_open_ = true;
#endif
}

void LabelRange::close() {
#ifdef FP8LAB_HAS_NVTX
  if (is_open_) nvtxRangePop();
#endif
  is_open_ = false;
}

}  // namespace fp8lab::cuda
